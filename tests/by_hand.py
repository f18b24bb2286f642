"""Plans written by hand: as loads, from which tapes are made as in a build. And loads of a plan, to look at or to change them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from flexcomp.program import (
    Cold,
    Layer,
    Load,
    Operation,
    Prepare,
    Prepared,
    Program,
    Read,
    Rung,
    Tapes,
    WeightsDigest,
    program_bytes,
    tapes_of,
)  # fmt: skip
from flexcomp.program import Step as TapeStep
from flexcomp.program.program import PAGE
from flexcomp.program.tapes import Copy, Tape


@dataclass(frozen=True)
class Step:
    """A step that starts when so many loads are complete."""

    layer: int
    first: int
    count: int
    need: int
    weights_at: int
    scratch_at: int


@dataclass(frozen=True)
class Plan:
    """A rung, as `flexcomp.program.Rung`."""

    budget: int
    arena: int
    working: int
    value_at: tuple[int, ...]
    steps: tuple[Step, ...]
    loads: tuple[Load, ...]
    seconds: float
    cold: tuple[Cold, ...] = ()

    def rung(self, layers: Sequence[Layer]) -> Rung:
        """With tapes."""
        steps = tuple(TapeStep(one.layer, one.first, one.count, one.weights_at, one.scratch_at) for one in self.steps)
        tapes = tapes_of(layers, steps, self.loads, [one.need for one in self.steps], self.cold)
        return Rung(self.budget, self.arena, self.working, self.value_at, steps, tapes, self.seconds)


def by_hand(program: Program, rung: Rung | Plan) -> Plan:
    """The plan with the tapes of a rung."""
    if isinstance(rung, Plan):
        return rung
    steps, loads, cold = _parts_of(rung.tapes, rung.steps, program.layers)
    return Plan(rung.budget, rung.arena, rung.working, rung.value_at, steps, loads, rung.seconds, cold)


def loads_of(program: Program, rung: Rung) -> tuple[Load, ...]:
    """From which the tapes of a rung are made."""
    return by_hand(program, rung).loads


def as_loads(program: Program) -> Program:
    """The program with loads in place of tapes."""
    return replace(program, rungs=tuple(by_hand(program, rung) for rung in program.rungs))


def written(program: Program) -> Program:
    """The program with tapes for its plans."""
    rungs = (one.rung(program.layers) if isinstance(one, Plan) else one for one in program.rungs)
    return replace(program, rungs=tuple(rungs))


def encode_program(program: Program, weights: WeightsDigest) -> bytes:
    """The bytes of a program, whose plans may be written by hand."""
    return program_bytes.encode_program(written(program), weights)


def _parts_of(
    tapes: Tapes, steps: Sequence[TapeStep], layers: Sequence[Layer]
) -> tuple[tuple[Step, ...], tuple[Load, ...], tuple[Cold, ...]]:
    """Steps, loads and differences of the first inference that have these tapes."""
    table = tapes.operations
    turns = {name: dict(tape.turns) for name, tape in vars(tapes).items() if isinstance(tape, Tape)}
    loads: list[Load] = []
    for number, group in groupby(range(len(table)), key=lambda index: table[index].load):
        if number != len(loads):
            raise ValueError("loads do not follow each other")
        loads.append(_load_of({index: table[index] for index in group}, loads, turns, layers, len(steps)))
    last = [0] * len(steps)  # of the loads that a step needs
    for tape in (tapes.first, tapes.second):
        for index, need in enumerate(tape.need if tape else ()):
            last[index] = max(last[index], table[tape.turns[need - 1][0]].load + 1 if need else 0)
    cold = []
    for number, step in tapes.first_steps:
        cold.append(Cold(number, step.layer, step.weights_at - layers[step.layer].weights.offset % PAGE))
    needing = (
        Step(one.layer, one.first, one.count, need, one.weights_at, one.scratch_at)
        for one, need in zip(steps, last, strict=True)
    )
    return tuple(needing), tuple(loads), tuple(cold)


def _load_of(
    group: dict[int, Operation],
    before: Sequence[Load],
    turns: dict[str, dict[int, int]],
    layers: Sequence[Layer],
    steps: int,
) -> Load:
    """The load with these operations; `turns` are those of each tape, by operation."""
    fill, steady = turns["fill"], turns["steady"]
    reads = {index: one for index, one in group.items() if isinstance(one, Read)}
    made, index = next(
        ((one, index) for index, one in group.items() if isinstance(one, Prepare)), (None, next(reversed(group)))
    )
    prepared = made and Prepared(made.layer, made.first, made.count, made.to)
    if index in steady:
        after = steady[index]
        ahead = after < 0
        after += (steps + 1) * ahead
        read = next((one for index, one in reads.items() if index in steady), None)
        if read is not None:
            return Load(read.source, read.nbytes, read.to, after, False, ahead, prepared)
        if made is None:
            raise ValueError("a load neither reads nor prepares")
        weights = layers[made.layer].weights
        low, _ = weights.preparation.range_of(layers[made.layer].panel.type, made.first, made.count)
        source = weights.offset + low * weights.preparation.block_nbytes - made.source
        kept = [(one.source, one.nbytes, one.to) for one in reads.values()]
        kept += [(one.source, one.nbytes, one.target) for one in reversed(before) if one.kept]
        found = next(one for one in kept if one[0] - one[2] == source and one[2] <= made.source < one[2] + one[1])
        return Load(*found, after, False, ahead, prepared, kept=True)
    read_at, read = next((index, one) for index, one in reads.items() if index in fill)
    target = next((one.to for index, one in group.items() if isinstance(one, Copy) and index in fill), read.to)
    after = 0 if read.early else max(turns["first"].get(read_at, turns.get("second", {}).get(index, 0)), 0)
    return Load(read.source, read.nbytes, target, after, True, False, prepared)
