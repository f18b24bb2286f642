"""Building and calling kernels in tests."""

import re
import subprocess
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from flexcomp.compiler.machine_code import compile_module, version
from flexcomp.device import CompileTarget, resolve_target
from tests import kept

TARGET = resolve_target({"mcpu": "x86-64-v3"})
UNOPTIMISED = resolve_target({"mcpu": "x86-64-v3", "opt-level": 0})


def library(
    functions: dict[str, tirx.PrimFunc], target: CompileTarget = UNOPTIMISED, references: bool = False
) -> tvm.runtime.Module:
    """One module of all `functions`, compiled as `flexcomp.build` compiles kernels: once, for later runs of the same ones, too.

    None asks the runtime for memory. TVM's own, as `references`, may. LLVM optimises them for TARGET only: what kernels compute
    is the same, and convolutions and whole networks are tested optimised.
    """
    hashes = [f"{symbol} {tvm_ffi.structural_hash(function)}" for symbol, function in functions.items()]

    def make(path: Path) -> None:
        module = compile_module(functions, target)
        assert references or "AllocWorkspace" not in _runtime_calls(module)
        module.write_to_file(str(path.with_suffix(".o")))
        subprocess.run(["ld", "-shared", "-o", path, path.with_suffix(".o")], check=True)

    return tvm.runtime.load_module(str(kept.made("kernels.so", [version(), str(target), *hashes], make)))


def call(function, *inputs: np.ndarray, out: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """The output of a kernel (inputs…, output); NaN where it writes nothing."""
    fill = np.full(out, np.nan if dtype.startswith("float") else -77, dtype)
    result = tvm.runtime.tensor(fill)
    function(*[tvm.runtime.tensor(np.ascontiguousarray(x)) if isinstance(x, np.ndarray) else x for x in inputs], result)
    return result.numpy()


def runtime_calls(functions: dict[str, tirx.PrimFunc]) -> set[str]:
    """What kernels ask the runtime for, e.g. AllocWorkspace, ParallelLaunch."""
    return _runtime_calls(compile_module(functions, UNOPTIMISED))


def require_no_memory(functions: dict[str, tirx.PrimFunc]) -> None:
    """Fail if a kernel asks the runtime for memory besides its operands."""
    assert "AllocWorkspace" not in runtime_calls(functions)


def _runtime_calls(module: tvm.runtime.Module) -> set[str]:
    return set(re.findall(r"TVMBackend(\w+)\b(?! =)", module.inspect_source("ll")))
