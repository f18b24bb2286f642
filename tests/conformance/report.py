"""What the tests said, operator by operator: the figures, and `docs/operators.md`."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass

from tests.conformance.cases import Case
from tests.conformance.verdict import Outcome, Verdict

Results = Mapping[str, Verdict]  # by name of the test

_NODE = re.compile(r"^(node|input|output|graph output|operator) '[^']*'( \(\w+\))?: ")
_TENSOR = re.compile(r"^(input|result) '[^']*'")
_TYPES = re.compile(r" \([RT]\.\w+\(.*\)\)(?=,)")  # of Relax
_NO_CONVERTER = "operators that cannot be compiled: "
_LONGEST = 110

_HEAD = """# Operators

Which operators flexcomp computes, by ONNX's node tests (onnx {version}). Each test is built, exported, loaded and run, with
everything resident and in the smallest budget, and compared with ONNX's expected outputs. `python -m tests.conformance`
writes this page.

{figures}

[Custom operators](guide/custom-operators.md) tells how to add one. Operators with function bodies are tested as operators and
as the graphs that ONNX expands them to. Inputs that are parameters in networks (shapes, axes, weights;
`tests/conformance/parameters.py`) are initialisers. The figures count {counted} of {total} tests, without types narrower than
int16, strings, sequences, optional values and training. Tolerances are those of the tests, mostly 1e-3 relative; 16-bit
floats may differ by two units in the last place. The tests of inverse DFTs expect one library's rounding noise of 2e-7
instead of 0; both engines have other noise.
"""
_TABLES = (
    ("Right", "All tests of these operators are right. The types are those of the tests.", ("types", "operators")),
    (
        "Right in part",
        "The columns count tests; the types are those whose tests are all right.",
        ("operator", "right", "refused", "wrong", "types", "refused because"),
    ),
    ("Refused", "All tests of these operators are refused, by name and with the reason.", ("reason", "operators")),
)


@dataclass(frozen=True)
class Row:
    """What the tests of one operator said: numbers of tests, types without a test that failed, reasons of refusals."""

    operator: str
    right: int
    refused: int
    wrong: int
    types: str
    reason: str


def counts(tests: Iterable[Case], results: Results) -> Counter:
    """Outcomes of the tests that count."""
    return Counter(results[case.name].outcome for case in tests if not case.outside)


def figures(tests: list[Case], results: Results) -> str:
    """One line: what became of the tests that count."""
    found = counts(tests, results)
    return ", ".join(f"{found[outcome]} {outcome.value}" for outcome in Outcome)


def document(tests: list[Case], by_engine: Mapping[str, Results], version: str) -> str:
    """The text of `docs/operators.md`."""
    lines = "\n".join(f"- {engine}: {figures(tests, results)}" for engine, results in by_engine.items())
    counted = sum(not case.outside for case in tests)
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in tests:
        groups[case.operator].append(case)
    rows = [_row(name, group, by_engine["flexcomp"]) for name, group in groups.items()]
    return _HEAD.format(version=version, counted=counted, total=len(tests), figures=lines) + tables(rows)


def tables(rows: Iterable[Row]) -> str:
    """The tables of operators: those that are right, right in part, and refused."""
    right: dict[str, list[str]] = defaultdict(list)
    refused: dict[str, list[str]] = defaultdict(list)
    mixed = []
    for row in rows:
        if not row.refused and not row.wrong:
            right[row.types].append(row.operator)
        elif not row.right and not row.wrong:
            refused[row.reason].append(row.operator)
        else:
            mixed.append([str(field) for field in astuple(row)])
    by_number = [
        sorted(([key, ", ".join(names)] for key, names in group.items()), key=lambda cells: -cells[1].count(","))
        for group in (right, refused)
    ]
    return "".join(map(_table, _TABLES, (by_number[0], mixed, by_number[1])))


def _table(about: tuple[str, str, tuple[str, ...]], rows: list[list[str]]) -> str:
    title, text, columns = about
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)]
    return f"\n## {title}\n\n{text}\n\n" + "\n".join(lines) + "\n"


def _row(operator: str, tests: list[Case], results: Results) -> Row:
    found = Counter(results[case.name].outcome for case in tests)
    wrong = found[Outcome.WRONG] + found[Outcome.CRASHED]
    types = defaultdict(set)
    for case in tests:
        types[case.type].add(results[case.name].outcome)
    right = ", ".join(sorted(t for t, outcomes in types.items() if outcomes == {Outcome.RIGHT})) or "-"
    reasons = Counter(short(results[c.name].reason) for c in tests if results[c.name].outcome == Outcome.REFUSED)
    shown = "; ".join(reason for reason, _ in reasons.most_common(1)) + ("; …" if len(reasons) > 1 else "")
    return Row(operator, found[Outcome.RIGHT], found[Outcome.REFUSED], wrong, right, shown)


def short(reason: str) -> str:
    """The cause of a refusal, short enough for a table: without names of nodes and tensors, and without the way out."""
    if reason.startswith(_NO_CONVERTER):
        return "no converter"
    text = _NODE.sub("", " ".join(reason.split())).partition("; ")[0].replace("|", "\\|")
    text = _TYPES.sub("", text)
    text = _TENSOR.sub(lambda tensor: "an input" if tensor[1] == "input" else "a result", text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1].rstrip() + "…"
