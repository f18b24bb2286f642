"""ONNX's node tests that flexcomp passes, so that none is lost. `python -m benchmarks.conformance` writes the list.

A chunk of tests is run in a process of its own, so that a crash tells which test it was.
"""

from pathlib import Path

import pytest

from benchmarks.conformance import pool, report
from benchmarks.conformance.cases import Case, cases
from benchmarks.conformance.verdict import Outcome

PASSING = (Path(__file__).parent / "passing.txt").read_text().split()
CHUNKS = 8  # each starts a process: two seconds


@pytest.fixture(scope="module")
def known() -> dict[str, Case]:
    return {case.name: case for case in cases()}


def test_the_list_is_sorted_and_every_test_exists(known):
    assert PASSING and sorted(set(PASSING)) == PASSING
    assert not set(PASSING) - known.keys(), "run python -m benchmarks.conformance with the installed onnx"


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_passes_what_it_passed(chunk, known):
    tests = [known[name] for name in PASSING[chunk::CHUNKS]]
    failed = {
        case.name: f"{verdict.outcome.value}: {report.short(verdict.reason)}"
        for case, verdict in pool.run(tests, "flexcomp", jobs=1)
        if verdict.outcome != Outcome.RIGHT
    }
    assert not failed
