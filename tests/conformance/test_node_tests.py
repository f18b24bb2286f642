"""ONNX's node tests that flexcomp passes, so that none is lost. `python -m tests.conformance` writes the list.

A chunk of tests is run in a process of its own, so that a crash tells which test it was. Kernels are not optimised by LLVM:
`python -m tests.conformance` and tests/operators/test_operators.py run optimised ones.
"""

import pickle
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests import kept
from tests.conformance import pool, report
from tests.conformance.cases import Case, cases
from tests.conformance.lengths import by_lengths, in_lengths
from tests.conformance.verdict import UNOPTIMISED, Outcome, Verdict, by_flexcomp, together

FOLDER = Path(__file__).parent
PASSING = (FOLDER / "passing.txt").read_text().split()
LENGTHS = 160  # every so many-th test is run in three lengths, too: `python -m tests.conformance --lengths` runs all
MISJUDGED = "test_maxpool_with_argmax_2d_precomputed_pads"  # by ONNX's reference implementation in other lengths
CHUNKS = 4  # each starts a process, and imports the compiler: four seconds
TOGETHER = 24  # in one library
KERNELS = ("smallest", "fastest")  # of a chunk: both take a sixth longer, and every operator has tests in several chunks


@pytest.fixture(scope="module")
def known() -> dict[str, Case]:
    """The tests by name. To make them takes 20 seconds."""
    makers = [FOLDER / "cases.py", FOLDER / "parameters.py"]
    made = kept.made(
        "cases.pickle", [onnx.__version__, np.__version__, *makers], lambda path: path.write_bytes(pickle.dumps(cases()))
    )
    return {case.name: case for case in pickle.loads(made.read_bytes())}


def test_the_list_is_sorted_and_every_test_exists(known):
    assert PASSING and sorted(set(PASSING)) == PASSING
    assert not set(PASSING) - known.keys(), "run python -m tests.conformance with the installed onnx"


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_passes_what_it_passed(chunk, known):
    """Many tests in one library; of those that fail there, each alone says more."""
    tests = [known[name] for name in PASSING[chunk::CHUNKS]]
    judge = partial(together, target=UNOPTIMISED, kernels=KERNELS[chunk % 2])
    groups = [tests[start : start + TOGETHER] for start in range(0, len(tests), TOGETHER)]
    suspects: list[Case] = []
    for group, verdicts in pool.run(groups, judge, jobs=1):
        if isinstance(verdicts, Verdict):  # of the process
            suspects += group
        else:
            suspects += [case for case, verdict in zip(group, verdicts, strict=True) if verdict.outcome != Outcome.RIGHT]
    alone = pool.run(suspects, partial(by_flexcomp, target=UNOPTIMISED), jobs=1)
    assert not {case.name: f"{verdict.outcome.value} alone: {report.short(verdict.reason)}" for case, verdict in alone}


def test_some_pass_with_dynamic_axes_in_three_lengths(known):
    tests = [known[name] for name in (*PASSING[7::LENGTHS], MISJUDGED)]
    assert sum(len(next(in_lengths(case)).tests) == 3 for case in tests) >= len(tests) / 2
    found = pool.run(tests, partial(by_lengths, target=UNOPTIMISED), jobs=1)
    assert not {case.name: report.short(verdict.reason) for case, verdict in found if verdict.outcome != Outcome.RIGHT}
