"""Latency of libraries of several shapes at these shapes, compared with libraries of each shape alone, in turns.

    python -m benchmarks.lab.shapes build DIR [encoder squeezenet …]
    python -m benchmarks.lab.shapes measure DIR [encoder squeezenet …] [--budgets 8] [--plans]

`measure` wants a quiet machine. Both libraries have the same budget, of those that the one of all shapes can have. With --plans
nothing runs: predicted latencies are compared, and whether plans have the same kernels and read the same bytes. The exit status
is 1 if a ratio exceeds 1.03.
"""

from __future__ import annotations

import argparse
import bisect
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

import flexcomp
from benchmarks import models
from benchmarks.networks.encoders import VOCABULARY, encoder
from benchmarks.results import Results, Table, json_option
from benchmarks.turns import evenly
from flexcomp.program import EXTENTS, Program, Rung, decode_shapes
from flexcomp.runtime import made_inputs, read_program

MOST = 1.03
_TURN_S = 0.1
IMAGES = ("squeezenet", "mobilenet_v2", "resnet50_v15", "efficientnet_b0", "mobilenet_v3")
SIZES = [{"n": 128}, {"n": 64}], [{"s": 224}, {"s": 160}]  # of texts and images
COLUMNS = {"network": "", "shape": "", "budget MiB": ".2f", "all, ms": ".3f", "alone, ms": ".3f", "ratio": ".3f", "same plan": ""}


def network_of(name: str) -> tuple[object, dict[str, tuple], Sequence[dict[str, int]]]:
    """A model, its inputs with names for extents, and its shapes, the largest first."""
    if name == "encoder":
        return encoder(6), dict.fromkeys(("ids", "mask"), (1, "n")), SIZES[0]
    network = models.load(name)
    (port,) = network.example(0)
    return network.model, {port: (1, 3, "s", "s")}, SIZES[1]


def serving(rungs: Sequence[Rung], budget: int) -> Rung:
    """The largest plan within a budget."""
    return rungs[bisect.bisect_right([rung.budget for rung in rungs], budget) - 1]


def same_plan(one: Program, of: Rung, other: Program, at: Rung) -> bool:
    """Whether two plans call the same kernels in the same slices, and read as much."""

    def steps(program: Program, rung: Rung) -> list[tuple]:
        return [(program.layers[step.layer].kernel, step.first, step.count) for step in rung.steps]

    def read(rung: Rung) -> int:
        return sum(each.read.nbytes for each in rung.tapes.repeated if each.read)

    return steps(one, of) == steps(other, at) and read(of) == read(at)


def build(folder: Path, name: str) -> None:
    """The libraries of a network: of all shapes, and of each alone, `0.so` of the largest."""
    model, axes, shapes = network_of(name)
    options = {"threads": 1, "probe": False, "progress": False}
    (folder / name).mkdir(parents=True, exist_ok=True)
    flexcomp.build(model, input_shapes=axes, shapes=list(shapes), **options).export_library(folder / name / "every.so")
    for index, extents in enumerate(shapes):
        fixed = {port: tuple(extents.get(one, one) for one in shape) for port, shape in axes.items()}
        flexcomp.build(model, input_shapes=fixed, **options).export_library(folder / name / f"{index}.so")


def compare(folder: Path, name: str, count: int, timed: bool, turns: int, table: Table) -> None:
    """A row for each shape and budget of a network whose libraries are there."""
    every = folder / name / "every.so"
    programs = decode_shapes(read_program(every))
    least = max(program.rungs[0].budget for program in programs)
    for index, program in enumerate(programs):
        extents = json.loads(program.metadata[EXTENTS])
        path = folder / name / f"{index}.so"
        (own,) = decode_shapes(read_program(path))
        budgets = evenly([rung.budget for rung in own.rungs], count)
        for budget in sorted({max(budget, least) for budget in budgets}):
            plans = serving(program.rungs, budget), serving(own.rungs, budget)
            times = [1e3 * plan.seconds for plan in plans]
            if timed:
                with flexcomp.load(every, budget) as both, flexcomp.load(path, budget) as alone:
                    given = _inputs(extents, alone)
                    times = median_ms((partial(both.run, given), partial(alone.run, given)), turns)
            same = same_plan(program, plans[0], own, plans[1])
            shape = ", ".join(f"{axis}={extent}" for axis, extent in extents.items())
            table.add(name, shape, budget / 2**20, *times, times[0] / times[1], "yes" if same else "no")


def median_ms(calls: Sequence[Callable[[], object]], turns: int) -> list[float]:
    """The median latency of each of several that take turns, waits for the storage included."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(turns):
        for call, times in zip(calls, taken, strict=True):
            call()
            end = time.perf_counter() + _TURN_S
            while (begun := time.perf_counter()) < end:
                call()
                times.append(1e3 * (time.perf_counter() - begun))
    return [statistics.median(times) for times in taken]


def texts(length: int) -> dict[str, np.ndarray]:
    """Inputs of the encoder: random tokens."""
    tokens = np.random.default_rng(length).integers(0, VOCABULARY, (1, length))
    return {"ids": tokens, "mask": np.ones_like(tokens)}


def _inputs(extents: dict[str, int], session: flexcomp.Session) -> dict[str, np.ndarray]:
    if "n" in extents:
        return texts(extents["n"])
    return dict(zip((port.name for port in session.inputs), made_inputs(session.inputs), strict=True))


def main() -> int:
    """Build, and print a line for each network, shape and budget."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("build", "measure"))
    parser.add_argument("dir", type=Path, help="where libraries lie, on the storage to measure")
    parser.add_argument("networks", nargs="*", choices=["encoder", *IMAGES, []], help="default: six")
    parser.add_argument("--budgets", type=int, default=8, help="of each shape")
    parser.add_argument("--plans", action="store_true", help="compare plans and predicted latencies; run nothing")
    parser.add_argument("--turns", type=int, default=10)
    json_option(parser, "shapes")
    args = parser.parse_args()
    results, table = Results.begin("benchmarks.lab.shapes"), Table(COLUMNS)
    if args.action == "build":
        for name in args.networks or ("encoder", *IMAGES):
            build(args.dir, name)
        return 0
    for name in args.networks or ("encoder", *IMAGES):
        compare(args.dir, name, args.budgets, not args.plans, args.turns, table)
    results.write(args.json, [table])
    ratios = [row[5] for row in table.rows]
    print(f"at most {max(ratios):.3f}; {sum(row[6] == 'yes' for row in table.rows)} of {len(ratios)} plans are the same")
    return int(max(ratios) > MOST)


if __name__ == "__main__":
    sys.exit(main())
