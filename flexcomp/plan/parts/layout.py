"""Where buffers and scratch lie, such that every layer keeps a place for at least its finest segment.

The joint formulation: buffers, scratch and one segment per layer (without preloading, cut as finely as
the layer allows) are placed together as tensor usage records. That gives the smallest arenas, and
makes planning safe: a step always finds a place for its weights in the end, whichever weights were
preloaded, because buffers and scratch do not move and earlier segments are over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..placement import Record, lowest_fit, swiftly_fits, tight
from ..problem import PAGE, Problem, of_problem
from .pages import pages, span, touched
from .slicing import finest_segment


@dataclass(frozen=True)
class Layout:
    """Addresses in bytes, for any way of slicing."""

    buffer_at: tuple[int, ...]  # one per buffer
    scratch_at: tuple[int, ...]  # one per layer, the same in all its steps; -1 without scratch
    occupied: tuple[tuple[tuple[int, int], ...], ...]  # per layer: (address, nbytes) of buffers and scratch, by address
    top: int  # end of the last buffer or scratch
    nbytes: int  # arena that also holds the finest segment of every layer; multiple of PAGE

    def free_pages(self, arena: int) -> list[int]:
        """Per layer: the pages of an arena of `arena` bytes that neither buffers nor scratch touch."""
        every = span(0, arena // PAGE)
        result = []
        for intervals in self.occupied:
            taken = 0
            for address, nbytes in intervals:
                taken |= touched(address, nbytes)
            result.append(every & ~taken)
        return result

    def room(self, arena: int) -> list[int]:
        """Per layer: the bytes of the largest page-aligned gap in an arena of `arena` bytes."""
        return [max(high - low for low, high in _gaps(intervals, arena)) for intervals in self.occupied]


def _gaps(intervals: Sequence[tuple[int, int]], arena: int) -> list[tuple[int, int]]:
    """Page-aligned (low, high) between intervals sorted by address, below `arena`; maybe empty ones."""
    result, low = [], 0
    for address, nbytes in (*intervals, (arena, 0)):
        result.append((low, max(low, address - address % PAGE)))
        low = max(low, -(-(address + nbytes) // PAGE) * PAGE)
    return result


def layout_of(problem: Problem, buffer_at: Sequence[int], scratch_at: Sequence[int]) -> Layout:
    """The layout with these addresses; `scratch_at` per layer."""
    live: list[list[tuple[int, int]]] = [[] for _ in problem.layers]
    for buffer, address in zip(problem.buffers, buffer_at, strict=True):
        for layer in range(buffer.start, buffer.end) if buffer.nbytes else ():
            live[layer].append((address, buffer.nbytes))
    for layer, address in enumerate(scratch_at):
        if address >= 0:
            live[layer].append((address, problem.layers[layer].scratch))
    occupied = tuple(tuple(sorted(intervals)) for intervals in live)
    of_buffers = [at + buffer.nbytes for at, buffer in zip(buffer_at, problem.buffers, strict=True)]
    of_scratch = [at + layer.scratch for at, layer in zip(scratch_at, problem.layers, strict=True)]
    arena = 0
    for layer, intervals in zip(problem.layers, occupied, strict=True):
        finest = finest_segment(layer)
        end = max((address + nbytes for address, nbytes in intervals), default=0)
        fits = [low + finest for low, high in _gaps(intervals, end) if high - low >= finest]
        arena = max(arena, end, min(fits, default=pages(end) * PAGE + finest) if finest else 0)
    top = max((*of_buffers, *of_scratch), default=0)
    return Layout(tuple(buffer_at), tuple(scratch_at), occupied, top, pages(arena) * PAGE)


def joint_records(problem: Problem) -> list[Record]:
    """Buffers, then the scratch of each layer, then the finest segment of each layer; time in layers."""
    records = [Record(buffer.start, buffer.end, buffer.nbytes, buffer.align) for buffer in problem.buffers]
    records += [Record(index, index + 1, layer.scratch) for index, layer in enumerate(problem.layers)]
    records += [Record(index, index + 1, finest_segment(layer), PAGE) for index, layer in enumerate(problem.layers)]
    return records


def _of_offsets(problem: Problem, offsets: Sequence[int]) -> Layout:
    count = len(problem.buffers)
    scratch = [
        at if layer.scratch else -1
        for layer, at in zip(problem.layers, offsets[count : count + len(problem.layers)], strict=True)
    ]
    return layout_of(problem, offsets[:count], scratch)


@of_problem
def smallest_layout(problem: Problem) -> Layout:
    """The layout that needs the smallest arena."""
    return _of_offsets(problem, tight(joint_records(problem), PAGE).offsets)


def fits(problem: Problem, arena: int) -> bool:
    """Whether `smallest_layout` needs at most `arena` bytes; mostly told without looking for that layout."""
    swiftly = swiftly_fits(joint_records(problem), arena // PAGE * PAGE, PAGE)
    return smallest_layout(problem).nbytes <= arena if swiftly is None else swiftly


@of_problem
def compact_layout(problem: Problem) -> Layout:
    """Buffers and scratch as low as possible, without regard to weights: more contiguous space above."""
    records = joint_records(problem)[: len(problem.buffers) + len(problem.layers)]
    return _of_offsets(problem, tight(records, PAGE).offsets)


@of_problem
def settling_layout(problem: Problem) -> Layout:
    """Buffers in order of their writing, each as low as possible: late layers, which are small, stay low."""
    records = joint_records(problem)[: len(problem.buffers) + len(problem.layers)]
    order = sorted(
        range(len(records)),
        key=lambda i: (records[i].start, records[i].start - records[i].end, -records[i].nbytes, i),
    )
    return _of_offsets(problem, lowest_fit(records, order).offsets)
