"""Every rung of a network, predicted and measured, next to the bound max(computing, bytes read / bandwidth).

    python -m benchmarks.ladder [NETWORK] [--strategies best,flexnn,swapnet,on_demand] [--storage disk,718e6,tmpfs]

A storage is `disk` (where DIR lies, O_DIRECT), a number (that disk slowed down to so many bytes per second), or
`tmpfs` (/dev/shm). Plans are made for the storage's bandwidth as it is measured. Computing is the latency of the
largest rung of strategy `best`, everything resident.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

import flexcomp
from benchmarks import models
from benchmarks.streaming import sequential_bandwidth
from flexcomp import runner
from flexcomp.device import DeviceProfile, default_profile
from flexcomp.errors import BudgetError
from flexcomp.target import resolve_target

STRATEGIES = ("best", "flexnn", "swapnet", "on_demand")
_PROBE_NBYTES = 256 << 20


@dataclass(frozen=True)
class Medium:
    """Where weights are read from."""

    name: str
    folder: Path
    bandwidth: float  # bytes per second, measured or imitated
    limit: float | None = None  # imitate it


@dataclass(frozen=True)
class Point:
    """One rung under one strategy on one medium."""

    storage: str
    strategy: str
    budget_bytes: int
    predicted_ms: float
    measured_ms: float
    compute_ms: float
    bytes_read: int
    bound_ms: float

    @property
    def ratio(self) -> float:
        """Measured latency over the bound."""
        return self.measured_ms / self.bound_ms


def medium(name: str, folder: Path) -> Medium:
    """The storage called `name`; `folder` lies on the disk."""
    if name == "tmpfs":
        folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
        return Medium(name, folder, _bandwidth(folder))
    speed = _bandwidth(folder)
    if name == "disk":
        return Medium(name, folder, speed)
    return Medium(name, folder, min(float(name), speed), limit=float(name))


def _bandwidth(folder: Path) -> float:
    probe = folder / "probe"
    with open(probe, "wb") as file:
        for _ in range(_PROBE_NBYTES >> 20):
            file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())
    try:
        return sequential_bandwidth(probe)
    except OSError:  # no O_DIRECT here
        buffer = bytearray(4 << 20)
        with open(probe, "rb", buffering=0) as file:
            start = time.perf_counter()
            while file.readinto(buffer):
                pass
            return _PROBE_NBYTES / (time.perf_counter() - start)
    finally:
        probe.unlink()


def rungs(
    network: models.Network,
    where: Medium,
    strategy: str,
    profile: DeviceProfile,
    threads: int,
    repeat: int,
    compute_ms: float | None = None,
    buffered: bool = False,
) -> Iterator[Point]:
    """Build, then measure every rung; `compute_ms` defaults to the latency of the largest."""
    library = where.folder / f"{network.name}.{strategy}.so"
    device = replace(profile, storage_bytes_per_s=where.bandwidth)
    artifact = flexcomp.build(
        network.model, input_shapes=network.input_shapes, threads=threads, strategy=strategy, device=device
    )
    artifact.export_library(str(library))
    files = {}
    for index, (key, value) in enumerate(network.example(0).items()):
        files[key] = where.folder / f"input{index}.npy"
        np.save(files[key], value)

    def run(budget: int) -> dict:
        return runner.run(
            library,
            budget=budget,
            threads=threads,
            repeat=repeat,
            warmup=2,
            inputs=files,
            read_bandwidth=where.limit,
            buffered=buffered,
        )

    if compute_ms is None:
        compute_ms = run(artifact.program.rungs[-1].budget)["median_ms"]
    for rung in artifact.program.rungs:
        report = run(rung.budget)
        bound = max(compute_ms, report["bytes_read"] / where.bandwidth * 1e3)
        yield Point(
            where.name,
            strategy + (" buffered" if buffered else ""),
            rung.budget,
            rung.predicted_s * 1e3,
            report["median_ms"],
            compute_ms,
            report["bytes_read"],
            bound,
        )
    library.unlink()
    library.with_suffix(".weights").unlink()


def show(point: Point) -> None:
    """One line of the table."""
    print(
        f"{point.storage:>8} {point.strategy:24} {point.budget_bytes / 2**20:8.2f} MiB"
        f"  predicted {point.predicted_ms:8.2f}  measured {point.measured_ms:8.2f}  computing {point.compute_ms:8.2f}"
        f"  read {point.bytes_read / 1e6:7.1f} MB  bound {point.bound_ms:8.2f}  ratio {point.ratio:5.3f}",
        flush=True,
    )


def main() -> None:
    """Measure one network and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", default="mobilenet_v2", metavar="NETWORK", choices=models.NAMES)
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--storage", default="disk,718e6,tmpfs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--device", type=Path, help="a profile by `flexcomp profile`")
    parser.add_argument("--dir", type=Path, default=Path(), help="a folder on the disk to measure")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    network = models.load(args.name)
    profile = _profile(args.device)
    points: list[Point] = []
    for name in args.storage.split(","):
        with tempfile.TemporaryDirectory(dir=args.dir) as folder:
            where = medium(name, Path(folder))
            compute = None
            for strategy in args.strategies.split(","):
                try:
                    for point in rungs(network, where, strategy, profile, args.threads, args.repeat, compute):
                        compute = point.compute_ms
                        points.append(point)
                        show(point)
                except BudgetError as error:
                    print(f"{strategy}: {error}")
            if name == "tmpfs":
                shutil.rmtree(where.folder)
    mine = [point.ratio for point in points if point.strategy == "best"]
    if mine:
        print(f"best over its bound: median {statistics.median(mine):.3f}, largest {max(mine):.3f}")
    if args.json:
        args.json.write_text(json.dumps([asdict(point) | {"ratio": point.ratio} for point in points], indent=1))


def _profile(path: Path | None) -> DeviceProfile:
    if path is None:
        return default_profile(resolve_target("native").vector_width)
    return flexcomp.device.load_profile(path)


if __name__ == "__main__":
    main()
