"""How layers are cut into steps, and which pages of the weights file a step needs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from ..errors import Unplaceable
from ..problem import PAGE, Layer, Problem, Step, Weights


def file_range(weights: Weights, first: int, count: int) -> tuple[int, int]:
    """(source, nbytes) of the pages of the data section, or of a form, that hold blocks [first, first + count)."""
    begin = weights.offset + first * weights.block_nbytes
    source = begin - begin % PAGE
    end = begin + count * weights.block_nbytes
    return source, -(-end // PAGE) * PAGE - source


def cut(blocks: int, slices: int) -> list[tuple[int, int]]:
    """`blocks` in `slices` contiguous parts (first, count) whose counts differ by at most one."""
    edges = [blocks * i // slices for i in range(slices + 1)]
    return [(first, last - first) for first, last in pairwise(edges)]


def largest_segment(weights: Weights, slices: int) -> int:
    """Bytes of the largest segment when the layer is cut into `slices`."""
    return max(file_range(weights, first, count)[1] for first, count in cut(weights.blocks, slices))


@lru_cache(maxsize=4096)
def finest_segment(layer: Layer) -> int:
    """Bytes of the largest segment when the layer is cut block by block; 0 without weights."""
    return largest_segment(layer.weights, layer.weights.blocks) if layer.weights else 0


def slice_count(weights: Weights, limit: int) -> int:
    """The smallest number of equal slices whose segments all fit in `limit` bytes.

    Raises Unplaceable if a single block does not fit.
    """
    whole = max(1, min(weights.blocks, limit // weights.block_nbytes))  # blocks that fit at the most
    for slices in range(-(-weights.blocks // whole), weights.blocks + 1):
        if largest_segment(weights, slices) <= limit:
            return slices
    finest = largest_segment(weights, weights.blocks)
    raise Unplaceable(f"one block of the weights needs {finest:,} B, there are {max(limit, 0):,} B")


def live_bytes(problem: Problem) -> list[int]:
    """Per layer: the bytes of all live buffers."""
    change = [0] * (len(problem.layers) + 1)
    for buffer in problem.buffers:
        change[buffer.start] += buffer.nbytes
        change[buffer.end] -= buffer.nbytes
    result, now = [], 0
    for delta in change[:-1]:
        now += delta
        result.append(now)
    return result


def slice_to_room(problem: Problem, room: Sequence[int]) -> tuple[Step, ...]:
    """Steps such that every segment of layer l fits in `room[l]` bytes, with as few slices as possible."""
    steps = []
    for index, (layer, limit) in enumerate(zip(problem.layers, room, strict=True)):
        try:
            slices = slice_count(layer.weights, limit) if layer.weights else 1
        except Unplaceable as error:
            raise Unplaceable(f"layer {layer.name}: {error}") from None
        steps += [Step(index, first, count) for first, count in cut(layer.blocks, slices)]
    return tuple(steps)


def slice_layers(problem: Problem, limit: int, segments_at_once: int = 1) -> tuple[Step, ...]:
    """Steps whose working sets (live buffers, scratch, segment) fit in `limit` bytes.

    As few slices as possible, of equal sizes. With `segments_at_once` > 1 the slices of a layer are so small
    that as many segments fit at once, so that its loading overlaps with its computing; a layer whose
    single block is too large for that is cut block by block. Only layers with more than one block are
    cut. Raises Unplaceable where not even one block fits. FlexNN, section 3.2 (weights slicing).
    """
    room = []
    for layer, live in zip(problem.layers, live_bytes(problem), strict=True):
        free = limit - live - layer.scratch
        if free < 0:
            needs = f"activations and scratch need {live + layer.scratch:,} B"
            raise Unplaceable(f"layer {layer.name}: {needs}, there are {limit:,} B")
        room.append(min(free, max(finest_segment(layer), free // segments_at_once)))
    return slice_to_room(problem, room)
