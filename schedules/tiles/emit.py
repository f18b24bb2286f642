"""Small pieces of TIR that the kernel families share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from . import bfloat16

# Work below which other threads cost more than is gained: a launch takes some microseconds.
PARALLEL_FLOPS = 400_000
CACHE_LINE = 16  # floats
# Floats that weights are prefetched ahead of their use: in the second-level cache more than memory's latency takes to
# read, in the first more than the second's.
_FAR_AHEAD = 2048
_NEAR_AHEAD = 512


def vector(index: tirx.Expr | int, lanes: int):
    """Index of `lanes` consecutive elements; a scalar index for one lane."""
    return index if lanes == 1 else T.ramp(index, 1, lanes)


def strided(begin: tirx.Expr | int, stride: int, lanes: int):
    """Index of `lanes` elements that are so far apart."""
    return begin if lanes == 1 else T.ramp(begin, stride, lanes)


def spread(value: tirx.Expr, lanes: int) -> tirx.Expr:
    """A scalar in every lane."""
    return value if lanes == 1 else T.broadcast(value, lanes)


def zero(lanes: int, dtype: str = "float32") -> tirx.Expr:
    return spread(tirx.const(0.0, dtype), lanes)


def converted(value: tirx.Expr, lanes: int, source: str, target: str) -> tirx.Expr:
    """A vector of an element type in another."""
    return value if source == target else tirx.Cast(target if lanes == 1 else f"{target}x{lanes}", value)


def loop(extent, flops: int) -> AbstractContextManager:
    """A loop over independent tasks of `flops` operations in all: parallel if that pays."""
    return T.parallel(extent) if flops >= PARALLEL_FLOPS else T.serial(extent)


@contextmanager
def in_slots(tasks, slots: int, around: Callable[[object], AbstractContextManager] = nullcontext) -> Iterator[tuple]:
    """(task, slot) for every task: slots run in parallel, each with room of its own and an equal share of the tasks.

    All tasks of a slot run within `around(slot)`.
    """
    if slots == 1:
        with around(0), T.serial(tasks) as task:
            yield task, 0
        return
    each = T.bind((tasks + (slots - 1)) // slots)
    with T.parallel(slots) as slot:
        stop = T.bind(tirx.min((slot + 1) * each, tasks))
        with around(slot), T.serial(slot * each, stop) as task:
            yield task, slot


def prefetch(buffer, index, floats: int, *, write: bool = False, level: int = 1) -> None:
    """Ask for the cache lines of `floats` consecutive elements from `index` on, into the cache of that level.

    The index may lie outside of the buffer: nothing is read that a program can see.
    """
    for line in range(math.ceil(floats / CACHE_LINE)):
        T.evaluate(prefetch_line(buffer, index + line * CACHE_LINE, write=write, level=level))


def prefetch_line(buffer, index, *, write: bool = False, level: int = 1) -> tirx.Expr:
    """The call that asks for the cache line of one element."""
    arguments = [tirx.const(number, "int32") for number in (int(write), 4 - level, 1)]
    return tirx.call_llvm_intrin("void", "llvm.prefetch", tirx.address_of(buffer[index]), *arguments)


def prefetch_ahead(buffer, index, floats: int) -> None:
    """Ask for weights that a loop reads in order: now at `index`, and `floats` in each step."""
    prefetch(buffer, index + _FAR_AHEAD, floats, level=2)
    prefetch_near(buffer, index, floats)


def prefetch_near(buffer, index, floats: int) -> None:
    """Ask for weights of the second-level cache that a loop reads in order: now at `index`, and `floats` in each step."""
    prefetch(buffer, index + _NEAR_AHEAD, floats)


def maybe_serial(start, stop) -> AbstractContextManager:
    """A serial loop, or no loop when the bounds are constant and one apart."""
    if isinstance(start, int) and isinstance(stop, int) and stop - start == 1:
        return nullcontext(start)
    return T.serial(start, stop)


def flat(buffer, extent: int, dtype: str = "float32"):
    """The same memory as one dimension."""
    return T.decl_buffer((extent,), dtype, data=buffer.data)


class Accumulators:
    """A register tile: `rows` × `pieces` vectors. Buffers this small become registers once loops are unrolled."""

    dtype = "float32"

    def __init__(self, rows: int, pieces: list[tuple[int, int]]) -> None:
        self.pieces = pieces
        lanes = pieces[-1][0] + pieces[-1][1]
        self._rows = [T.alloc_buffer((lanes,), self.dtype, scope="global") for _ in range(rows)]

    def fill(self, rows: int, value: Callable[[int, int], tirx.Expr]) -> None:
        """Set every vector of the first `rows` rows to `value(start, lanes)`."""
        for row in self._rows[:rows]:
            for start, lanes in self.pieces:
                T.buffer_store(row, value(start, lanes), [vector(start, lanes)])

    def assign(self, rows: int, value: Callable[[int, int, int], tirx.Expr]) -> None:
        """Set every vector of the first `rows` rows to `value(row, start, lanes)`."""
        for row in range(rows):
            for start, lanes in self.pieces:
                T.buffer_store(self._rows[row], value(row, start, lanes), [vector(start, lanes)])

    def accumulate(
        self,
        rows: list[int],
        left: Callable[[int, int, int], tirx.Expr],
        right: Callable[[int, int], tirx.Expr],
    ) -> None:
        """Add `left(row, start, lanes) * right(start, lanes)`."""
        for row in rows:
            for start, lanes in self.pieces:
                self.add_product(row, start, lanes, left(row, start, lanes), right(start, lanes))

    def begin_steps(self) -> None:
        """What comes before steps whose factors are loaded together."""

    def add_product(self, row: int, start: int, lanes: int, left: tirx.Expr, right: tirx.Expr) -> None:
        """Add `left * right` to one vector."""
        self.add_to(row, start, lanes, left * right)

    def add_to(self, row: int, start: int, lanes: int, value: tirx.Expr) -> None:
        """Add to one vector."""
        self.assign_to(row, start, lanes, self.get(row, start, lanes) + value)

    def assign_to(self, row: int, start: int, lanes: int, value: tirx.Expr) -> None:
        """Set one vector."""
        T.buffer_store(self._rows[row], value, [vector(start, lanes)])

    def add(self, rows: int, other: Accumulators) -> None:
        """Add the first `rows` rows of another tile of the same shape, whose sums may be of a narrower type."""
        for row in range(rows):
            for start, lanes in self.pieces:
                self.add_to(row, start, lanes, converted(other.get(row, start, lanes), lanes, other.dtype, self.dtype))

    def update(self, start: int, lanes: int, new: Callable[[tirx.Expr], tirx.Expr]) -> None:
        """Replace a vector of the first row by `new(vector)`."""
        index = vector(start, lanes)
        T.buffer_store(self._rows[0], new(self._rows[0][index]), [index])

    def get(self, row: int, start: int, lanes: int) -> tirx.Expr:
        return self._rows[row][vector(start, lanes)]


class PairAccumulators(Accumulators):
    """A register tile of float32. Factors are lanes of int32, each a pair of bfloat16."""

    def add_product(self, row: int, start: int, lanes: int, left: tirx.Expr, right: tirx.Expr) -> None:
        self.assign_to(row, start, lanes, bfloat16.dot(self.get(row, start, lanes), left, right, lanes))
