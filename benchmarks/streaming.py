"""How close streaming comes to its bound, max(compute time, bytes read / bandwidth of the disk).

    python -m benchmarks.streaming [NETWORK] [--fraction 0.1] [--dir DIR]

Compute time is the latency with everything resident; the bandwidth is that of reading the weights file from
beginning to end with O_DIRECT. All three are measured in turns. DIR decides which disk is measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import numpy as np

import flexcomp
from benchmarks import models
from benchmarks.storage import sequential_bandwidth
from flexcomp.runtime import runner


def measure(name: str, folder: Path, fraction: float, threads: int | None, rounds: int, repeat: int) -> dict:
    """Latencies, bandwidth and their ratio for the network `name`."""
    network = models.load(name)
    library = folder / f"{name}.so"
    artifact = flexcomp.build(network.model, budget=fraction, input_shapes=network.input_shapes, threads=threads)
    artifact.export_library(str(library))
    budget = int(fraction * artifact.program.rungs[-1].budget)
    files = {}
    for index, (key, value) in enumerate(network.example(0).items()):
        files[key] = folder / f"input{index}.npy"
        np.save(files[key], value)

    compute, streamed, bandwidth, read, ratios = [], [], [], [], []
    for _ in range(rounds):
        resident = runner.run(library, budget="all", threads=threads, repeat=repeat, warmup=1, inputs=files)["latency_ms"]
        report = runner.run(library, budget=budget, threads=threads, repeat=repeat, warmup=1, inputs=files)
        speed = sequential_bandwidth(library.with_suffix(".weights"))
        latency = report["latency_ms"]
        nbytes = report["bytes_read"]
        bound = max(statistics.median(resident), nbytes / speed * 1e3)
        compute += resident
        streamed += latency
        bandwidth.append(speed)
        read.append(nbytes)
        ratios.append(statistics.median(latency) / bound)
    return {
        "network": name,
        "budget_bytes": budget,
        "compute_ms": statistics.median(compute),
        "latency_ms": statistics.median(streamed),
        "bytes_read": statistics.median(read),
        "bandwidth": statistics.median(bandwidth),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }


def main() -> None:
    """Measure one network and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", default="vgg19", metavar="NETWORK", choices=models.NAMES)
    parser.add_argument("--fraction", type=float, default=0.10, help="budget as a part of the resident size")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=5, help="runs per process")
    parser.add_argument("--dir", type=Path, default=Path(), help="a folder on the disk to measure")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        result = measure(args.name, Path(folder), args.fraction, args.threads, args.rounds, args.repeat)
    loading = result["bytes_read"] / result["bandwidth"] * 1e3
    print(f"{result['network']} in {result['budget_bytes'] / 2**20:.1f} MiB")
    print(f"computing       {result['compute_ms']:9.1f} ms   everything resident")
    print(
        f"reading         {loading:9.1f} ms   {result['bytes_read'] / 1e6:.1f} MB at {result['bandwidth'] / 1e6:.0f} MB/s"
    )
    print(f"together        {result['latency_ms']:9.1f} ms   streamed")
    print(f"over the bound  {result['ratio']:9.2f}      ({min(result['ratios']):.2f} to {max(result['ratios']):.2f})")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
