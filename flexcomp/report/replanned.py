"""The problem that a rung solves, as the planner had it: bounds of its latency, and plans of a changed network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from flexcomp import plan
from flexcomp.program import Layer, Prediction, Program, Rung, ValueArg


def problem_of(program: Program, rung: Rung, assumed: Prediction) -> plan.Problem:
    """The rung's layers and buffers, with the times that the build assumed."""
    order = rung.order
    planned = assumed.planned_layers(program)
    layers = tuple(_as_planned(program.layers[index], planned[index]) for index in order)
    return plan.Problem(layers, tuple(_buffers(program, rung, order)), assumed.storage)


def bound_s(program: Program, rung: Rung, assumed: Prediction) -> float:
    """Seconds: no plan of the rung's kernels within its budget is faster, on the assumed times."""
    return plan.latency_bound(problem_of(program, rung, assumed), rung.budget)


def _as_planned(layer: Layer, planned: plan.Layer) -> plan.Layer:
    """With the source of prepared weights."""
    made = layer.weights.preparation if layer.weights else None
    if made is None:
        return planned
    offset, panel = layer.weights.offset, layer.panel.type
    stored = plan.Stored(offset, made.block_nbytes, made.channels, made.stored.shape[-1], panel.shape[-1])
    return replace(planned, weights=replace(planned.weights, offset=0, form=1 + offset // plan.ALIGN, stored=stored))


def _buffers(program: Program, rung: Rung, order: Sequence[int]) -> Iterator[plan.Buffer]:
    """Values and their lives, in-place results together with the operands that they overwrite; room for preparations."""
    lives = lives_of(program, order)
    place = {value: value for value in lives}
    for position, index in enumerate(order):
        args = [arg for arg in program.layers[index].args if isinstance(arg, ValueArg)]
        for operand in (arg.value for arg in args if arg.over):
            for result in (arg.value for arg in args if arg.written and arg.value != operand):
                together = rung.value_at[operand] == rung.value_at[result]
                if together and lives[operand][1] == position + 1 and lives[result][0] == position:
                    place[result] = place[operand]
    merged: dict[int, tuple[int, int]] = {}
    for value, (start, end) in lives.items():
        low, high = merged.get(place[value], (start, end))
        merged[place[value]] = min(low, start), max(high, end)
    staying = {state.value for state in program.states}
    for value, (start, end) in merged.items():
        yield plan.Buffer(program.values[value].name, program.values[value].nbytes, start, end, value in staying)
    deliveries = (*rung.tapes.filled, *rung.tapes.repeated)
    read = [at for one in deliveries if one.prepare and one.read for at in (one.brought[0], sum(one.brought))]
    if read:
        room = max(read) - min(read)
        yield plan.Buffer("weights to be prepared", room + plan.PAGE, 0, len(order))


def lives_of(program: Program, order: Sequence[int]) -> dict[int, tuple[int, int]]:
    """For each value in use the positions in `order` that need it, half-open."""
    lives = dict.fromkeys(program.given, (0, 1))
    for position, index in enumerate(order):
        for arg in program.layers[index].args:
            if isinstance(arg, ValueArg):
                lives[arg.value] = lives.get(arg.value, (position, 0))[0], position + 1
    return lives | {value: (lives.get(value, (0, 0))[0], len(order)) for value in program.wanted}
