"""What the tests said, operator by operator: the figures, and `docs/operators.md`."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from tests.conformance.cases import Case
from tests.conformance.verdict import Outcome, Verdict

Results = Mapping[str, Verdict]  # by name of the test

_NODE = re.compile(r"^(node|input|output|graph output|operator) '[^']*'( \(\w+\))?: ")
_NO_CONVERTER = re.compile(r"operators that cannot be compiled: (\S+)")
_LONGEST = 110

_HEAD = """# Operators

ONNX's node tests (onnx {version}) through flexcomp: each is built, exported, loaded and run, with everything resident and in
the smallest budget, and held to ONNX's expected outputs. Made by `python -m tests.conformance`; not edited by hand.

Inputs that are parameters in networks (shapes, axes, weights; `tests/conformance/parameters.py` has the table) are
initialisers. Counted are {counted} of {total} tests: those of types float, int of 16 bits and more, and bool, without
strings, sequences, optional values and training. The others must be right or refused, too. Tolerances are those of the tests (for
most 1e-3, relative), but two units in the last place of 16-bit floats. Of inverse transforms (DFT) the tests expect rounding
noise of 2e-7 where the values are 0: both engines have other noise there.

{figures}

Right, refused and wrong count tests; types are those whose tests are all right. Operators with function bodies are tested
as operators and as the graphs that ONNX expands them to. [Custom operators](guide/custom-operators.md) tells how to add one.

| operator | right | refused | wrong | types | refused because |
| --- | --- | --- | --- | --- | --- |
"""


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
    head = _HEAD.format(version=version, counted=counted, total=len(tests), figures=lines)
    groups: dict[str, list[Case]] = defaultdict(list)
    for case in tests:
        groups[case.operator].append(case)
    return head + "".join(_row(name, group, by_engine["flexcomp"]) for name, group in groups.items())


def _row(operator: str, tests: list[Case], results: Results) -> str:
    found = Counter(results[case.name].outcome for case in tests)
    wrong = found[Outcome.WRONG] + found[Outcome.CRASHED]
    types = defaultdict(set)
    for case in tests:
        types[case.type].add(results[case.name].outcome)
    right = ", ".join(sorted(t for t, outcomes in types.items() if outcomes == {Outcome.RIGHT})) or "-"
    reasons = Counter(short(results[c.name].reason) for c in tests if results[c.name].outcome == Outcome.REFUSED)
    shown = "; ".join(reason for reason, _ in reasons.most_common(2)) + ("; …" if len(reasons) > 2 else "")
    return f"| {operator} | {found[Outcome.RIGHT]} | {found[Outcome.REFUSED]} | {wrong} | {right} | {shown} |\n"


def short(reason: str) -> str:
    """A refusal without the node's name, short enough for a table."""
    if found := _NO_CONVERTER.match(reason):
        return f"no converter for {found[1]}"
    text = _NODE.sub("", " ".join(reason.split())).replace("|", "\\|")
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1].rstrip() + "…"
