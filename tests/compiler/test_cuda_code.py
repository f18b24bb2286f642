"""CUDA C of kernels."""

import pytest
import tvm
import tvm_ffi
from tvm.relax import op

from flexcomp.compiler.cuda_code import cuda_code
from flexcomp.schedules.cuda import ARCHITECTURES, fallback
from tests.schedules.generic.cases import legalised

_CREATE, _COMPILE = "ffi.Module.create.cuda", "tvm_callback_cuda_compile"


@pytest.fixture
def gpu():
    """TVM's runtime for GPUs as it is on a machine that has one: it compiles the code of a module."""

    def create(code, form, functions, source):
        assert form == "cuda"
        tvm.get_global_func(_COMPILE)(code)
        return tvm.get_global_func("runtime.SourceModuleCreate")(code, form)

    def compile_(code):
        raise RuntimeError("there is no compiler")

    before = tvm.get_global_func(_COMPILE)
    tvm.register_global_func(_COMPILE, compile_, override=True)
    tvm.register_global_func(_CREATE, create)
    yield
    tvm_ffi.registry.remove_global_func(_CREATE)
    tvm.register_global_func(_COMPILE, before, override=True)


def test_code_is_the_same_on_a_machine_with_a_gpu(gpu):
    (function,) = legalised(lambda x: op.nn.relu(x), (2, 300))
    architecture = ARCHITECTURES["sm_87"]
    code = cuda_code(fallback.schedule(function, architecture).func, architecture)
    tvm_ffi.registry.remove_global_func(_CREATE)
    try:
        assert cuda_code(fallback.schedule(function, architecture).func, architecture) == code
    finally:
        tvm.register_global_func(_CREATE, lambda *args: None)
    with pytest.raises(RuntimeError, match="there is no compiler"):  # the user's function has its name again
        tvm.get_global_func(_COMPILE)("")
