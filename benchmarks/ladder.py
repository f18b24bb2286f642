"""Every rung of a network, predicted and measured, next to the bound max(computing, bytes read / bandwidth).

    python -m benchmarks.ladder NETWORK build DIR [--device device.json] [--strategies best,flexnn,swapnet]
    python -m benchmarks.ladder NETWORK measure DIR [--json FILE]
    python -m benchmarks.ladder NETWORK all DIR

`build` writes a library for every storage and strategy into DIR, all with the same kernels and weights; `measure`, which
wants a quiet machine, runs all their rungs. A storage is `disk` (where DIR lies, O_DIRECT), a number (that disk slowed
down to so many bytes per second), or `tmpfs` (/dev/shm, or the folder given by --tmpfs). A tmpfs with huge pages, as by
`mount -t tmpfs -o huge=always,size=4g tmpfs /mnt/fast`, copies three times as fast. Plans are made for the rates given
by --rates, in bytes per second and seconds per load, or else for what the storage gives in a moment's measurement.

*Computing* is the measured latency of the rung's own kernels with everything resident; *bandwidth* is what the storage
gives to the runtime's loader, alone, reading in order, measured in the same process as the rung. Predictions are
those of the simulator with times profiled in runs of six rungs on the same storage.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import nan
from pathlib import Path

from benchmarks import models
from benchmarks.prediction import prediction_of
from benchmarks.storage import TMPFS, Medium, media
from flexcomp import runner
from flexcomp.artifact import decode_program
from flexcomp.budget import parse_budget
from flexcomp.build import prepare
from flexcomp.copies import cache_of_copies
from flexcomp.device import DeviceProfile, default_profile, load_profile
from flexcomp.errors import BudgetError
from flexcomp.prepared import Wish
from flexcomp.profiling import Library, fit, observe
from flexcomp.program import Rung
from flexcomp.rungs import layers_of
from flexcomp.session import read_program
from flexcomp.target import resolve_target

STRATEGIES = ("best", "flexnn", "swapnet")
YARDSTICK = "resident"  # the library with everything resident, one rung for each set of kernels
_REQUEST = 1 << 20  # bytes of a read when bandwidth is measured
_ROUNDS = 4  # a burst of others' work lasts about as long as one round of a rung
_LEAST, _MOST = 2, 15  # inferences of a rung in a round


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
    compute_ms: float | None  # None: these kernels were not run alone
    bytes_read: int
    bandwidth: float  # bytes per second
    rounds_ms: tuple[float, ...]  # the median of each round; strategies take turns in rounds

    @property
    def bound_ms(self) -> float:
        """max(computing, loading)."""
        return max(self.compute_ms or 0.0, self.bytes_read / self.bandwidth * 1e3)

    @property
    def ratio(self) -> float:
        """Measured latency over the bound."""
        return self.measured_ms / self.bound_ms

    @property
    def error(self) -> float:
        """Of the prediction, as a part of what was measured."""
        return self.predicted_ms / self.measured_ms - 1

    def part_of(self, other: Point) -> float:
        """Its time as a part of another's: the median over rounds, between which the machine's speed drifts."""
        return statistics.median(mine / its for mine, its in zip(self.rounds_ms, other.rounds_ms, strict=True))


def build(
    network: models.Network,
    folder: Path,
    storages: Sequence[Medium],
    strategies: Sequence[str],
    profile: DeviceProfile,
    threads: int,
) -> None:
    """Write DIR/NETWORK.weights and a library for every storage and strategy."""
    prepared = prepare(network.model, input_shapes=network.input_shapes, threads=threads, device=profile)
    names, wishes = [], []
    for medium in storages:
        storage = medium.storage(profile.wake_s, profile.storage.disturbance)
        for strategy in strategies:
            names.append(f"{medium.name}.{strategy}")
            wishes.append(Wish(parse_budget(None), strategy, storage))
    artifacts = prepared.artifacts(wishes, yardstick=True)
    digest = artifacts[0].write_weights(folder / f"{network.name}.weights")
    for name, artifact in zip([*names, YARDSTICK], artifacts, strict=True):
        artifact.write_library(folder / f"{network.name}.{name}.so", digest)


def measure(
    name: str,
    folder: Path,
    storages: Sequence[str],
    strategies: Sequence[str],
    threads: int,
    seconds: float,
    tmpfs: Path = TMPFS,
) -> Iterator[Point]:
    """Run every rung of what `build` wrote, for about that many seconds each.

    What is compared runs in turns: the first strategy's kernels alone, and all strategies with the same budget.
    """
    weights = folder / f"{name}.weights"
    resident = _Library(folder / f"{name}.{YARDSTICK}.so")
    alone = {resident.kernels(rung): rung for rung in resident.program.rungs}
    for storage in storages:
        with tempfile.TemporaryDirectory(dir=tmpfs) as fast:
            if storage == "tmpfs":
                shutil.copy(weights, fast)
            options = {
                "weights": Path(fast) / weights.name if storage == "tmpfs" else weights,
                "read_bandwidth": None if storage in ("disk", "tmpfs") else float(storage),
                "threads": threads,
            }
            libraries = {strategy: _Library(folder / f"{name}.{storage}.{strategy}.so") for strategy in strategies}
            cache = cache_of_copies(options["weights"]) if storage == "tmpfs" else 0
            profile = fit(observe([Library(libraries[strategies[0]].path)], **options), cache)
            predictions = {
                strategy: prediction_of(library.program, profile, threads) for strategy, library in libraries.items()
            }
            budgets = sorted({rung.budget for library in libraries.values() for rung in library.program.rungs})
            for budget in budgets:
                rungs = {
                    strategy: rung
                    for strategy, library in libraries.items()
                    for rung in library.program.rungs
                    if rung.budget == budget
                }
                runs: dict[str | tuple[str, ...], list[dict]] = {}
                for _ in range(_ROUNDS):
                    if strategies[0] in rungs:
                        kernels = libraries[strategies[0]].kernels(rungs[strategies[0]])
                        runs.setdefault(kernels, []).append(resident.run(alone[kernels], seconds, **options))
                    for strategy, rung in rungs.items():
                        library = libraries[strategy]
                        report = library.run(rung, seconds, read_rate=min(_REQUEST, rung.arena), **options)
                        runs.setdefault(strategy, []).append(report)
                for strategy, rung in rungs.items():
                    own = runs.get(libraries[strategy].kernels(rung))
                    yield Point(
                        storage,
                        strategy,
                        budget,
                        rung.predicted_s * 1e3,
                        predictions[strategy].timeline(libraries[strategy].program, rung).latency * 1e3,
                        _median(runs[strategy], "latency_ms"),
                        _median(runs[strategy], "stall_ms_each"),
                        _median(own, "latency_ms") if own else None,
                        runs[strategy][0]["bytes_read"],
                        statistics.fmean(report["read_bytes_per_s"] for report in runs[strategy]),
                        tuple(statistics.median(report["latency_ms"]) for report in runs[strategy]),
                    )


def latencies(
    name: str, folder: Path, storage: str, strategy: str, threads: int, seconds: float, buffered: bool = False
) -> dict[int, float]:
    """Median milliseconds by budget, of one library that `build` wrote for the disk or the disk slowed down."""
    library = _Library(folder / f"{name}.{storage}.{strategy}.so")
    limit = None if storage == "disk" else float(storage)
    weights = folder / f"{name}.weights"
    return {
        rung.budget: library.run(
            rung, seconds, weights=weights, threads=threads, read_bandwidth=limit, buffered=buffered
        )["median_ms"]
        for rung in library.program.rungs
    }


class _Library:
    """A library and its program."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.program = decode_program(read_program(path))

    def kernels(self, rung: Rung) -> tuple[str, ...]:
        """What a rung computes, whichever library it is of."""
        return tuple(self.program.layers[layer].name for layer in layers_of(rung))

    def run(self, rung: Rung, seconds: float, **options) -> dict:
        """What the runner reports of one of the rounds that take `seconds` together."""
        repeat = max(_LEAST, min(_MOST, round(seconds / _ROUNDS / rung.predicted_s)))
        return runner.run(self.path, budget=rung.budget, repeat=repeat, warmup=1, **options)


def _median(reports: Sequence[dict], key: str) -> float:
    return statistics.median(value for report in reports for value in report[key])


def show(point: Point) -> None:
    """One line of the table."""
    print(
        f"{point.storage:>6} {point.strategy:8} {point.budget_bytes / 2**20:7.2f} MiB  planned {point.planned_ms:7.2f}"
        f"  predicted {point.predicted_ms:7.2f} ({point.error:+6.1%})  measured {point.measured_ms:7.2f}"
        f"  stalled {point.stall_ms:7.2f}  computing {point.compute_ms or nan:7.2f}  read {point.bytes_read / 1e6:6.1f} MB"
        f" at {point.bandwidth / 1e6:5.0f} MB/s  bound {point.bound_ms:7.2f}  ratio {point.ratio:5.3f}",
        flush=True,
    )


def conclude(points: Sequence[Point]) -> None:
    """What the table comes to."""
    for storage in dict.fromkeys(point.storage for point in points):
        here = [point for point in points if point.storage == storage]
        mine = {point.budget_bytes: point for point in here if point.strategy == "best"}
        if not mine:
            continue
        ratios, errors = [point.ratio for point in mine.values()], [abs(point.error) for point in mine.values()]
        print(
            f"{storage}: over the bound, median {statistics.median(ratios):.3f}, largest {max(ratios):.3f};"
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
    parser.add_argument("--rates", default="", help="for example disk=1.1e9:60e-6,tmpfs=6e9:3e-6")
    parser.add_argument("--tmpfs", type=Path, default=TMPFS, help="a folder in memory")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", type=Path, help="a profile by `flexcomp profile`")
    parser.add_argument("--seconds", type=float, default=1.0, help="for which a rung is measured")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    args.dir.mkdir(parents=True, exist_ok=True)
    storages, strategies = args.storage.split(","), args.strategies.split(",")
    if args.action != "measure":
        profile = load_profile(args.device) if args.device else default_profile(resolve_target("native").vector_width)
        try:
            build(
                models.load(args.name),
                args.dir,
                media(storages, args.dir, args.rates, args.tmpfs),
                strategies,
                profile,
                args.threads,
            )
        except BudgetError as error:
            raise SystemExit(f"{args.name}: {error}") from None
    if args.action == "build":
        return
    points = []
    for point in measure(args.name, args.dir, storages, strategies, args.threads, args.seconds, args.tmpfs):
        points.append(point)
        show(point)
    conclude(points)
    if args.json:
        args.json.write_text(
            json.dumps(
                [asdict(p) | {"bound_ms": p.bound_ms, "ratio": p.ratio, "error": p.error} for p in points], indent=1
            )
        )


if __name__ == "__main__":
    main()
