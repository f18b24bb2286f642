"""Everything resident, one thread: flexcomp beside ONNX Runtime.

    python -m benchmarks.resident [NETWORK...] [--threads 1] [--rounds 7]

The two take turns in processes of their own, so that a slow minute of the machine hits both. Reported are
medians over all runs (each process warms up once) and the median over rounds of the ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx

import flexcomp
from benchmarks import models
from flexcomp.runtime import runner

DEFAULT = ("resnet50_v15", "resnet152")


def compare_network(name: str, folder: Path, threads: int, rounds: int, repeat: int) -> dict:
    """Latencies of both for the network `name`."""
    network = models.load(name)
    library, model, inputs = folder / f"{name}.so", folder / f"{name}.onnx", folder / "inputs.npz"
    example = network.example(0)
    onnx.save(network.model, model)
    np.savez(inputs, **example)
    files = {}
    for index, (key, value) in enumerate(example.items()):
        files[key] = folder / f"input{index}.npy"
        np.save(files[key], value)
    flexcomp.build(network.model, input_shapes=network.input_shapes, threads=threads).export_library(str(library))

    ours, theirs, ratios = [], [], []
    for _ in range(rounds):
        report = runner.run(library, threads=threads, repeat=repeat, warmup=1, inputs=files)
        mine = report["latency_ms"]
        other = _onnxruntime(model, inputs, threads, repeat)
        ours += mine
        theirs += other
        ratios.append(statistics.median(mine) / statistics.median(other))
    return {
        "network": name,
        "threads": threads,
        "flexcomp_ms": statistics.median(ours),
        "onnxruntime_ms": statistics.median(theirs),
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }


def _onnxruntime(model: Path, inputs: Path, threads: int, repeat: int) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.peers.ort_worker", str(model), str(inputs)]
    command += ["--threads", str(threads), "--repeat", str(repeat)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["latency_ms"]


def main() -> None:
    """Compare the chosen networks and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NETWORK")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--repeat", type=int, default=10, help="runs per process")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    results = []
    print(f"{'network':<16}{'flexcomp':>12}{'ONNX Runtime':>16}{'ratio':>8}")
    for name in args.names or DEFAULT:
        with tempfile.TemporaryDirectory() as folder:
            result = compare_network(name, Path(folder), args.threads, args.rounds, args.repeat)
        results.append(result)
        print(
            f"{name:<16}{result['flexcomp_ms']:>9.1f} ms{result['onnxruntime_ms']:>13.1f} ms{result['ratio']:>8.2f}"
            f"   ({min(result['ratios']):.2f} to {max(result['ratios']):.2f})",
            flush=True,
        )
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
