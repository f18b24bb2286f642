"""How far predicted latencies are from measured ones, over all budgets of a library.

    python -m benchmarks.prediction LIBRARY… [--device device.json] [--threads N] [--repeat N] [--json FILE]

Without --device the libraries themselves are profiled first. Every budget is then run, and its plan simulated with the
measured times.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path

from flexcomp.device.profile import DeviceProfile, load_profile
from flexcomp.profiling.fitting import fit, operand_bytes
from flexcomp.profiling.observing import Library, observe
from flexcomp.program.prediction import LayerTime, Prediction
from flexcomp.program.program import Program
from flexcomp.program.program_bytes import decode_program
from flexcomp.runtime import runner
from flexcomp.runtime.library import read_program


def prediction_of(program: Program, profile: DeviceProfile, threads: int) -> Prediction:
    """The times that plans of this program would be judged by."""
    layers = tuple(
        LayerTime(
            profile.layer_seconds(layer, float(layer.flops), operand_bytes(layer), threads),
            profile.slice_seconds(layer, threads),
        )
        for layer in program.layers
    )
    storage = replace(profile.storage, crowded=profile.crowded(threads))
    return Prediction(layers, storage, profile.prepare_s)


def compare(library: Path, profile: DeviceProfile, threads: int | None, repeat: int) -> list[dict]:
    """One record for each rung of the library."""
    program = decode_program(read_program(library))
    rows = []
    for index, rung in enumerate(program.rungs):
        report = runner.run(library, budget=rung.budget, threads=threads, repeat=repeat, warmup=2)
        timeline = prediction_of(program, profile, report["threads"]).timeline(program, rung)
        rows.append(
            {
                "network": program.model,
                "rung": index,
                "budget_bytes": rung.budget,
                "measured_ms": report["median_ms"],
                "predicted_ms": timeline.latency * 1e3,
                "stall_ms": report["stall_ms"],
                "predicted_stall_ms": timeline.stall * 1e3,
                "error": timeline.latency * 1e3 / report["median_ms"] - 1,
            }
        )
    return rows


def main() -> None:
    """Print a table and the errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", nargs="+", type=Path)
    parser.add_argument("--device", type=Path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    libraries = [Library(path) for path in args.libraries]
    profile = load_profile(args.device) if args.device else fit(observe(libraries, args.threads, args.repeat))
    rows = []
    print(f"{'network':<16}{'budget':>12}{'measured':>12}{'predicted':>12}{'error':>9}{'stalled':>12}{'predicted':>12}")
    for library in args.libraries:
        for row in compare(library, profile, args.threads, args.repeat):
            rows.append(row)
            print(
                f"{row['network'][:15]:<16}{row['budget_bytes'] / 2**20:>8.2f} MiB{row['measured_ms']:>9.2f} ms"
                f"{row['predicted_ms']:>9.2f} ms{row['error']:>+9.1%}{row['stall_ms']:>9.2f} ms"
                f"{row['predicted_stall_ms']:>9.2f} ms"
            )
    errors = [abs(row["error"]) for row in rows]
    print(f"median error {statistics.median(errors):.1%}, worst {max(errors):.1%}, over {len(rows)} budgets")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
