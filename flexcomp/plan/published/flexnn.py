"""FlexNN's planner, as published: the baseline.

Li et al., "FlexNN: Efficient and Adaptive DNN Inference on Memory-Constrained Edge Devices"
(MobiCom 2024), section 3.3, Algorithm 1, over steps (the paper's sub-layers):

1. all activations first, at the two ends of the buffer in turn, so that the middle stays in one piece;
2. layer by layer the weights, at the place with the earliest load, and then the scratch;
3. if the scratch finds no place, the layer again without preloading; if that fails, so does the plan.

The paper does not treat skip connections (its artifact overlaps tensors then). Here an
activation takes a place that is free during its whole life, or planning fails.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import Unplaceable
from ..loops import in_python
from ..native import place_steps
from ..parts.assemble import Place, assemble
from ..parts.layout import Layout, layout_of
from ..parts.pages import highest, lowest, pages, span, starts
from ..parts.pieces import pieces_of
from ..parts.preload import choose_lowest, earliest_place, occupy
from ..parts.slicing import finest_segment, slice_to_room
from ..problem import PAGE, Plan, Problem

SEGMENTS_AT_ONCE = 2  # segments of a layer that should fit at once: one computes while the next is loaded


def flexnn(problem: Problem, budget: int) -> Plan:
    """The plan of Algorithm 1 for a budget in bytes. Raises Unplaceable without a plan.

    Slices are as large as fits twice next to the activations and scratch (once where blocks are too large
    for that); the paper sets their sizes by hand. Nothing is pinned.
    """
    arena = budget // PAGE * PAGE
    buffer_at = _plan_activations(problem, arena)
    layout = layout_of(problem, buffer_at, [-1] * len(problem.layers))
    limits = []
    for layer, room in zip(problem.layers, layout.room(arena), strict=True):
        free = room - pages(layer.scratch) * PAGE
        limits.append(min(free, max(finest_segment(layer), free // SEGMENTS_AT_ONCE)))
    steps = slice_to_room(problem, limits)

    pieces = pieces_of(problem, steps)
    weights, scratch = [0] * len(steps), [pages(problem.layers[step.layer].scratch) for step in steps]
    for piece in pieces:
        weights[piece.step] = piece.pages
    wanted = arena // PAGE, [step.layer for step in steps], weights, scratch
    rows = _place_steps(layout, *wanted) if in_python() else place_steps(layout.occupied, *wanted)
    if len(rows) < len(steps):
        layer, failed = problem.layers[steps[len(rows)].layer], len(rows)
        needs = f"{weights[failed]} pages of weights and {scratch[failed]} of scratch"
        raise Unplaceable(f"layer {layer.name}: no place for {needs}")
    places = [Place(after, first) for (after, first, _), count in zip(rows, weights, strict=True) if count]
    scratch_at = [first * PAGE if count else -1 for (*_, first), count in zip(rows, scratch, strict=True)]
    return assemble(problem, "flexnn", budget, steps, buffer_at, scratch_at, pieces, places)


def _place_steps(
    layout: Layout, arena: int, layers: Sequence[int], weights: Sequence[int], scratch: Sequence[int]
) -> list[tuple[int, int, int]]:
    """Per step the time of its load, and the first pages of weights and scratch; up to the first step without a place.

    The arguments are pages of the arena, and per step its layer, and pages of weights and scratch.
    """
    of_layer = layout.free_pages(arena * PAGE)
    free = [of_layer[layer] for layer in layers]
    rows: list[tuple[int, int, int]] = []
    earliest = 0
    for index, (count, wanted) in enumerate(zip(weights, scratch, strict=True)):
        for bound in (earliest, index):  # with preloading, then without
            place = _plan_weights(free, index, bound, count)
            rest = free[index] & ~span(place[1], count) if place else free[index]
            room = starts(rest, wanted) if wanted else 1
            if room and (place or not count):
                break
        else:
            return rows
        if place:
            earliest = place[0]
            occupy(free, earliest, index + 1, place[1], count)
        if wanted:
            occupy(free, index, index + 1, lowest(room), wanted)
        rows.append((*(place or (0, 0)), lowest(room) if wanted else 0))
    return rows


def _plan_weights(free: list[int], step: int, earliest: int, count: int) -> tuple[int, int] | None:
    """(after, first page) of the earliest and then lowest place."""
    found = earliest_place(free, step, step + 1, earliest, count) if count else None
    return (found[0], choose_lowest(found[1], count)) if found else None


def _plan_activations(problem: Problem, arena: int) -> list[int]:
    """Addresses of the buffers, in order of their start, at either end by the parity of the writing layer."""
    free = [span(0, arena // PAGE)] * len(problem.layers)
    buffer_at = [0] * len(problem.buffers)
    for index in sorted(range(len(problem.buffers)), key=lambda i: (problem.buffers[i].start, i)):
        buffer = problem.buffers[index]
        count = pages(buffer.nbytes)
        if not count:
            continue
        window = free[buffer.start]
        for layer in range(buffer.start + 1, buffer.end):
            window &= free[layer]
        possible = starts(window, count)
        if not possible:
            raise Unplaceable(f"no place for buffer {buffer.name} of {buffer.nbytes:,} B")
        first = highest(possible) if buffer.start % 2 else lowest(possible)
        occupy(free, buffer.start, buffer.end, first, count)
        buffer_at[index] = first * PAGE
    return buffer_at
