"""The last act of every strategy: places become a Plan."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .pages import pages
from .problem import PAGE, Plan, Problem, Segment, Step
from .slicing import file_range


def segment_pages(problem: Problem, steps: Sequence[Step]) -> list[int]:
    """Pages of each step's segment; 0 without weights."""
    layers = problem.layers
    return [
        pages(file_range(weights, step.first, step.count)[1]) if (weights := layers[step.layer].weights) else 0
        for step in steps
    ]


def assemble(
    problem: Problem,
    strategy: str,
    budget: int,
    steps: Sequence[Step],
    tensor_at: Sequence[int],
    scratch_at: Sequence[int],
    places: Sequence[tuple[int, int] | None],
    pinned: Collection[int] = (),
) -> Plan:
    """The plan with these places: addresses in bytes, and per step (after, first page) of its segment.

    `scratch_at` is per step. Loads run in step order. `pinned` are steps whose segments stay.
    """
    segments: list[Segment] = []
    need = []
    top = max((at + tensor.nbytes for at, tensor in zip(tensor_at, problem.tensors, strict=True)), default=0)
    for index, (step, place) in enumerate(zip(steps, places, strict=True)):
        layer = problem.layers[step.layer]
        top = max(top, scratch_at[index] + layer.scratch)
        if place is None or layer.weights is None:
            need.append(0)
            continue
        source, nbytes = file_range(layer.weights, step.first, step.count)
        after, first = place
        segments.append(Segment(index, source, nbytes, first * PAGE, after, index in pinned))
        need.append(len(segments))
        top = max(top, first * PAGE + nbytes)
    return Plan(
        strategy,
        budget,
        pages(top) * PAGE,
        tuple(steps),
        tuple(tensor_at),
        tuple(scratch_at),
        tuple(segments),
        tuple(need),
    )
