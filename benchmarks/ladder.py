"""Every rung of a network, predicted and measured, next to the bound max(computing, bytes read / bandwidth).

    python -m benchmarks.ladder NETWORK build DIR [--profile profile.json] [--strategies best,flexnn,swapnet]
    python -m benchmarks.ladder NETWORK measure DIR [--budgets 7] [--json FILE]
    python -m benchmarks.ladder NETWORK all DIR

`build` writes a library for every storage and strategy into DIR, all with the same kernels and weights; `measure`, which
wants a quiet machine, runs all their rungs. A storage is `disk` (where DIR lies, O_DIRECT), a number (that disk slowed
down to so many bytes per second), or `tmpfs` (/dev/shm, or the folder given by --tmpfs). A tmpfs with huge pages, as by
`mount -t tmpfs -o huge=always,size=4g tmpfs /mnt/fast`, copies three times as fast. Plans are made for rates that a default
build measures. `--at` is one budget, as for `flexcomp run`, that is planned for exactly and measured alone: `25%` of everything
resident, or bytes.

*Computing* is the measured latency of the rung's own kernels with everything resident; *bandwidth* is what the storage
gives to the runtime's loader, alone, reading in order, measured in the same process as the rung. Predictions are
those of the simulator with times profiled in other runs, of six rungs on the same storage. *Possible* is the latency that
no plan of the rung's kernels falls below, with the same times (`plan.latency_bound`): weights that are not computed for long
cannot be read ahead where memory is short.

Everything runs in turns: all rungs a few inferences each, profiled and measured, and all over again. Slow seconds of a machine
that others use then strike all of them. Latency and bound, or two strategies, are compared within every
turn, and the median of the turns counts.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import nan
from pathlib import Path

from benchmarks import models
from benchmarks.results import Results, Table, json_option
from benchmarks.storage import TMPFS, Medium, media
from benchmarks.turns import ALONE, FASTEST, ROUNDS, Compiled, Turn, Turns
from flexcomp.compiler import probed_profile
from flexcomp.compiler.builder import prepare
from flexcomp.compiler.known import ARITHMETICS, DEFAULT_ARITHMETIC, DEFAULT_STORE, STORES, WEIGHTS
from flexcomp.compiler.options import Request, options_of
from flexcomp.device.copies import cache_of_copies
from flexcomp.device.profile import DeviceProfile, load_profile
from flexcomp.device.target import resolve_target
from flexcomp.errors import BudgetError
from flexcomp.profiling.fitting import fit, operand_bytes
from flexcomp.program.prediction import LayerTime, Prediction
from flexcomp.program.program import Program
from flexcomp.report.replanned import bound_s
from flexcomp.runtime.budget import parse_budget

STRATEGIES = ("best", "flexnn", "swapnet")
NEAR = 1.08  # of the bound: counts as equal
YARDSTICK = "resident"  # the library with everything resident, one rung for each set of kernels


@dataclass(frozen=True)
class Point:
    """One rung under one strategy on one storage."""

    storage: str
    strategy: str
    budget_bytes: int
    planned_ms: float  # as the plan was judged
    predicted_ms: float  # by the simulator, with times measured in other runs
    measured_ms: float
    stall_ms: float
    possible_ms: float  # by the same times: no plan of these kernels is faster
    bytes_read: int
    # of each turn
    turns_ms: tuple[float, ...]  # the median latency
    alone_ms: tuple[float, ...]  # of the same kernels with everything resident; empty if not run alone
    fastest_ms: tuple[float, ...]  # of the fastest; empty but at a requested budget
    bandwidths: tuple[float, ...]  # bytes per second

    @property
    def compute_ms(self) -> float:
        """Latency with everything resident; nan if that was not run."""
        return statistics.median(self.alone_ms or (nan,))

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return statistics.median(self.bandwidths)

    @property
    def bounds_ms(self) -> tuple[float, ...]:
        """max(computing, loading), of each turn."""
        loading = (self.bytes_read / bandwidth * 1e3 for bandwidth in self.bandwidths)
        return tuple(max(pair) for pair in zip(self.alone_ms, loading, strict=True)) if self.alone_ms else ()

    @property
    def bound_ms(self) -> float:
        """The same, in the median."""
        return statistics.median(self.bounds_ms or (nan,))

    @property
    def ratio(self) -> float:
        """Measured latency over the bound: the median over turns."""
        parts = [latency / bound for latency, bound in zip(self.turns_ms, self.bounds_ms, strict=False)]
        return statistics.median(parts or (nan,))

    @property
    def of_fastest(self) -> float:
        """Measured latency over that of the fastest kernels with everything resident; nan if these were not run."""
        return statistics.median([mine / its for mine, its in zip(self.turns_ms, self.fastest_ms, strict=False)] or (nan,))

    @property
    def error(self) -> float:
        """Of the prediction, as a part of the measured latency."""
        return self.predicted_ms / self.measured_ms - 1

    def part_of(self, other: Point) -> float:
        """Its time as a part of another's: the median over turns, between which the machine's speed drifts."""
        return statistics.median(mine / its for mine, its in zip(self.turns_ms, other.turns_ms, strict=True))


def build(
    network: models.Network, folder: Path, storages: Sequence[Medium], strategies: Sequence[str], profile: DeviceProfile,
    threads: int, at: str | None = None, **options: str | None,
) -> None:
    """Write DIR/NETWORK.weights and a library for every storage and strategy; `options` as for `flexcomp.build`."""
    prepared = prepare(
        network.model, options=options_of(input_shapes=network.input_shapes, threads=threads, profile=profile, **options),
    )
    names, requests = [], []
    for medium in storages:
        storage = medium.storage(profile.wake_s, profile.storage.disturbance)
        for strategy in strategies:
            names.append(f"{medium.name}.{strategy}")
            requests.append(Request(parse_budget(at), strategy, storage))
    artifacts = prepared.artifacts(requests, yardstick=True)
    digest = artifacts[0].write_weights(folder / f"{network.name}.weights")
    for name, artifact in zip([*names, YARDSTICK], artifacts, strict=True):
        artifact.write_library(folder / f"{network.name}.{name}.so", digest)


def measure(
    name: str, folder: Path, storages: Sequence[str], strategies: Sequence[str], threads: int, seconds: float,
    tmpfs: Path = TMPFS, budgets: int | None = None, at: str | None = None,
) -> Iterator[Point]:
    """Run every rung of `build`'s libraries, or about as many as `budgets`, or the one `at` a budget, for so many seconds each.

    The first strategy is profiled, and its kernels run alone.
    """
    weights = folder / f"{name}.weights"
    resident = Compiled(folder / f"{name}.{YARDSTICK}.so")
    for storage in storages:
        with tempfile.TemporaryDirectory(dir=tmpfs) as fast:
            if storage == "tmpfs":
                shutil.copy(weights, fast)
            options = {
                "weights": Path(fast) / weights.name if storage == "tmpfs" else weights,
                "read_bandwidth": None if storage in ("disk", "tmpfs") else float(storage), "threads": threads,
            }
            libraries = {strategy: Compiled(folder / f"{name}.{storage}.{strategy}.so") for strategy in strategies}
            turns = Turns(resident, libraries, seconds, options, budgets, at)
            for done in range(ROUNDS):
                print(f"{storage}: round {done + 1} of {ROUNDS}", file=sys.stderr, flush=True)
                turns.take()
            cache = cache_of_copies(options["weights"]) if storage == "tmpfs" else 0
            turns.close()
            yield from _points(turns, storage, fit(turns.profiled.observations(), cache), threads)


def prediction_of(program: Program, profile: DeviceProfile, threads: int) -> Prediction:
    """The times that plans of this program would be judged by."""
    layers = tuple(
        LayerTime(
            profile.layer_seconds(layer, float(layer.flops), operand_bytes(layer), threads),
            profile.slice_seconds(layer, threads),
        )
        for layer in program.layers
    )
    storage = replace(profile.storage, core_contention=profile.core_contention(threads))
    return Prediction(layers, storage, profile.prepare_s)


def _points(turns: Turns, storage: str, profile: DeviceProfile, threads: int) -> Iterator[Point]:
    """Measured latencies, and predictions of the profile."""
    first = turns.libraries[turns.first]
    predictions = {strategy: prediction_of(library.program, profile, threads) for strategy, library in turns.libraries.items()}
    for budget, rungs in sorted(turns.rungs.items()):
        for strategy, rung in rungs.items():
            library, prediction = turns.libraries[strategy], predictions[strategy]
            taken = turns.taken[budget, strategy]
            alone, fastest = (turns.taken.get((budget, yardstick), []) for yardstick in (ALONE, FASTEST))
            own = turns.first in rungs and library.kernels(rung) == first.kernels(rungs[turns.first])
            yield Point(
                storage,
                strategy,
                budget,
                rung.predicted_ms,
                prediction.timeline(library.program, rung).latency * 1e3,
                statistics.median(latency for turn in taken for latency in turn.latency_ms),
                statistics.median(turn.stall_ms for turn in taken),
                bound_s(library.program, rung, prediction) * 1e3,
                taken[0].bytes_read,
                _medians(taken),
                _medians(alone) if own else (),
                _medians(fastest),
                tuple(turns.bandwidths[budget, strategy]),
            )


def _medians(taken: Sequence[Turn]) -> tuple[float, ...]:
    return tuple(statistics.median(turn.latency_ms) for turn in taken)


COLUMNS = {
    "storage": "", "strategy": "", "budget, MiB": ".2f", "planned, ms": ".2f", "predicted, ms": ".2f", "error": "+.1%",
    "measured, ms": ".2f", "stalled, ms": ".2f", "computing, ms": ".2f", "read, MB": ".1f", "MB/s": ".0f", "bound, ms": ".2f",
    "over the bound": ".3f", "possible, ms": ".2f", "over that": ".3f", "over the fastest kernels": ".3f",
}  # fmt: skip


def add_row(table: Table, point: Point) -> None:
    """The row of a rung."""
    table.add(
        point.storage, point.strategy, point.budget_bytes / 2**20, point.planned_ms, point.predicted_ms, point.error,
        point.measured_ms, point.stall_ms, point.compute_ms, point.bytes_read / 1e6, point.bandwidth / 1e6, point.bound_ms,
        point.ratio, point.possible_ms, point.measured_ms / point.possible_ms, point.of_fastest if point.fastest_ms else None,
    )  # fmt: skip


def conclude(points: Sequence[Point]) -> None:
    """The conclusions of the table."""
    for storage in dict.fromkeys(point.storage for point in points):
        here = [point for point in points if point.storage == storage]
        mine = {point.budget_bytes: point for point in here if point.strategy == "best"}
        if not mine:
            continue
        ratios, errors = [point.ratio for point in mine.values()], [abs(point.error) for point in mine.values()]
        possible = [point.measured_ms / point.possible_ms for point in mine.values()]
        print(
            f"{storage}: over the bound, median {statistics.median(ratios):.3f}, largest {max(ratios):.3f},"
            f" at most {NEAR} in {sum(ratio <= NEAR for ratio in ratios)} of {len(ratios)};"
            f" over what is possible, median {statistics.median(possible):.3f}, largest {max(possible):.3f};"
            f" prediction, median error {statistics.median(errors):.1%}, worst {max(errors):.1%}"
        )
        for strategy in dict.fromkeys(point.strategy for point in here if point.strategy != "best"):
            others = [point for point in here if point.strategy == strategy and point.budget_bytes in mine]
            parts = [mine[point.budget_bytes].part_of(point) for point in others]
            if parts:
                low, middle, high = min(parts), statistics.median(parts), max(parts)
                print(f"    best takes {low:.3f} to {high:.3f} of the time of {strategy}, in the median {middle:.3f}")


def main() -> None:
    """Build, measure, or both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", metavar="NETWORK", choices=models.NAMES)
    parser.add_argument("action", choices=("build", "measure", "all"))
    parser.add_argument("dir", type=Path, help="a folder on the disk to measure")
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--storage", default="disk,718e6,tmpfs")
    parser.add_argument("--tmpfs", type=Path, default=TMPFS, help="a folder in memory")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--profile", type=Path, help="a profile by `flexcomp profile`")
    parser.add_argument("--seconds", type=float, default=1.0, help="for which a rung is measured")
    parser.add_argument("--budgets", type=int, help="measure only so many, from the smallest to everything resident")
    parser.add_argument("--at", metavar="BUDGET", help="plan for this one exactly, and measure only it: 25%%, 0.25, 8MB")
    parser.add_argument("--weights", choices=WEIGHTS, help="what weights are kept as")
    parser.add_argument("--arithmetic", choices=ARITHMETICS, default=DEFAULT_ARITHMETIC, help="what layers compute in")
    parser.add_argument("--store", choices=STORES, default=DEFAULT_STORE, help="in how many forms they are stored")
    json_option(parser, "ladder")
    args = parser.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)
    storages, strategies = args.storage.split(","), args.strategies.split(",")
    if args.action != "measure":
        profile = load_profile(args.profile) if args.profile else probed_profile(args.dir, resolve_target("native"))[0]
        try:
            build(
                models.load(args.name), args.dir, media(storages, args.dir, args.tmpfs), strategies, profile,
                args.threads, args.at, weights=args.weights, store=args.store, arithmetic=args.arithmetic,
            )
        except BudgetError as error:
            raise SystemExit(f"{args.name}: {error}") from None
    if args.action == "build":
        return
    written, table, points = Results.begin("benchmarks.ladder"), Table(COLUMNS, args.name), []
    for point in measure(
        args.name, args.dir, storages, strategies, args.threads, args.seconds, args.tmpfs, args.budgets, args.at
    ):
        points.append(point)
        add_row(table, point)
    conclude(points)
    written.write(args.json, [table], points=[asdict(point) for point in points])


if __name__ == "__main__":
    main()
