"""Who occupies which addresses of the arena during which steps: a rung as rectangles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flexcomp.program import Prepare, Program, Rung, ValueArg

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
    filled, repeated, last = rung.tapes.filled, rung.tapes.repeated, len(rung.steps)
    deliveries = (*filled, *repeated)
    uses: list[list[int]] = [[] for _ in deliveries]
    names = ["" for _ in deliveries]
    places = [program.place_of(one) for one in deliveries]
    made = {one.load: program.layers[one.layer].name for one in rung.tapes.operations if isinstance(one, Prepare)}
    for index, (step, need) in enumerate(zip(rung.steps, rung.tapes.awaited, strict=True)):
        layer = program.layers[step.layer]
        if layer.weights is None:
            continue
        start = step.weights_at
        end = start + step.count * layer.weights.block_nbytes
        for position in _holders(places, len(filled) + need, start, end):
            uses[position].append(index)
            names[position] = names[position] or layer.name
    result = []
    for position, (one, place, steps, name) in enumerate(zip(deliveries, places, uses, names, strict=True)):
        begin = max(one.after, 0)
        first, end = (steps[0], steps[-1] + 1) if steps else (begin, begin + 1)
        ahead = [(one.after + last + 1, last)] if one.after < 0 else []
        if one.prepare and one.read:
            result += [Box("preload", name, *times, *one.brought) for times in [(begin, first + 1), *ahead]]
        if position < len(filled):
            result.append(Box("pinned weights", name or made.get(one.load, ""), 0, last, *place))
            continue
        result += [Box("preload", name, *times, *place) for times in [*ahead, (begin, first)] if times[0] < times[1]]
        result.append(Box("weights", name, first, end, *place))
    return result


def _holders(places: Sequence[tuple[int, int]], need: int, start: int, end: int) -> Iterator[int]:
    """Positions of the places that fill the addresses [start, end), of the first `need`; later ones first."""
    missing = [(start, end)]
    for position in range(need - 1, -1, -1):
        if not missing:
            return
        low = places[position][0]
        high = low + places[position][1]
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
