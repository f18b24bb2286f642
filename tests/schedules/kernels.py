"""Building and calling kernels in tests."""

import re

import numpy as np
import tvm
from tvm import tirx

from flexcomp.compiler.machine_code import compile_module
from flexcomp.device import CompileTarget, resolve_target

TARGET = resolve_target({"mcpu": "x86-64-v3"})
UNOPTIMISED = resolve_target({"mcpu": "x86-64-v3", "opt-level": 0})


def library(
    functions: dict[str, tirx.PrimFunc], target: CompileTarget = TARGET, references: bool = False
) -> tvm.runtime.Module:
    """One module of all `functions`, compiled as `flexcomp.build` compiles kernels.

    None asks the runtime for memory. TVM's own, among them as `references`, may, and are not optimised.
    """
    module = compile_module(functions, UNOPTIMISED if references else target)
    assert references or "AllocWorkspace" not in runtime_calls(module)
    return module


def call(function, *inputs: np.ndarray, out: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """The output of a kernel (inputs…, output); NaN where it writes nothing."""
    fill = np.full(out, np.nan if dtype.startswith("float") else -77, dtype)
    result = tvm.runtime.tensor(fill)
    function(*[tvm.runtime.tensor(np.ascontiguousarray(x)) if isinstance(x, np.ndarray) else x for x in inputs], result)
    return result.numpy()


def runtime_calls(module: tvm.runtime.Module) -> set[str]:
    """What kernels ask the runtime for, e.g. AllocWorkspace, ParallelLaunch."""
    return set(re.findall(r"TVMBackend(\w+)\b(?! =)", module.inspect_source("ll")))
