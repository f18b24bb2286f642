"""SwapNet's planner: the network in blocks of whole layers, with two blocks in the arena at a time.

Wang et al., "SwapNet: Efficient Swapping for DNN Inference on Edge AI Devices Beyond the Memory Budget" (2024),
section 6. While a block is computed the next one is swapped in, once the previous one is out. So the load of
block i + 1 starts when the computing of block i starts, after block i has been read and block i - 1 computed:

    t = t_in(1) + sum over i of max(t_ex(i), t_in(i + 1)) + t_ex(n),    s(i) + s(i + 1) <= the budget without delta

That is the objective of Equations 3 and 4, where t_in is the storage's overhead and the time to read the block
(alpha s + beta d with one load in place of d references; the arena needs no output delay), t_ex the layers'
times, and delta the activations and scratch. The paper takes the smallest number of blocks that the budget allows and
looks the partition up in a table; here dynamic programming goes through all partitions into any number of blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np

from ..errors import Unplaceable
from ..loops import in_python
from ..native import block_starts
from ..parts.assemble import Place, assemble
from ..parts.layout import compact_layout
from ..parts.pages import pages
from ..parts.pieces import join, pieces_of
from ..problem import PAGE, Plan, Problem, Step, Storage


@dataclass(frozen=True)
class Block:
    """Consecutive layers [start, stop) that are swapped in together."""

    start: int
    stop: int


def swapnet(problem: Problem, budget: int) -> Plan:
    """The plan for a budget in bytes. Raises Unplaceable if no partition fits: layers are not cut."""
    layout = compact_layout(problem)
    steps = tuple(Step(index, 0, layer.blocks) for index, layer in enumerate(problem.layers))
    bottom = pages(max((at + nbytes for intervals in layout.occupied for at, nbytes in intervals), default=0))
    arena = budget // PAGE
    if bottom > arena:
        raise Unplaceable(f"activations and scratch need {bottom * PAGE:,} B")
    single = pieces_of(problem, steps)
    sizes = [0] * len(steps)
    for piece in single:
        sizes[piece.step] = piece.nbytes
    blocks = partition(problem, sizes, (arena - bottom) * PAGE)
    of_block = [
        join([piece for piece in single if block.start <= piece.step < block.stop], [budget] * len(steps), budget)
        for block in blocks
    ]
    # blocks lie in turn at the two ends of the remaining space, and two neighbours fit together
    places = []
    for number, inside in enumerate(of_block):
        first = bottom if number % 2 == 0 else arena - sum(piece.pages for piece in inside)
        for piece in inside:
            places.append(Place(blocks[number - 1].start if number else 0, first))
            first += piece.pages
    scratch_at = [layout.scratch_at[step.layer] for step in steps]
    return assemble(problem, "swapnet", budget, steps, layout.buffer_at, scratch_at, list(chain(*of_block)), places)


def partition(problem: Problem, sizes: list[int], room: int) -> list[Block]:
    """The blocks of least predicted latency such that any two neighbours fit in `room` bytes; `sizes` per layer."""
    count = len(sizes)
    if not count:
        return []
    at = np.concatenate([[0], np.cumsum(sizes)])
    seconds = np.concatenate([[0.0], np.cumsum([layer.seconds for layer in problem.layers])])
    starts = _starts(at, seconds, problem.storage, room) if in_python() else block_starts(at, seconds, problem.storage, room)
    if not starts:
        raise Unplaceable(f"no two blocks of layers fit in {room:,} B beside the activations; SwapNet cuts no layer")
    return [Block(start, stop) for start, stop in pairwise([*starts, count])]


def _starts(at: np.ndarray, seconds: np.ndarray, storage: Storage, room: int) -> list[int]:
    """The first layers of the blocks, of bytes and seconds summed up to each layer; none if no partition fits."""
    count = len(at) - 1

    def swap_in(start: int, stops: np.ndarray) -> np.ndarray:
        nbytes = at[stops] - at[start]
        return np.where(nbytes > 0, storage.single_s + nbytes / storage.bandwidth, 0.0)

    # latency[a, b]: until the computing of block [a, b) starts; previous[a, b]: the start of the previous block
    latency = np.full((count + 1, count + 1), np.inf)
    previous = np.full((count + 1, count + 1), -1)
    stops = np.arange(1, count + 1)
    fits = at[stops] <= room
    latency[0, 1:] = np.where(fits, swap_in(0, stops), np.inf)
    for start in range(1, count):
        begins = np.arange(start)
        stops = np.arange(start + 1, count + 1)
        both = (at[start] - at[begins])[:, None] + (at[stops] - at[start])[None, :] <= room
        during = np.maximum((seconds[start] - seconds[begins])[:, None], swap_in(start, stops)[None, :])
        total = np.where(both, latency[begins, start][:, None] + during, np.inf)
        best = np.argmin(total, axis=0)
        latency[start, stops] = total[best, np.arange(len(stops))]
        previous[start, stops] = best
    starts = np.arange(count)
    whole = latency[starts, count] + (seconds[count] - seconds[starts])
    start, stop = int(np.argmin(whole)), count
    if not np.isfinite(whole[start]):
        return []
    firsts = []
    while True:
        firsts.append(start)
        if start == 0:
            return firsts[::-1]
        start, stop = int(previous[start, stop]), start
