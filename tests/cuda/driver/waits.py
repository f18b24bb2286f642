"""Every wait for an event that a plan asks for, taken out once: some step and some load that touch the same bytes come loose.

    python -m tests.cuda.driver.waits [NETWORK …]

No clocks, no chance: two streams are two orders, and waits say how much of the one is after how much of the other. They are
those of `runtime_ext/src/cuda/stream_order.h`: a step is after the newest of the loads that it needs, a load after the last of
the steps that must be over, and waits that follow from others are left out. On an integrated GPU loads wait just
so, in the process, and steps need not. With all waits every pair that touches the same bytes must be in some order; without any
single one some pair is in none. It plans the networks of `tests.cuda.reduced`, compiles nothing, and looks at all their rungs.

A plan may let a load wait longer than bytes ask for, as where it gives up together what was loaded together. Without such a wait
no pair comes loose, and no answer could show the loss: such waits are listed, and counted as needless.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx

from flexcomp.program import Program, Rung, ValueArg
from flexcomp.program.tapes import Read
from tests import uncompiled
from tests.cuda.reduced import NETWORKS

INFERENCES = 3  # the first one fills the arena, the second one finds loads ahead of the first, the third one those of the second


@dataclass(frozen=True)
class Wait:
    """Something in one stream is after something in the other; places in the streams are counted from the first inference on."""

    at: int  # the waiting place, with all later ones
    behind: int  # the place that is waited for


@dataclass(frozen=True)
class Order:
    """The work of a rung's inferences in the two streams."""

    steps: tuple[int, ...]  # of the compute stream, by their numbers in the rung
    loads: tuple[Read, ...]  # of the copy stream
    of_steps: tuple[Wait, ...]  # waits for loads
    of_loads: tuple[Wait, ...]  # waits for steps
    floors: tuple[int, ...]  # of each load: the last step that was over when its inference began, -1 for none


def order_of(program: Program, rung: Rung, inferences: int = INFERENCES) -> Order:
    """As the runtime gives them to a GPU with memory of its own."""
    count = len(rung.steps)
    all_tapes = rung.tapes
    tapes = [all_tapes.first, *[all_tapes.steady] * inferences]
    loads: list[Read] = []
    of_loads: list[Wait] = []
    floors: list[int] = []
    places: list[list[int]] = [[] for _ in tapes]  # of loads, for each inference

    def give(operation: int, inference: int, during: int, after: int) -> None:
        place = during * count + after - 1
        if after and place > max((wait.behind for wait in of_loads), default=-1):
            of_loads.append(Wait(len(loads), place))
        places[inference].append(len(loads))
        loads.append(all_tapes.operations[operation])
        floors.append(during * count - 1)

    of_steps: list[Wait] = []
    for inference in range(inferences):
        tape, following = tapes[inference : inference + 2]
        for operation, after in tape.turns:
            if after >= 0:
                give(operation, inference, inference, after)
        for operation, after in following.turns:
            if after < 0:
                give(operation, inference + 1, inference, count + 1 + after)
        looked_at = 0
        for step, need in enumerate(tape.need):
            newest = max(places[inference][looked_at:need], default=-1)
            looked_at = max(looked_at, need)
            if newest > (of_steps[-1].behind if of_steps else -1):
                of_steps.append(Wait(inference * count + step, newest))
    return Order(tuple(range(count)) * inferences, tuple(loads), tuple(of_steps), tuple(of_loads), tuple(floors))


def touching(program: Program, rung: Rung, order: Order) -> np.ndarray:
    """bool[places of loads, places of steps]: whether a load writes bytes that a step reads or writes.

    Inputs and states are there before the first step, and outputs are taken after the last one.
    """
    ranges = [_ranges(program, rung, step) for step in range(len(rung.steps))]
    ranges[0] += _values(program, rung, program.given)
    ranges[-1] += _values(program, rung, program.wanted)
    reads = list(dict.fromkeys(order.loads))
    number = {read: at for at, read in enumerate(reads)}
    found = np.zeros((len(reads), len(rung.steps)), bool)
    begins, ends = (np.array([read.to + extra * read.nbytes for read in reads]) for extra in (0, 1))
    for s, some in enumerate(ranges):
        for begin, end in some:
            found[:, s] |= (begins < end) & (begin < ends)
    return found[np.ix_([number[read] for read in order.loads], order.steps)]


def _ranges(program: Program, rung: Rung, number: int) -> list[tuple[int, int]]:
    step = rung.steps[number]
    layer = program.layers[step.layer]
    found = []
    if layer.weights is not None:
        found.append((step.weights_at, step.weights_at + step.count * layer.weights.block_nbytes))
    if layer.scratch_nbytes:
        found.append((step.scratch_at, step.scratch_at + layer.scratch_nbytes))
    for arg in layer.args:
        if isinstance(arg, ValueArg):
            begin = rung.value_at[arg.value] + arg.offset
            found.append((begin, begin + arg.type.nbytes))
    return found


def _values(program: Program, rung: Rung, values: tuple[int, ...]) -> list[tuple[int, int]]:
    return [(rung.value_at[v], rung.value_at[v] + program.values[v].nbytes) for v in values if rung.value_at[v] >= 0]


@dataclass(frozen=True)
class Seen:
    """The purposes of a rung's waits."""

    waits: int
    needless: tuple[str, ...]  # waits without which no pair comes loose
    loose: int  # pairs that are in no order with all waits


def look(program: Program, rung: Rung, order: Order | None = None) -> Seen:
    """Takes out every wait; those of the last inference, which nothing follows, are as in earlier ones."""
    if not rung.tapes.operations:
        return Seen(0, (), 0)
    order = order or order_of(program, rung)
    pairs = touching(program, rung, order)
    known_to_steps = _known(order.of_steps, len(order.steps))
    known_to_loads = np.maximum.accumulate(np.maximum(_known(order.of_loads, len(order.loads)), order.floors))
    load_at, step_at = np.nonzero(pairs)
    loose = int(np.count_nonzero((known_to_steps[step_at] < load_at) & (known_to_loads[load_at] < step_at)))
    needless = [f"step {wait.at} behind load {wait.behind}" for wait in _without_pair(order.of_steps, pairs, None)]
    needless += [f"load {wait.at} behind step {wait.behind}" for wait in _without_pair(order.of_loads, pairs.T, order.floors)]
    return Seen(len(order.of_steps) + len(order.of_loads), tuple(needless), loose)


def _known(waits: tuple[Wait, ...], count: int) -> np.ndarray:
    """Of each place of a stream: the last place of the other before this one, -1 for none."""
    known = np.full(count, -1)
    for wait in waits:
        known[wait.at] = max(known[wait.at], wait.behind)
    return np.maximum.accumulate(known)


def _without_pair(waits: tuple[Wait, ...], pairs: np.ndarray, floors: tuple[int, ...] | None) -> Iterator[Wait]:
    """The waits without which nothing comes loose; `pairs` are bool[places waited for, places that wait]."""
    known = -1
    for wait, following in pairwise([*waits, None]):
        end = pairs.shape[1] if following is None else following.at
        # A waiting place is after earlier waits, and after the beginning of its inference.
        first = max(known, floors[wait.at] if floors else -1) + 1
        if not pairs[first : wait.behind + 1, wait.at : end].any():
            yield wait
        known = wait.behind


def planned(model: onnx.ModelProto, target: str = "cuda -arch=sm_80", **options: object) -> Program:
    """The program of a network, with all its rungs."""
    return uncompiled.planned(model, target, "min", **options)


def main() -> None:
    """Print a line for each network; exit status 1 where pairs are loose."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), metavar="NETWORK", help=", ".join(NETWORKS))
    wrong = 0
    print("network        rungs   waits needless loose pairs")
    for name in parser.parse_args().networks:
        program = planned(NETWORKS[name]())
        seen = [look(program, rung) for rung in program.rungs]
        waits, loose = sum(one.waits for one in seen), sum(one.loose for one in seen)
        needless = sum(len(one.needless) for one in seen)
        print(f"{name:<14} {len(seen):5} {waits:7,} {needless:8} {loose:11}", flush=True)
        for rung, one in zip(program.rungs, seen, strict=True):
            for what in one.needless:
                print(f"  {rung.budget:,}: {what}", flush=True)
        wrong += loose
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
