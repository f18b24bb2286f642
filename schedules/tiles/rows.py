"""How kernels cover a contiguous row with vectors, tails included, and reduce it in registers.

A row of `extent` elements is covered by full vectors and, if a rest remains, by one more vector
that ends with the row and so overlaps its predecessor. Rows shorter than a vector use narrower ones. Writing an
element twice does no harm; where elements must count once, `RowCover.once` blends the overlap away with a constant
mask. So there is neither a scalar tail nor a predicate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from .emit import spread, vector

# Independent accumulators of a reduction: an addition takes 3 to 4 cycles, two can start in each.
_CHAINS = 4


def floor_power_of_two(value: int) -> int:
    """The largest power of two that is at most `value` >= 1."""
    return 1 << (value.bit_length() - 1)


@dataclass(frozen=True)
class RowCover:
    """Vectors of `lanes` elements that cover a row: `full` of them from 0 on and, if `overlap`, one at the end."""

    extent: int  # elements of the row
    lanes: int
    full: int
    overlap: int  # leading lanes of the last vector that an earlier one covers already; 0: there is none

    @property
    def last(self) -> int:
        """First element of the overlapping vector."""
        return self.extent - self.lanes

    def once(self, value: ir.Expr, neutral: float | ir.Expr) -> ir.Expr:
        """`value` of the overlapping vector with `neutral` in the lanes that were counted before."""
        lane = vector(tirx.const(0, "int32"), self.lanes)
        if not isinstance(neutral, ir.Expr):
            neutral = spread(tirx.const(neutral, value.ty.dtype.with_lanes(1)), self.lanes)
        return tirx.Select(lane >= spread(tirx.const(self.overlap, "int32"), self.lanes), value, neutral)


def cover(extent: int, width: int) -> RowCover:
    """The cover of a row of `extent` >= 1 elements with vectors of at most `width` lanes."""
    lanes = min(floor_power_of_two(width), floor_power_of_two(extent))
    full, rest = divmod(extent, lanes)
    return RowCover(extent, lanes, full, lanes - rest if rest else 0)


def _unrolled(count: int, unroll: int) -> Iterator[tuple[ir.Expr | int, int]]:
    """(index of a vector, chain) for `count` vectors: a loop over `unroll` at a time, then the rest."""
    if count > unroll:
        with T.serial(0, count // unroll) as i:
            for chain in range(unroll):
                yield i * unroll + chain, chain
        start = count // unroll * unroll
    else:
        start = 0
    for index in range(start, count):
        yield index, index - start


def for_each_vector(row: RowCover, body: Callable[[ir.Expr | int, bool], None], unroll: int = _CHAINS) -> None:
    """Emit `body(first element, is the overlapping one)` for every vector of the row."""
    for index, _ in _unrolled(row.full, unroll):
        body(index * row.lanes, False)
    if row.overlap:
        body(row.last, True)


def reduce_row(
    row: RowCover,
    value: Callable[[ir.Expr | int, bool], ir.Expr],
    combine: Callable[[ir.Expr, ir.Expr], ir.Expr],
    neutral: float,
    is_idempotent: bool = False,
) -> ir.Expr:
    """Emit a float32 reduction of the row; returns a load of the scalar result.

    `value(first element, is the overlapping one)` gives a vector of values and may emit statements first.
    """
    lanes = row.lanes
    chains = min(_CHAINS, row.full)
    accumulator = T.alloc_buffer((lanes * chains,), "float32", scope="global")

    def at(chain: int) -> ir.Expr:
        return vector(chain * lanes, lanes)

    def add(chain: int, term: ir.Expr) -> None:
        T.buffer_store(accumulator, combine(accumulator[at(chain)], term), [at(chain)])

    for chain in range(chains):
        T.buffer_store(accumulator, spread(tirx.const(neutral, "float32"), lanes), [at(chain)])
    for index, chain in _unrolled(row.full, chains):
        add(chain, value(index * lanes, False))
    if row.overlap:
        term = value(row.last, True)
        add(0, term if is_idempotent else row.once(term, neutral))
    for chain in range(1, chains):
        add(0, accumulator[at(chain)])
    while lanes > 1:
        lanes //= 2
        halves = accumulator[vector(0, lanes)], accumulator[vector(lanes, lanes)]
        T.buffer_store(accumulator, combine(*halves), [vector(0, lanes)])
    return accumulator[0]
