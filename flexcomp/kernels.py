"""Machine code: every kernel's PrimFunc through TVM's TIR pipeline and LLVM."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tvm
from tvm import tirx

from .target import CompileTarget


def compile_kernels(
    kernels: Mapping[str, tirx.PrimFunc],
    target: CompileTarget,
    report: Callable[[str, int, int], None],
) -> tvm.runtime.Module:
    """One module with all kernels. The arguments are not checked again at run time: the program is, at load."""
    functions = {symbol: func.with_attr("global_symbol", symbol) for symbol, func in kernels.items()}
    report("compile", 0, 1)
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        module = tvm.tirx.build(tvm.IRModule(functions), target=target.tvm_target)
    report("compile", 1, 1)
    return module
