"""Predicted over measured latency of networks, with everything resident and at smaller budgets.

    python -m benchmarks.lab.predictions [NETWORK …] [--profile PROFILE.json] [--threads N] [--budgets 4] [--json FILE]

Each network is built for this machine and run on the storage of --dir. A prediction is the plan's own: of rates that a default
build measures in a second or two, or of a profile. Rungs take turns, so slow seconds strike all of them. The exit status is 1
where a prediction errs by more than MOST, or all predictions by more than MEDIAN in the median. Measure on a quiet machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import flexcomp
from benchmarks import models
from benchmarks.results import Results, Table, json_option
from benchmarks.turns import Compiled, Contender, evenly
from flexcomp.compiler import probed_profile
from flexcomp.device import DeviceProfile, load_profile, resolve_target

# Kernels were tuned for the first ones.
NETWORKS = (
    "resnet50_v15", "vgg19_torch", "mobilenet_v2", "squeezenet1_1", "vit_b16", "gpt2",
    "resnet152", "efficientnet_b0", "regnet_y_400mf", "shufflenet_v2", "convnext_tiny",
)  # fmt: skip
MEDIAN, MOST = 0.10, 0.20
_TURNS, _MOST_INFERENCES = 5, 10
COLUMNS = {"network": "", "budget MiB": ".1f", "predicted ms": ".2f", "measured ms": ".2f", "predicted / measured": ".3f"}


@dataclass(frozen=True)
class Point:
    """A rung of a network."""

    network: str
    budget_bytes: int
    predicted_ms: float
    measured_ms: float  # the median of all turns

    @property
    def ratio(self) -> float:
        return self.predicted_ms / self.measured_ms


def measure(name: str, folder: Path, profile: DeviceProfile, threads: int, budgets: int, seconds: float) -> Iterator[Point]:
    """The network with everything resident, and at so many smaller budgets; each rung runs for about so many seconds."""
    network, path = models.load(name), folder / f"{name}.so"
    flexcomp.build(network.model, input_shapes=network.input_shapes, threads=threads, profile=profile).export_library(path)
    compiled = Compiled(path)
    rungs = {rung.budget: rung for rung in compiled.program.rungs}
    kept = [rungs[budget] for budget in evenly(sorted(rungs), budgets + 1)]
    contender, latencies = Contender(compiled, {"threads": threads}), {rung.budget: [] for rung in kept}
    for _ in range(_TURNS):
        for rung in kept:
            contender.prepare(rung)
            inferences = max(1, min(_MOST_INFERENCES, round(seconds / _TURNS / rung.seconds)))
            latencies[rung.budget] += contender.take(inferences).latency_ms
    contender.session.close()
    for rung in kept:
        yield Point(name, rung.budget, rung.predicted_ms, statistics.median(latencies[rung.budget]))


def conclude(points: list[Point]) -> tuple[float, float]:
    """The error of predictions in the median and at most, as parts of the measured latency."""
    errors = [abs(point.ratio - 1) for point in points]
    return statistics.median(errors), max(errors)


def main() -> int:
    """The command line; 1 if predictions err too much."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK", choices=[*models.NAMES, []], help="default: eleven")
    parser.add_argument("--profile", type=Path, help="a profile by `flexcomp profile`; by default the machine is probed")
    parser.add_argument("--dir", type=Path, default=Path(), help="a folder on the storage to read from")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--budgets", type=int, default=4, help="below everything resident")
    parser.add_argument("--seconds", type=float, default=2.0, help="for which a rung is measured")
    json_option(parser, "predictions")
    args = parser.parse_args()
    profile = load_profile(args.profile) if args.profile else probed_profile(args.dir, resolve_target("native"))[0]
    written, table, points = Results.begin("benchmarks.lab.predictions"), Table(COLUMNS), []
    for name in args.networks or NETWORKS:
        with tempfile.TemporaryDirectory(dir=args.dir) as folder:
            for point in measure(name, Path(folder), profile, args.threads, args.budgets, args.seconds):
                points.append(point)
                table.add(point.network, point.budget_bytes / 2**20, point.predicted_ms, point.measured_ms, point.ratio)
    median, most = conclude(points)
    print(f"\nerrors: {median:.1%} in the median (at most {MEDIAN:.0%} wanted), {most:.1%} at most ({MOST:.0%})")
    written.write(args.json, [table], points=[asdict(point) for point in points], median_error=median, largest_error=most)
    return int(median > MEDIAN or most > MOST)


if __name__ == "__main__":
    sys.exit(main())
