"""The fallback takes every function of the importer and the legaliser, and computes what TVM's own code does."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from flexcomp.compiler.cuda_code import cuda_code
from flexcomp.schedules.cuda import ARCHITECTURES, fallback
from tests.cuda.on_cpu.emulator import Emulator
from tests.schedules.cuda import barriers
from tests.schedules.generic.cases import CASES, legalised, random_array
from tests.schedules.kernels import library

ORIN = ARCHITECTURES["sm_87"]
# Long enough for blocks of threads, with numbers of terms that divide by none of theirs.
LONG = {
    "long_sum": (lambda x: op.mean(x, axis=[1, 2]), (2, 29, 31, 3)),
    "long_max": (lambda x: op.max(x, axis=[-1]), (3, 1000)),
    "long_norm": (lambda x: relax.op.nn.softmax(x, axis=-1), (2, 777)),
}
BARRED = [f"{name}_0" for name in LONG]


@pytest.fixture(scope="module")
def functions():
    cases = {name: case for name, case in {**CASES, **LONG}.items() if "parallel" not in name}  # those are only larger
    return {f"{name}_{i}": f for name, case in cases.items() for i, f in enumerate(legalised(*case))}


@pytest.fixture(scope="module")
def emulator(functions, tmp_path_factory):
    """All of them for the GPU, and the shapes of their scratch."""
    scheduled = {name: fallback.schedule(function, ORIN) for name, function in functions.items()}
    codes = {name: cuda_code(kernel.func, ORIN, name) for name, kernel in scheduled.items()}
    return Emulator(codes, tmp_path_factory.mktemp("fallback")), scheduled


def arguments_of(function, scratch=(), seed=0):
    rng = np.random.default_rng(seed)
    return [random_array(rng, parameter) for parameter in function.params] + [np.full(s.shape, 7, s.dtype) for s in scratch]


def test_every_function_agrees(functions, emulator):
    reference = library(functions, references=True)
    emulated, scheduled = emulator
    for name, function in functions.items():
        expected = [tvm.runtime.tensor(a) for a in arguments_of(function)]
        reference[name](*expected)
        actual = emulated.run(name, arguments_of(function, scheduled[name].scratch), seed=1)
        for a, e in zip(actual, expected, strict=False):
            np.testing.assert_allclose(a, e.numpy(), rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("name", BARRED)
def test_every_barrier_is_needed(functions, emulator, name):
    emulated, scheduled = emulator
    assert emulated.barriers(name)
    # What is lost to a maximum may have been smaller: other numbers are tried, too.
    assert barriers.needless(emulated, name, lambda seed: arguments_of(functions[name], scheduled[name].scratch, seed)) == []

