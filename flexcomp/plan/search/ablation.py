"""Strategies with one idea taken away, to measure its worth (FlexNN, section 5.5; SwapNet, section 8.3)."""

from __future__ import annotations

from dataclasses import replace

from ..errors import Unplaceable
from ..parts.assemble import Place, assemble
from ..parts.pages import lowest, pages, span, starts
from ..parts.pieces import pieces_of
from ..problem import PAGE, Plan, Problem, Step
from .best import best, search_without_pinning


def without_preloading(problem: Problem, budget: int) -> Plan:
    """The best plan, but every load waits until its step is next: in the first inference loads of pinned weights, too.

    Among plans that keep no stored weights, because the first inference would read these at once.
    """
    layers = (replace(one, weights=replace(one.weights, stored=None)) if one.weights else one for one in problem.layers)
    plan = best(replace(problem, layers=tuple(layers)), budget)
    segments = tuple(segment._replace(after=segment.step, ahead=False) for segment in plan.segments)
    return replace(plan, strategy="without_preloading", segments=segments)


def without_pinning(problem: Problem, budget: int) -> Plan:
    """The best plan that keeps no weights between inferences."""
    return replace(search_without_pinning(problem, budget), strategy="without_pinning")


def without_static_planning(problem: Problem, budget: int) -> Plan:
    """An allocator without foresight: each request takes the lowest free place.

    Before a layer its outputs and scratch are allocated, then its weights; while the layer computes, the weights of the
    next layer are loaded if there is a place. Layers are whole. Raises Unplaceable where the arena is too fragmented.
    """
    arena = budget // PAGE
    free = span(0, arena)

    def take(nbytes: int, what: str) -> int:
        nonlocal free
        count = pages(nbytes)
        possible = starts(free, count) if count else 1
        if not possible:
            raise Unplaceable(f"no place for {what} of {nbytes:,} B, whatever is free in all")
        first = lowest(possible)
        free &= ~span(first, count)
        return first

    steps = tuple(Step(index, 0, layer.blocks) for index, layer in enumerate(problem.layers))
    pieces = pieces_of(problem, steps)
    number_of = {piece.step: number for number, piece in enumerate(pieces)}
    buffer_at, scratch_at = [0] * len(problem.buffers), [-1] * len(steps)
    places: list[Place] = []
    for index, layer in enumerate(problem.layers):
        for number, buffer in enumerate(problem.buffers):
            if buffer.start == index:
                buffer_at[number] = take(buffer.nbytes, f"buffer {buffer.name}") * PAGE
        if layer.scratch:
            scratch_at[index] = take(layer.scratch, f"scratch of layer {layer.name}") * PAGE
        if index in number_of and number_of[index] == len(places):
            places.append(Place(index, take(pieces[len(places)].nbytes, f"weights of layer {layer.name}")))
        if len(places) < len(pieces) and starts(free, pieces[len(places)].pages):
            places.append(Place(index, take(pieces[len(places)].nbytes, "weights")))
        if layer.scratch:
            free |= span(scratch_at[index] // PAGE, pages(layer.scratch))
        if index in number_of:
            number = number_of[index]
            free |= span(places[number].first, pieces[number].pages)
        for number, buffer in enumerate(problem.buffers):
            if buffer.end == index + 1:
                free |= span(buffer_at[number] // PAGE, pages(buffer.nbytes))
    return assemble(problem, "without_static_planning", budget, steps, buffer_at, scratch_at, pieces, places)
