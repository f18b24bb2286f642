"""Machine code: every kernel's PrimFunc through TVM's TIR pipeline and LLVM."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import tvm
from tvm import tirx

from .passes import AlignStack
from .target import CompileTarget

_CONFIG = {
    "tirx.disable_assert": True,
    # LLVM finds common subexpressions itself; TVM's search takes most of the time on unrolled transforms.
    "tirx.disable_cse_tir": True,
}


def compile_kernels(
    kernels: Mapping[str, tirx.PrimFunc],
    target: CompileTarget,
    report: Callable[[str, int, int], None],
) -> tvm.runtime.Module:
    """One module with all kernels. The arguments are not checked again at run time: the program is, at load."""
    functions = {symbol: func.with_attr("global_symbol", symbol) for symbol, func in kernels.items()}
    report("compile", 0, 1)
    with tvm.transform.PassContext(config=_CONFIG):
        aligned = AlignStack(4 * target.vector_width)(tvm.IRModule(functions))
        module = tvm.tirx.build(aligned, target=target.tvm_target)
    report("compile", 1, 1)
    return module
