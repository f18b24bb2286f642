"""ONNX's node tests that flexcomp passes, so that none is lost. `python -m tests.conformance` writes the list.

A chunk of tests is run in a process of its own, so that a crash tells which test it was. Kernels are not optimised by LLVM:
`python -m tests.conformance` and tests/operators run optimised ones.
"""

import concurrent.futures
import multiprocessing
import os
import pickle
from functools import partial
from pathlib import Path

import pytest

from tests.conformance import pool, report
from tests.conformance.cases import Case, cases
from tests.conformance.verdict import UNOPTIMISED, Outcome, by_flexcomp, together

PASSING = (Path(__file__).parent / "passing.txt").read_text().split()
CHUNKS = 4  # each starts a process, and imports the compiler: four seconds
TOGETHER = 24  # in one library


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """The tests by name. They take 20 seconds: what one of pytest's workers has made, others read."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return {case.name: case for case in cases()}
    made = tmp_path_factory.getbasetemp().parent / "node-tests"  # of this run of all workers
    if not made.exists():
        part = tmp_path_factory.mktemp("node-tests") / "part"
        part.write_bytes(pickle.dumps(cases()))
        part.replace(made)
    return {case.name: case for case in pickle.loads(made.read_bytes())}


def test_the_list_is_sorted_and_every_test_exists(known):
    assert PASSING and sorted(set(PASSING)) == PASSING
    assert not set(PASSING) - known.keys(), "run python -m tests.conformance with the installed onnx"


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_passes_what_it_passed(chunk, known):
    """Many tests in one library, each alone where one of them fails."""
    tests = [known[name] for name in PASSING[chunk::CHUNKS]]
    alone: list[Case] = []
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _in_silence) as process:
        for start in range(0, len(tests), TOGETHER):
            some = tests[start : start + TOGETHER]
            try:
                verdicts = process.submit(together, some, UNOPTIMISED).result(pool.LIMIT_S)
            except Exception:  # whatever it is, it shows again
                alone += tests[start:] if process._broken else some
                if process._broken:
                    break
            else:
                alone += [case for case, verdict in zip(some, verdicts, strict=True) if verdict.outcome != Outcome.RIGHT]
    failed = {
        case.name: f"{verdict.outcome.value}: {report.short(verdict.reason)}"
        for case, verdict in pool.run(alone, partial(by_flexcomp, target=UNOPTIMISED), jobs=1)
        if verdict.outcome != Outcome.RIGHT
    }
    assert not failed


def _in_silence() -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 2)
