"""Small pieces of TIR that the families for GPUs share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import vector
from .architecture import WARP

LANES = 4  # floats that a thread loads and stores at once: 128 bits
# An attribute of kernels, for ptxas: threads that a multiprocessor is to hold at least, which bounds the registers of each.
RESIDENT = "flexcomp.resident_threads"
ROLLED = "keep_rolled"  # a call that stands for a pragma, of which TVM has none
_ALL_LANES = 0xFFFFFFFF


@contextmanager
def launched(blocks: Sequence, threads: int) -> Iterator[tuple[list[tirx.Var], tirx.Var]]:
    """(indices of the block along each axis, the first of which changes fastest, index of the thread) of a device function.

    All axes are one for the device, whose others end at 65,535.
    """
    with T.launch_thread("blockIdx.x", math.prod(blocks)) as block, T.launch_thread("threadIdx.x", threads) as thread:
        *inner, _ = blocks
        indices = []
        for extent in inner:
            indices.append(T.bind(block % extent))
            block = T.bind(block // extent)
        yield [*indices, block], thread


def shared(extent: int, dtype: str = "float32") -> tirx.Buffer:
    """An array that the threads of a block share."""
    return T.alloc_buffer((extent,), dtype, scope="shared")


def registers(extent: int, dtype: str = "float32") -> tirx.Buffer:
    """An array of a thread's own, in registers if all its indices are known once loops are unrolled."""
    return T.alloc_buffer((extent,), dtype, scope="local")


def kept(value) -> ir.Expr:
    """A number of a thread's own in a register: the compilers would compute the number again at each use in a loop.

    Only nvcc is asked by the function that is called; TVM does not look into registers.
    """
    place = registers(1, "int32")
    T.buffer_store(place, tirx.call_extern("int32", "kept", value), [0])
    return place[0]


def keep_rolled() -> None:
    """The loop that follows stays rolled: nvcc unrolls short loops, and then spills the loads of all rounds."""
    T.evaluate(tirx.call_extern("void", ROLLED))


def barrier() -> None:
    """Wait for all threads of the block, and for their writes to shared arrays."""
    T.evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))


def warp_barrier() -> None:
    """Wait for all threads of the warp, and for their writes to shared arrays: shuffles do not promise that."""
    T.evaluate(tirx.call_extern("void", "__syncwarp"))  # TVM's own barrier of warps emits nothing


def copy(target: tirx.Buffer, at, source: tirx.Buffer, start, lanes: int = LANES) -> None:
    """target[at : at + lanes] = source[start : start + lanes], at once."""
    T.buffer_store(target, source[vector(start, lanes)], [vector(at, lanes)])


def fill(target: tirx.Buffer, extent: int, value: float = 0.0) -> None:
    with T.unroll(extent) as i:
        T.buffer_store(target, tirx.const(value, "float32"), [i])


@contextmanager
def only_if(condition: ir.Expr | bool) -> Iterator[None]:
    """The statements of threads for which the condition holds; of all threads if the condition is True."""
    if condition is True:
        yield
        return
    with T.If(condition), T.Then():
        yield


def both(*conditions: ir.Expr | bool) -> ir.Expr | bool:
    """Whether all of them hold, True left out."""
    asked = [condition for condition in conditions if condition is not True]
    if not asked:
        return True
    result = asked[0]
    for condition in asked[1:]:
        result = tirx.And(result, condition)
    return result


def shuffled(value: ir.Expr, distance: int) -> ir.Expr:
    """The value of the thread of the warp whose index differs in the bits of `distance`; all threads of the warp come here.

    Not pure: TVM moves pure calls to their uses, even where only some threads come.
    """
    return tirx.call_extern("float32", "__shfl_xor_sync", tirx.const(_ALL_LANES, "uint32"), value, distance, WARP)


def across_warp(value: ir.Expr, combine: Callable[[ir.Expr, ir.Expr], ir.Expr], lanes: int = WARP) -> ir.Expr:
    """The values of `lanes` neighbouring threads, reduced by `combine`; each thread gets the result."""
    kept = registers(1)
    T.buffer_store(kept, value, [0])
    distance = lanes // 2
    while distance:
        T.buffer_store(kept, combine(kept[0], shuffled(kept[0], distance)), [0])
        distance //= 2
    return kept[0]


def across_block(
    value: ir.Expr,
    combine: Callable[[ir.Expr, ir.Expr], ir.Expr],
    thread,
    threads: int,
    room: tirx.Buffer,
    *,
    in_use: bool = False,
) -> ir.Expr:
    """The values of all threads of a block, reduced by `combine`; each thread gets the result.

    `room` has a float for each warp; with `in_use`, threads may still be reading `room`.
    """
    value = across_warp(value, combine)
    warps = threads // WARP
    if warps == 1:
        return value
    if in_use:
        barrier()
    with only_if(thread % WARP == 0):
        T.buffer_store(room, value, [thread // WARP])
    barrier()
    result = room[0]
    for warp in range(1, warps):
        result = combine(result, room[warp])
    return T.bind(result)


def within(index, extent: int, unit: int):
    """Whether an index of a tile exists; True if all do, as tiles of `unit` fill the extent."""
    return True if extent % unit == 0 else index < extent


def ceil_div(a, b: int):
    return math.ceil(a / b) if isinstance(a, int) else (a + (b - 1)) // b
