"""Machine code: every kernel's PrimFunc through TVM's TIR pipeline and LLVM."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx

from flexcomp.device.target import CompileTarget
from flexcomp.passes import AlignStack
from flexcomp.passes import attributes as names
from flexcomp.program import signature
from flexcomp.program.program import Layer, TensorType

_CONFIG = {
    "tirx.disable_assert": True,
    # LLVM finds common subexpressions itself; TVM's search takes most of the time on unrolled transforms.
    "tirx.disable_cse_tir": True,
}


def signature_of(kernel: tirx.PrimFunc) -> str:
    """The signature of a kernel (see `flexcomp.program.signature`), from its own code: its parameters, and which it writes to."""
    written = _written(kernel)
    attrs = dict(kernel.attrs.items()) if kernel.attrs is not None else {}
    over = {int(position) for position in attrs.get(names.IN_PLACE, ())}
    scratch = len(kernel.params) - len(attrs.get(names.SCRATCH, ()))
    kinds = ["s" if i >= scratch else "w" if p in written else "o" if i in over else "r" for i, p in enumerate(kernel.params)]
    integers = [position for position, param in enumerate(kernel.params) if not tirx.is_buffer_var(param)]
    if integers:
        first, count = integers
        kinds[first - 1 : count + 1] = "p", "first", "count"
    arguments = []
    for kind, param in zip(kinds, kernel.params, strict=True):
        if kind in ("first", "count"):
            arguments.append(kind)
            continue
        shape = tuple(int(extent) for extent in param.shape)
        bounds = () if arguments else attrs.get(names.BOUNDS, ())
        arguments.append(signature.argument(kind, TensorType(shape, str(param.dtype)), bounds))
    return signature.joined(arguments)


def by_symbol(kernels: Mapping[str, tirx.PrimFunc], layers: Iterable[Layer]) -> dict[str, tirx.PrimFunc]:
    """The kernels by the symbols of their code; `kernels` are by the names that `layers` call them by.

    Every layer gives its kernel what that takes: AssertionError otherwise.
    """
    signatures = {name: signature_of(kernel) for name, kernel in kernels.items()}
    for layer in layers:
        given, taken = signature.of_layer(layer), signatures[layer.kernel]
        assert given == taken, f"layer {layer.name} gives its kernel {layer.kernel} ({given}), which takes ({taken})"
    return {signature.symbol(name, signatures[name]): kernel for name, kernel in kernels.items()}


def _written(kernel: tirx.PrimFunc) -> set[ir.Var]:
    """The buffers that a kernel writes to, with those that its views look at."""
    written: set[ir.Var] = set()
    looked_at: dict[ir.Var, ir.Var] = {}

    def note_view(view: tirx.stmt.DeclBuffer) -> None:
        looked_at[view.buffer] = view.data.args[0]

    def note_block(block) -> None:
        looked_at.update({part.buffer: part.source.buffer for part in block.match_buffers})

    notes = [
        (tirx.BufferStore, lambda store: written.add(store.buffer)),
        (tirx.stmt.DeclBuffer, note_view),
        (s_tir.SBlock, note_block),
    ]
    tvm_ffi.structural_walk(kernel.body, notes)
    for buffer in list(written):
        while buffer in looked_at:
            buffer = looked_at[buffer]
            written.add(buffer)
    return written


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
