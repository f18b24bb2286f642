"""Building and calling kernels in tests."""

import numpy as np
import tvm
from tvm import tirx

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})


def library(functions: dict[str, tirx.PrimFunc]):
    """One compiled module of all `functions`, without TVM's search for common subexpressions, as in the compiler."""
    named = {name: function.with_attr("global_symbol", name) for name, function in functions.items()}
    with tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}):
        return tvm.tirx.build(tvm.IRModule(named), target=TARGET)


def call(function, *inputs: np.ndarray, out: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """The output of a kernel (inputs…, output); NaN where it writes nothing."""
    fill = np.full(out, np.nan if dtype.startswith("float") else -77, dtype)
    result = tvm.runtime.tensor(fill)
    function(*[tvm.runtime.tensor(np.ascontiguousarray(x)) for x in inputs], result)
    return result.numpy()


def assert_no_workspace(functions: dict[str, tirx.PrimFunc]) -> None:
    """No kernel asks the runtime for memory."""
    assert "AllocWorkspace" not in library(functions).inspect_source("ll").replace("__TVMBackendAllocWorkspace =", "")
