"""CUDA C of kernels."""

import pytest
import tvm
import tvm_ffi
from tvm import s_tir
from tvm.relax import op

from flexcomp.compiler.cuda_code import cuda_code
from flexcomp.schedules.cuda import ARCHITECTURES, copies, fallback
from flexcomp.schedules.operators.concat import copy_of
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


def test_only_blocks_that_tvm_schedules_have_their_allocations_compacted(monkeypatch):
    @tvm.transform.module_pass(opt_level=0, name="compacting")
    def compacting(*_) -> tvm.IRModule:
        raise AssertionError("compacted")

    monkeypatch.setattr(s_tir.transform, "CompactBufferAllocation", lambda: compacting)
    architecture = ARCHITECTURES["sm_87"]
    assert "__global__" in cuda_code(copies.concat(copy_of((3, 5), "float32")), architecture).source
    (function,) = legalised(lambda x: op.argmax(x, 1), (2, 300))
    with pytest.raises(AssertionError, match="compacted"):
        cuda_code(fallback.schedule(function, architecture).func, architecture)
