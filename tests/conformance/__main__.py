"""ONNX's node tests through flexcomp and ONNX Runtime, operator by operator.

    python -m tests.conformance                              # all of them; writes docs/operators.md and passing.txt
    python -m tests.conformance --operators Resize,Pow       # some, with what became of each
    python -m tests.conformance --tests 'reduce_max*'        # by name
    python -m tests.conformance --json results.json
    python -m tests.conformance --lengths --every 10         # flexcomp with every axis dynamic, in three lengths; --offset 1 to 9

Each test runs in a process that is replaced if it crashes: right, by the test's own tolerances; refused, by an error that
names the cause; wrong; or crashed, by any other error, a signal or a time limit. Ends with code 1 if any is wrong or
crashed. Inputs that are parameters in networks are initialisers: `tests/conformance/parameters.py` states the rule.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from functools import partial
from pathlib import Path

import onnx
from rich.console import Console
from rich.progress import track

from tests.conformance import pool, report
from tests.conformance.cases import Case, cases
from tests.conformance.lengths import by_lengths
from tests.conformance.verdict import ENGINES, UNOPTIMISED, Outcome, Verdict

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "operators.md"
PASSING = ROOT / "tests" / "conformance" / "passing.txt"


def main() -> None:
    """Run the tests, print what became of them, and write the documents if all were run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operators", help="only tests of these operators, separated by commas")
    parser.add_argument("--tests", help="only tests whose names match this pattern; test_ and * may be left out")
    parser.add_argument("--engines", default=",".join(ENGINES), help="flexcomp, onnxruntime or both")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--lengths", action="store_true", help="in a library for three lengths, of those tests that are right")
    parser.add_argument("--every", type=int, default=1, help="only every so many-th of the chosen tests")
    parser.add_argument("--offset", type=int, default=0, help="the first of these: parts have each below --every")
    parser.add_argument("--json", type=Path, help="write every verdict to this file")
    args = parser.parse_args()
    chosen = select(cases(), args.operators, args.tests)
    engines = ENGINES
    if args.lengths:
        known, engines = {*PASSING.read_text().split()}, {"flexcomp": partial(by_lengths, target=UNOPTIMISED)}
        chosen, args.engines = tuple(case for case in chosen if case.name in known), "flexcomp"
    chosen = chosen[args.offset :: args.every]
    if not chosen:
        sys.exit("no test matches")
    everything = len(chosen) == len(cases())
    console = Console(stderr=True, highlight=False)
    results: dict[str, dict[str, Verdict]] = {}
    for engine in args.engines.split(","):
        if engine not in ENGINES:
            sys.exit(f"no engine {engine!r}; there are {', '.join(ENGINES)}")
        found = track(pool.run(chosen, engines[engine], args.jobs), engine, len(chosen), console=console, transient=True)
        results[engine] = {case.name: verdict for case, verdict in found}
    show(chosen, results, everything)
    if args.json:
        args.json.write_text(json.dumps(as_json(chosen, results), indent=1) + "\n")
    if everything and results.keys() == ENGINES.keys():
        DOCUMENT.write_text(report.document(list(chosen), results, onnx.__version__))
        PASSING.parent.mkdir(exist_ok=True)
        PASSING.write_text("".join(f"{name}\n" for name in sorted(passing(results["flexcomp"]))))
        print(f"written: {DOCUMENT.relative_to(ROOT)}, {PASSING.relative_to(ROOT)}")
    bad = (Outcome.WRONG, Outcome.CRASHED)
    sys.exit(any(verdict.outcome in bad for verdict in results.get("flexcomp", {}).values()))


def select(tests: tuple[Case, ...], operators: str | None, pattern: str | None) -> tuple[Case, ...]:
    """The tests of some operators, or whose names match."""
    names = set(operators.lower().split(",")) if operators else None
    return tuple(
        case
        for case in tests
        if (names is None or case.operator.lower() in names)
        and (pattern is None or fnmatch.fnmatch(case.name, f"test_{pattern.removeprefix('test_')}*"))
    )


def passing(results: report.Results) -> list[str]:
    """Names of the tests that are right."""
    return [name for name, verdict in results.items() if verdict.outcome == Outcome.RIGHT]


def show(tests: tuple[Case, ...], results: dict[str, report.Results], everything: bool) -> None:
    """Print the figures; of a choice of tests each one, of all those that are wrong or crashed."""
    for engine, verdicts in results.items():
        for case in tests if engine == "flexcomp" else ():
            verdict = verdicts[case.name]
            if not everything or verdict.outcome in (Outcome.WRONG, Outcome.CRASHED):
                outside = f" [not counted: {case.outside}]" if case.outside else ""
                print(f"{verdict.outcome.value:8} {case.name}{outside}  {verdict.reason}".rstrip())
        counted = sum(not case.outside for case in tests)
        print(f"{engine}: of {counted} tests that count: {report.figures(list(tests), verdicts)}")


def as_json(tests: tuple[Case, ...], results: dict[str, report.Results]) -> list[dict]:
    """Every test with its verdicts."""
    return [
        {
            "test": case.name, "operator": case.operator, "type": case.type, "outside": case.outside,
            **{e: {"outcome": v[case.name].outcome.value, "reason": v[case.name].reason} for e, v in results.items()},
        }
        for case in tests
    ]  # fmt: skip


if __name__ == "__main__":
    main()
