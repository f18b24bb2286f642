"""Whole networks against ONNX Runtime, in the C++ runner, at several budgets.

`python -m benchmarks.accuracy` does the same for all networks and budgets.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import flexcomp
from benchmarks import models
from flexcomp.demo import compare
from flexcomp.program.program import Program

AVX2 = "llvm -mcpu=x86-64-v3"  # compiles in half the time that AVX-512 takes
# For what and with which kernels each is built. Together they are of all kinds, but a network of many layers takes one.
NETWORKS = {
    "squeezenet": ("llvm -opt-level=3", "fastest"),
    "shufflenet": ("llvm -opt-level=3", "auto"),
    "open_nsfw": (AVX2, "fastest"),
    "ppocr_rec": (AVX2, "smallest"),
}
ALLOWANCE = 4 << 20  # bytes of the process beyond the budget


@dataclass(frozen=True)
class Built:
    """A compiled network with two inputs and what ONNX Runtime makes of them."""

    library: Path
    program: Program
    inputs: list[dict[str, np.ndarray]]
    expected: list[dict[str, np.ndarray]]


@pytest.fixture(scope="module", params=NETWORKS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    network = models.load(request.param)
    target, kernels = NETWORKS[request.param]
    artifact = flexcomp.build(network.model, input_shapes=network.input_shapes, target=target, kernels=kernels)
    library = tmp_path_factory.mktemp("network") / f"{network.name}.so"
    artifact.export_library(str(library))
    inputs = [network.example(variant) for variant in range(2)]
    return Built(library, artifact.program, inputs, [compare.reference(network.model, value) for value in inputs])


def test_outputs_tell_inputs_apart(built):
    assert compare.relative_error(*built.expected) > 0.10


@pytest.mark.parametrize("label", ["all", "25 %", "min"])
def test_agrees_with_onnx_runtime_within_the_budget(built, label):
    budget = compare.budgets(built.program)[label]
    for value, want in zip(built.inputs, built.expected, strict=True):
        run = compare.measure(built.library, label, budget, value, want, repeat=2)
        assert run.error <= compare.TOLERANCE
        assert run.overhead_nbytes <= budget + ALLOWANCE


def test_every_budget_gives_the_same_outputs(built):
    """In one session, up and down the ladder: budgets with the same kernels agree to the last bit, all agree with
    ONNX Runtime. Where bytes lie and how layers are cut is not seen in the outputs."""
    rungs = built.program.rungs
    rng = np.random.default_rng(0)
    first: dict[frozenset[int], dict[str, np.ndarray]] = {}
    with flexcomp.load(str(built.library)) as session:
        for index in [*range(len(rungs)), *rng.integers(len(rungs), size=6)]:
            session.set_budget(rungs[index].budget)
            outputs = session.run(built.inputs[0])
            assert compare.relative_error(outputs, built.expected[0]) <= compare.TOLERANCE
            # Every inference here is a first one.
            others = {number: step.layer for number, step in rungs[index].tapes.first_steps}
            kernels = frozenset(others.get(number, step.layer) for number, step in enumerate(rungs[index].steps))
            for name, value in first.setdefault(kernels, outputs).items():
                np.testing.assert_array_equal(outputs[name], value)
    assert len(first) < len(rungs)
