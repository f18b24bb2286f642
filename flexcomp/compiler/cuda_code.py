"""CUDA C of a kernel, by TVM's TIR passes and code generator, and its launches.

A PrimFunc whose loops are bound to blocks and threads becomes one device function for each of its outermost loop nests. The
host's work is data: the order of launches, with how many blocks and threads, on which of the PrimFunc's
parameters. Barriers are those of the PrimFunc: no pass adds any, and none lets two shared arrays lie in the same place.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.tirx.compilation_pipeline import finalize_device_passes

from flexcomp.program import Extent, Launch
from flexcomp.schedules.cuda import Architecture
from flexcomp.schedules.cuda.arithmetic import PREAMBLE, exact
from flexcomp.schedules.cuda.emit import RESIDENT, ROLLED
from flexcomp.schedules.cuda.instructions import PREAMBLES

_CONFIG = {
    "tirx.disable_cse_tir": True,  # nvcc finds common subexpressions itself
    "tirx.UnrollLoop": {"explicit_unroll": False},  # and unrolls: sources stay short
}
_COMPILE = "tvm_callback_cuda_compile"
_COMPILING = threading.Lock()  # while another function has that name
_AXES = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z")
_NAME = "kernel"
# Threads that a multiprocessor is to hold at least, where a kernel does not say: each may have all the 255 registers of one.
_RESIDENT_THREADS = 256
_SHARED = re.compile(r"__shared__ alignas\(\d+\) (\w+) \w+\[(\d+)\];")
_ITEMSIZES = {"float": 4, "int": 4}  # of arrays that the families share
# Text before the first device function: definitions for compilers of other vendors, and of types that are not used here.
_FIRST_FUNCTION = 'extern "C" __global__'


@dataclass(frozen=True)
class CudaCode:
    """The code of a PrimFunc."""

    source: str  # the device functions
    launches: tuple[Launch, ...]  # in order, each after the end of the previous one
    integers: frozenset[int]  # positions of parameters that are int64 numbers (first, count), not buffers


# Types by the names that TVM's code generator uses.
_TYPES = """\
#include <cstdint>
#include <math_constants.h>
using uint = unsigned int;
using uchar = unsigned char;
using ushort = unsigned short;
"""
# Headers that take as long to read as a kernel to compile, by the text of sources that need them.
_HEADERS = {"half": "cuda_fp16.h", "bfloat16": "cuda_bf16.h"}


def cuda_code(kernel: tirx.PrimFunc, architecture: Architecture, symbol: str = _NAME) -> CudaCode:
    """CUDA C of a kernel whose loops are bound to blocks and threads; its device functions are called `symbol`_….

    Raises AssertionError for a kernel without bound loops, and TVM's error for one that touches memory outside of these.
    """
    target = tvm.target.Target({"kind": "cuda", "arch": architecture.name, "host": {"kind": "llvm"}})
    module = tvm.IRModule({symbol: exact(kernel).with_attr("global_symbol", symbol)})
    with tvm.transform.PassContext(config=_CONFIG):
        module = tirx.transform.BindTarget(target)(module)
        module = tvm.transform.Sequential(_passes(_has_blocks(module)))(module)
        launches = _launches(module[symbol])
        module = tirx.transform.MakePackedAPI()(module)
        module = tirx.transform.BF16StorageLegalize()(module)
        device = {var: func for var, func in module.functions.items() if var.name_hint != symbol}
        text = _source(finalize_device_passes()(tvm.IRModule(device)), target)
    integers = frozenset(i for i, param in enumerate(kernel.params) if not tirx.is_buffer_var(param))
    attrs = dict(kernel.attrs.items()) if kernel.attrs is not None else {}
    resident = int(attrs.get(RESIDENT, _RESIDENT_THREADS))
    return CudaCode(_functions(text, architecture, resident), launches, integers)


def _source(device: tvm.IRModule, target: tvm.target.Target) -> str:
    """CUDA C of device functions. Where TVM finds a GPU it would compile them as well, for one that may be another: not here."""
    with _COMPILING:
        compile_ = tvm.get_global_func(_COMPILE)
        tvm.register_global_func(_COMPILE, lambda code: b"", override=True)
        try:
            return tvm.get_global_func("target.build.cuda")(device, target).inspect_source()
        finally:
            tvm.register_global_func(_COMPILE, compile_, override=True)


def _has_blocks(mod: tvm.IRModule) -> bool:
    """As TVM's scheduling leaves them; kernels of our families have none."""
    found: list[s_tir.SBlock] = []
    for func in mod.functions.values():
        tvm_ffi.structural_walk(func.body, [(s_tir.SBlock, found.append)])
    return bool(found)


def _passes(has_blocks: bool) -> list[tvm.transform.Pass]:
    """CompactBufferAllocation alone would take two thirds of the time, and only leave the last element off some shared arrays."""
    blocks = [
        s_tir.transform.LowerInitBlock(),
        s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
        s_tir.transform.ConvertBlocksToOpaque(),
        s_tir.transform.LiftThreadBinding(),
        s_tir.transform.CompactBufferAllocation(),
        s_tir.transform.UnifyThreadBinding(),
        s_tir.transform.LowerMatchBuffer(),
    ]
    return [
        s_tir.transform.CanonicalizeLoop(),
        *blocks * has_blocks,
        s_tir.transform.StmtSimplify(),
        s_tir.transform.LowerOpaqueBlock(),
        tirx.transform.FlattenBuffer(),
        tirx.transform.BF16ComputeLegalize(),
        tirx.transform.NarrowDataType(32),
        tirx.transform.VectorizeLoop(True),
        tirx.transform.UnrollLoop(),
        s_tir.transform.RenormalizeSplitPattern(),
        tirx.transform.StmtSimplify(),
        tirx.transform.RemoveNoOp(),
        s_tir.transform.RewriteUnsafeSelect(),
        tirx.transform.VerifyMemory(),
        tirx.transform.AnnotateEntryFunc(),
        tirx.transform.SplitHostDevice(),
    ]


def _functions(text: str, architecture: Architecture, resident: int) -> str:
    """The device functions without the text before, and without their declarations."""
    text = re.sub(rf"^{re.escape(_FIRST_FUNCTION)}[^;{{]*;\n", "", text, flags=re.MULTILINE)
    text = re.sub(rf"\b{ROLLED}\(\);", "#pragma unroll 1", text)
    functions = (_FIRST_FUNCTION + part.rstrip() for part in text.split(_FIRST_FUNCTION)[1:])
    return "\n\n".join(_with_bounds(function, architecture, resident) for function in functions) + "\n"


def _with_bounds(function: str, architecture: Architecture, resident: int) -> str:
    """The function with the number of blocks that a multiprocessor is to hold, in addition to that of threads.

    Without this number ptxas spills registers to fit more, or takes all registers for one.
    """
    shared_nbytes = sum(_ITEMSIZES[found[1]] * int(found[2]) for found in _SHARED.finditer(function))

    def bounds(found: re.Match) -> str:
        blocks = resident // int(found[1])
        if shared_nbytes:
            blocks = min(blocks, architecture.shared_nbytes // shared_nbytes)
        return f"__launch_bounds__({found[1]}, {max(1, blocks)})"

    return re.sub(r"__launch_bounds__\((\d+)\)", bounds, function, count=1)


def _launches(host: tirx.PrimFunc) -> tuple[Launch, ...]:
    """The launches of the host part of a function."""
    seen: dict[ir.Var, ir.Var] = {}
    found: list[Launch] = []
    positions = {param: position for position, param in enumerate(host.params)}

    def note_view(view: tirx.stmt.DeclBuffer) -> None:
        seen[view.buffer] = view.data.args[0]

    def position(argument: ir.Expr) -> int:
        variable = argument.args[0] if isinstance(argument, ir.Call) else argument
        while variable in seen:
            variable = seen[variable]
        assert variable in positions, f"a device function takes {argument}, which is no parameter of the kernel"
        return positions[variable]

    def note_call(call: ir.Call) -> None:
        if not isinstance(call.op, ir.Op) or call.op.name != "tirx.call_ffi_kernel":
            return
        axes = [str(axis) for axis in call.attrs.launch_params]
        name, *arguments = call.args
        extents = dict.fromkeys(_AXES, Extent(1))
        extents |= {axis: _extent(value, host) for axis, value in zip(axes, arguments[-len(axes) :], strict=True)}
        blocks, threads = ([extents[axis] for axis in part] for part in (_AXES[:3], _AXES[3:]))
        taken = tuple(position(argument) for argument in arguments[: -len(axes)])
        assert not any(extent.per_count for extent in threads), "a block has as many threads for every count"
        found.append(Launch(name.value, taken, tuple(blocks), tuple(extent.fixed for extent in threads)))

    tvm_ffi.structural_walk(host.body, [(tirx.stmt.DeclBuffer, note_view)])
    tvm_ffi.structural_walk(host.body, [(ir.Call, note_call)])
    assert found, "the kernel launches nothing"
    return tuple(found)


def _extent(value: ir.Expr, host: tirx.PrimFunc) -> Extent:
    """A number of blocks, which may grow with the last number that the function takes."""
    if isinstance(value, tirx.IntImm):
        return Extent(int(value))
    count = [param for param in host.params if not tirx.is_buffer_var(param)][-1]

    def at(number: int) -> int:
        values = tvm_ffi.structural_map(value, (ir.Var, lambda v: tirx.const(number, v.ty.dtype) if v.same_as(count) else v))
        return int(sym.Analyzer().simplify(values))

    extent = Extent(at(0), at(1) - at(0))
    assert all(extent.of(number) == at(number) for number in (2, 7)), f"{value} blocks are not linear in the count"
    return extent


def translation_unit(codes: Sequence[CudaCode]) -> str:
    """The source for nvcc: the device functions of several kernels."""
    sources = [code.source for code in codes]

    def used(word: str) -> bool:
        return any(word in source for source in sources)

    headers = [f"#include <{name}>" for word, name in _HEADERS.items() if used(word)]
    return "\n".join([*headers, _TYPES, PREAMBLE, *(text for word, text in PREAMBLES.items() if used(word)), *sources])
