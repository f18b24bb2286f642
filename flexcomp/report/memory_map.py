"""Who occupies which addresses of the arena during which steps: a rung as rectangles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flexcomp.program import Program, Rung, ValueArg

KINDS = ("activation", "state", "weights", "pinned weights", "preload", "scratch")


@dataclass(frozen=True)
class Box:
    """One occupation of the arena."""

    kind: str  # one of KINDS; "preload" is the time from the start of a load to its first use
    name: str
    start: int  # step
    end: int  # step, exclusive
    address: int
    nbytes: int


def boxes(program: Program, rung: Rung) -> list[Box]:
    """All occupations under the plan `rung`."""
    return [*_activations(program, rung), *_weights(program, rung), *_scratch(program, rung)]


def _activations(program: Program, rung: Rung) -> list[Box]:
    last = len(rung.steps)
    lives: dict[int, tuple[int, int]] = dict.fromkeys(program.given, (0, 0))
    for index, step in enumerate(rung.steps):
        for arg in program.layers[step.layer].args:
            if isinstance(arg, ValueArg):
                start, _ = lives.get(arg.value, (index, index))
                lives[arg.value] = (start, index + 1)
    for value in program.wanted:
        lives[value] = (lives.get(value, (0, 0))[0], last)
    states = {state.value for state in program.states}
    return [
        Box(
            "state" if value in states else "activation",
            program.values[value].name,
            start,
            end,
            rung.value_at[value],
            program.values[value].nbytes,
        )
        for value, (start, end) in lives.items()
    ]


def _weights(program: Program, rung: Rung) -> list[Box]:
    uses: list[list[int]] = [[] for _ in rung.loads]
    names = ["" for _ in rung.loads]
    brought = [program.brought(load) for load in rung.loads]
    for index, step in enumerate(rung.steps):
        layer = program.layers[step.layer]
        if layer.weights is None:
            continue
        start = step.weights_at
        end = start + step.count * layer.weights.block_nbytes
        for position in _holders(brought, step.need, start, end):
            uses[position].append(index)
            names[position] = names[position] or layer.name
    result = []
    for load, place, steps, name in zip(rung.loads, brought, uses, names, strict=True):
        first, last = (steps[0], steps[-1] + 1) if steps else (load.after, load.after + 1)
        if load.kept:
            result.append(Box("pinned weights", name, 0, len(rung.steps), load.target, load.nbytes))
        elif load.prepared:
            read = load.target, load.nbytes
            result.append(Box("preload", name, 0 if load.ahead else load.after, first + 1, *read))
            if load.ahead and not load.pinned:
                result.append(Box("preload", name, load.after, len(rung.steps), *read))
        if load.pinned:
            result.append(Box("pinned weights", name, 0, len(rung.steps), *place))
            continue
        if load.ahead:
            result.append(Box("preload", name, load.after, len(rung.steps), *place))
        begin = 0 if load.ahead else load.after
        if begin < first:
            result.append(Box("preload", name, begin, first, *place))
        result.append(Box("weights", name, first, last, *place))
    return result


def _holders(brought: Sequence[tuple[int, int]], need: int, start: int, end: int) -> Iterator[int]:
    """Positions of the loads whose bytes fill the addresses [start, end) once `need` loads are complete."""
    missing = [(start, end)]
    for position in range(need - 1, -1, -1):
        if not missing:
            return
        low = brought[position][0]
        high = low + brought[position][1]
        if any(a < high and low < b for a, b in missing):
            yield position
            parts = [part for a, b in missing for part in ((a, min(b, low)), (max(a, high), b))]
            missing = [(a, b) for a, b in parts if a < b]


def _scratch(program: Program, rung: Rung) -> list[Box]:
    return [
        Box("scratch", program.layers[step.layer].name, index, index + 1, step.scratch_at, nbytes)
        for index, step in enumerate(rung.steps)
        if step.scratch_at >= 0 and (nbytes := program.layers[step.layer].scratch_nbytes)
    ]
