"""Machine code: every kernel's PrimFunc through TVM's TIR passes and LLVM, to an object file of its own.

An object's name is a hash of its inputs: a kernel that was compiled before, for any network and budget, is found again.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import tempfile
import threading
from collections.abc import Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.tirx.compilation_pipeline import finalize_device_passes, finalize_host_passes, register_tir_pipeline

from flexcomp.device import CompileTarget
from flexcomp.passes import (
    AlignStack,
    DefineCalled,
    HideValues,
    LowerBFloat16,
    ShowValues,
    align_stack,
    define_called,
    hide_values,
    lower_bfloat16,
)
from flexcomp.passes import attributes as names
from flexcomp.passes.define_called import called_names
from flexcomp.program import Layer, TensorType, signature
from flexcomp.schedules.tiles import bfloat16, emit, half

from . import c_code

_CONFIG = {
    "tirx.disable_assert": True,  # arguments are not checked again at run time: the program is, at load
    # LLVM finds common subexpressions itself; TVM's search takes most of the time on unrolled transforms.
    "tirx.disable_cse_tir": True,
}
_BFLOAT16, _MATRICES = "avx512_bf16", "bf16"
_INTRINSICS = ("tirx.call_llvm_intrin", "tirx.call_llvm_pure_intrin")
_OF_ONE_ARCHITECTURE = ("llvm.x86.", "llvm.aarch64.")
# By whether the processor has instructions for bfloat16, and whether it is AArch64.
_PIPELINES = {(a, b): f"flexcomp{'_bfloat16' * a}{'_aarch64' * b}" for a in (False, True) for b in (False, True)}
# Held while LLVM is at work, whose locks a process that is forked meanwhile would find taken for ever.
COMPILING = threading.Lock()
# Characters of a family in a kernel's name: TVM names fused operators after all of them, and objects are files.
_MOST_OF_NAME = 48
# What makes machine code of a PrimFunc.
_PARTS = (align_stack, bfloat16, define_called, hide_values, lower_bfloat16, emit, half)
_MAKERS = tuple(map(Path, (__file__, *map(inspect.getfile, _PARTS))))


def signature_of(kernel: tirx.PrimFunc) -> str:
    """The signature of a kernel (see `flexcomp.program.signature`), from its code: parameters, read or written."""
    attrs = dict(kernel.attrs.items()) if kernel.attrs is not None else {}
    written = _written(kernel) | {kernel.params[int(position)] for position in attrs.get(names.WRITTEN, ())}
    over = {int(position) for position in attrs.get(names.IN_PLACE, ())}
    scratch = len(kernel.params) - len(attrs.get(names.SCRATCH, ()))
    kinds = ["s" if i >= scratch else "w" if p in written else "o" if i in over else "r" for i, p in enumerate(kernel.params)]
    for position in map(int, attrs.get(names.EXCHANGED, ())):
        assert kinds[position] == "w", "what is exchanged is written"
        kinds[position] = "x"
    valid = attrs.get(names.VALID)
    integers = [i for i, param in enumerate(kernel.params) if not tirx.is_buffer_var(param) and i != valid]
    if integers:
        first, count = integers
        kinds[first - 1 : count + 1] = "p", "first", "count"
    if valid is not None:
        kinds[int(valid)] = "valid"
    if names.CHANNELS in attrs:
        kinds[-1] = "p"
    arguments = []
    for kind, param in zip(kinds, kernel.params, strict=True):
        if kind in ("first", "count", "valid"):
            arguments.append(kind)
            continue
        shape = tuple(int(extent) for extent in param.shape)
        bounds = () if arguments else attrs.get(names.BOUNDS, ())
        arguments.append(signature.argument(kind, TensorType(shape, str(param.dtype)), bounds))
    if names.CHANNELS in attrs:
        arguments.append(signature.channels(*map(int, attrs[names.CHANNELS])))
    return signature.joined(arguments)


def name_of(name: str, kernel: tirx.PrimFunc, takes: str, target: CompileTarget) -> str:
    """The name in a library of a kernel with the signature `takes`: its family, and a hash of its source.

    So equal kernels are one, and symbols of two libraries in a process are equal only for equal functions.
    """
    family = family_of(name)
    compilers = () if c_code.source_of(kernel) is None else (c_code.version(target),)
    parts = (str(target), family, takes, tvm_ffi.structural_hash(kernel), *compilers)
    return f"{family}_{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"


def family_of(name: str) -> str:
    """A kernel's name without the numbers that are for one network only."""
    return re.sub(r"_\d+", "", name)[:_MOST_OF_NAME]


@cache
def version() -> str:
    """A hash of the compiler: TVM, LLVM, and our part, from any checkout."""
    tools = f"{tvm.__version__} {tvm.target.codegen.llvm_version_major()}"
    return hashlib.sha256(b"".join([tools.encode(), *(path.read_bytes() for path in _MAKERS)])).hexdigest()[:16]


def by_symbol(kernels: Mapping[str, tirx.PrimFunc], layers: Iterable[Layer]) -> dict[str, tirx.PrimFunc]:
    """The kernels by the symbols of their code; `kernels` are by the names that `layers` call them by.

    Every layer gives its kernel the arguments of its signature: AssertionError otherwise.
    """
    signatures = {name: signature_of(kernel) for name, kernel in kernels.items()}
    require_agreement(signatures, layers)
    return {signature.symbol(name, signatures[name]): kernel for name, kernel in kernels.items()}


def require_agreement(signatures: Mapping[str, str], layers: Iterable[Layer]) -> None:
    """AssertionError if a layer gives its kernel arguments other than those of the signature."""
    for layer in layers:
        given = {layer.kernel: signature.of_layer(layer)}
        if layer.weights and layer.weights.preparation:
            given[layer.weights.preparation.kernel] = signature.of_preparation(layer)
        for kernel, arguments in given.items():
            taken = signatures[kernel]
            assert arguments == taken, f"layer {layer.name} gives its kernel {kernel} ({arguments}), which takes ({taken})"


def compile_module(functions: Mapping[str, tirx.PrimFunc], target: CompileTarget) -> tvm.runtime.Module:
    """A module with these functions, by their symbols."""
    named = {symbol: func.with_attr("global_symbol", symbol) for symbol, func in functions.items()}
    with COMPILING, tvm.transform.PassContext(config=_CONFIG):
        aligned = AlignStack(4 * target.vector_width)(tvm.IRModule(named))
        pipeline = _PIPELINES[bool({_BFLOAT16, _MATRICES} & {*target.features}), target.arch == "aarch64"]
        return tvm.tirx.build(aligned, target=target.tvm_target, pipeline=pipeline)


def compile_object(symbol: str, kernel: tirx.PrimFunc, target: CompileTarget) -> bytes:
    """An object file that defines `symbol`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.o"
        write_object(symbol, kernel, target, path)
        return path.read_bytes()


def write_object(symbol: str, kernel: tirx.PrimFunc, target: CompileTarget, path: Path) -> None:
    """Write an object file that defines `symbol`; its name must end with .o."""
    module = compile_module({symbol: c_code.calling(kernel, symbol)}, target)
    with COMPILING:
        module.write_to_file(str(path))
    c_code.add_code(kernel, symbol, target, path)


def extent(kernel: tirx.PrimFunc) -> int:
    """The size of a kernel: its stores, which take the time of compiling."""
    stores: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(kernel.body, [(tirx.BufferStore, stores.append)])
    return len(stores)


def calls_instructions(kernel: tirx.PrimFunc) -> bool:
    """Whether a kernel calls instructions that only some processors have."""
    found: list[str] = []

    def visit(call: ir.Call) -> None:
        if isinstance(call.op, ir.Op) and call.op.name in _INTRINSICS:
            found.append(tvm.target.codegen.llvm_get_intrinsic_name(int(call.args[0])))

    tvm_ffi.structural_walk(kernel.body, (ir.Call, visit))
    return any(name.startswith(_OF_ONE_ARCHITECTURE) for name in found) or bool(bfloat16.text_of(called_names(kernel.body)))


def static_library(symbol: str, code: bytes, folder: Path) -> tvm.runtime.Module:
    """An object file in `folder`, as a module to be linked into a library."""
    path = folder / f"{symbol}.o"
    path.write_bytes(code)
    return tvm.runtime.load_static_library(str(path), [symbol])


def _pipeline(has_bfloat16: bool, is_aarch64: bool) -> tuple[tvm.transform.Pass, tvm.transform.Pass, tvm.transform.Pass]:
    @tvm.transform.module_pass(opt_level=0, name="flexcomp")
    def lower(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        return tvm.transform.Sequential([HideValues(), *_passes(*_needs(mod), has_bfloat16, is_aarch64)])(mod)

    def finalize() -> tvm.transform.Pass:
        return tvm.transform.Sequential([finalize_host_passes(), ShowValues()])

    return lower, finalize, finalize_device_passes


def _passes(has_blocks: bool, is_foreign: bool, is_flat: bool, has_bfloat16: bool, is_aarch64: bool) -> list[tvm.transform.Pass]:
    """Of TVM's passes those that change a kernel's machine code for the better: each visits the whole kernel, and all together
    take as long as LLVM.
    """
    blocks = [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.LowerMatchBuffer(),
    ]
    return [
        s_tir.transform.CanonicalizeLoop(),
        *blocks * has_blocks,
        s_tir.transform.StmtSimplify(),
        s_tir.transform.AnnotateIrregularLoop(),
        s_tir.transform.LowerOpaqueBlock(),
        *[tirx.transform.FlattenBuffer()] * (not is_flat),
        *[tirx.transform.NarrowDataType(32)] * is_foreign,
        s_tir.transform.LoopPartition(),
        tirx.transform.VectorizeLoop(True),
        *[LowerBFloat16()] * has_bfloat16,
        DefineCalled(lambda names: half.text_of(names, is_aarch64), *[bfloat16.text_of] * has_bfloat16),
        tirx.transform.BF16ComputeLegalize(),
        tirx.transform.StorageRewrite(),
        *[_hoist_branches] * is_foreign,
        tirx.transform.UnrollLoop(),
        *[s_tir.transform.RenormalizeSplitPattern()] * is_foreign,
        tirx.transform.StmtSimplify(),
        s_tir.transform.RewriteUnsafeSelect(),
        tirx.transform.VerifyMemory(),
        tirx.transform.AnnotateEntryFunc(),
        tirx.transform.SplitHostDevice(),
        tirx.transform.MakePackedAPI(),
        tirx.transform.BF16StorageLegalize(),
    ]


@tvm.transform.module_pass(opt_level=0)
def _hoist_branches(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
    """TVM's pass, where there are any: it begins and ends with two that simplify the whole kernel."""
    return s_tir.transform.HoistIfThenElse()(mod) if _all_of(mod, tirx.IfThenElse)[0] else mod


def _needs(mod: tvm.IRModule) -> tuple[bool, bool, bool]:
    """Whether its kernels have blocks, as TVM's scheduling leaves them; whether TVM made them and not one of our families: TVM
    counts in 64 bits, and leaves branches in inner loops; and whether all their buffers are flat.
    """
    kinds = s_tir.SBlock, tirx.For, ir.TensorLoad, tirx.BufferStore, tirx.AllocBuffer, tirx.stmt.DeclBuffer
    blocks, loops, loads, *others = _all_of(mod, *kinds)
    is_foreign = bool(blocks) or any(loop.loop_var.ty.dtype == "int64" for loop in loops)
    buffers = {load.source for load in loads} | {one.buffer for found in others for one in found}
    return bool(blocks), is_foreign, not blocks and all(map(_is_flat, buffers))


def _is_flat(buffer: ir.Var) -> bool:
    """Whether FlattenBuffer would find nothing: its simplifying of every index took a quarter of the time."""
    ty = buffer.ty
    return len(ty.shape) == 1 and not ty.strides and str(ty.elem_offset) == "0" and str(ty.dtype) != "bool"


def _all_of(mod: tvm.IRModule, *kinds: type) -> list[list[Any]]:
    """For each kind the statements and expressions in any of these functions."""
    found: list[list[Any]] = [[] for _ in kinds]
    for func in mod.functions.values():
        tvm_ffi.structural_walk(func.body, [(kind, of_kind.append) for kind, of_kind in zip(kinds, found, strict=True)])
    return found


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


for _kind, _name in _PIPELINES.items():
    register_tir_pipeline(_name, partial(_pipeline, *_kind))
