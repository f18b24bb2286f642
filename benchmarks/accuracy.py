"""All networks at four budgets: outputs against ONNX Runtime, memory against the budget.

    python -m benchmarks.accuracy                        # everything
    python -m benchmarks.accuracy resnet50 squeezenet    # some
    python -m benchmarks.accuracy --cgroup               # also under a hard limit of idle + budget + 8 MiB
    python -m benchmarks.accuracy --weights int8         # errors by rounded weights, which are not judged

Each network is built and measured in a process of its own. Ends with code 1 if anything is out of bounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import flexcomp
from benchmarks import cgroup, models
from benchmarks.results import Results, Table, json_option
from flexcomp.compiler.known import DEFAULT_STORE, STORES, WEIGHTS
from flexcomp.demo import compare
from flexcomp.errors import FlexcompError

MIB = 1 << 20
ALLOWANCE = 4 * MIB  # of the process beyond the budget
LIMIT_ALLOWANCE = 8 * MIB  # beyond idle and budget, under a control group
DISTINCT = 0.10  # outputs of different inputs differ by more than this part of their maximum
VARIANTS = 2  # inputs of each network


def check_network(name: str, folder: Path, *, use_cgroup: bool, threads: int | None, store: str, weights: str | None) -> dict:
    """Build the network `name` and measure it at each budget."""
    network = models.load(name)
    start = time.monotonic()
    artifact = flexcomp.build(network.model, input_shapes=network.input_shapes, threads=threads, store=store, weights=weights)
    library = folder / f"{name}.so"
    artifact.export_library(str(library))
    build_s = time.monotonic() - start

    inputs = [network.example(variant) for variant in range(VARIANTS)]
    expected = [compare.reference(network.model, value) for value in inputs]
    distance = min(compare.relative_error(a, b) for a, b in itertools.combinations(expected, 2))
    rungs = []
    for label, budget in compare.budgets(artifact.program).items():
        runs = [
            compare.measure(library, label, budget, value, want, threads=threads)
            for value, want in zip(inputs, expected, strict=True)
        ]
        first = runs[0].report
        rungs.append(
            {
                "label": label,
                "budget_bytes": budget,
                "error": max(run.error for run in runs),
                "overhead_bytes": max(run.overhead_nbytes for run in runs),
                "report": first,
            }
        )
        if use_cgroup:
            limit = first["idle_rss_bytes"] + budget + LIMIT_ALLOWANCE
            rungs[-1]["cgroup"] = _check_limit(library, label, budget, inputs[0], expected[0], limit, threads)
    return {"network": name, "weights": weights, "build_s": build_s, "distance": distance, "rungs": rungs}


def _check_limit(library, label, budget, inputs, expected, limit, threads) -> dict:
    with cgroup.memory_group(limit) as group:
        try:
            run = compare.measure(library, label, budget, inputs, expected, threads=threads, prefix=group.prefix)
            outcome = {"completed": True, "error": run.error, "median_ms": run.report["median_ms"]}
        except FlexcompError as error:
            outcome = {"completed": False, "reason": str(error)}
        return {"limit_bytes": limit, **outcome, **group.facts()}


def problems(result: dict) -> list[str]:
    """The violated bounds of one network's result."""
    if "failure" in result:
        return [result["failure"]]
    found = []
    if not result["distance"] > DISTINCT:
        found.append(f"outputs of different inputs differ by {result['distance']:.1%} only")
    tolerance = float("inf") if result["weights"] else compare.TOLERANCE
    for rung in result["rungs"]:
        if not rung["error"] <= tolerance:
            found.append(f"{rung['label']}: error {rung['error']:.1e}")
        excess = rung["overhead_bytes"] - rung["budget_bytes"]
        if excess > ALLOWANCE:
            found.append(f"{rung['label']}: {excess / MIB:.1f} MiB over the budget")
        limited = rung.get("cgroup")
        if limited and not (limited["completed"] and limited["swap_bytes"] == 0 and limited["kills"] == 0):
            found.append(f"{rung['label']}: not completed in {limited['limit_bytes'] / MIB:.1f} MiB")
        if limited and limited["completed"] and not limited["error"] <= tolerance:
            found.append(f"{rung['label']}: error {limited['error']:.1e} under the memory limit")
    return found


def _in_own_process(name: str, options: list[str]) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        command = [sys.executable, "-m", "benchmarks.accuracy", name, "--worker", str(path), *options]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if path.exists():
            return json.loads(path.read_text())
        reason = (done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1]
        return {"network": name, "failure": reason}


COLUMNS = {
    "network": "", "inputs differ by": ".0%", "budget": "", "MiB": ".2f", "largest error": ".1e",
    "peak over budget, MiB": "+.2f", "median, ms": ".1f", "under a memory limit": "", "verdict": "",
}  # fmt: skip


def add_rows(table: Table, result: dict) -> None:
    """A row for each budget of one network, or one for its failure."""
    if "failure" in result:
        table.add(result["network"], *[None] * 7, result["failure"])
    for rung in result.get("rungs", ()):
        limited = rung.get("cgroup")
        table.add(
            result["network"], result["distance"], rung["label"], rung["budget_bytes"] / MIB, rung["error"],
            (rung["overhead_bytes"] - rung["budget_bytes"]) / MIB, rung["report"]["median_ms"],
            None if limited is None else "completed" if limited["completed"] else "failed",
            "; ".join(problems({**result, "rungs": [rung]})) or "ok",
        )  # fmt: skip


def main() -> None:
    """Measure the chosen networks and print one table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NETWORK", help=f"some of {', '.join(models.NAMES)}")
    parser.add_argument("--cgroup", action="store_true", help="run also under a memory limit of the operating system")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--weights", choices=WEIGHTS, help="element type of the weights")
    parser.add_argument("--store", choices=STORES, default=DEFAULT_STORE, help="how weights lie in the file")
    json_option(parser, "accuracy")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.names) - set(models.NAMES):
        parser.error(f"no network {', '.join(sorted(unknown))}; there are {', '.join(models.NAMES)}")
    if args.cgroup and not cgroup.is_available():
        parser.error("this machine does not let us make memory control groups")
    if args.worker:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            result = check_network(
                args.names[0], place, use_cgroup=args.cgroup, threads=args.threads, store=args.store, weights=args.weights
            )
        args.worker.write_text(json.dumps(result))
        return

    options = ["--weights", args.weights] if args.weights else []
    options += ["--store", args.store, *["--cgroup"] * args.cgroup] + (["--threads", str(args.threads)] if args.threads else [])
    written, table, results = Results.begin("benchmarks.accuracy"), Table(COLUMNS), []
    for name in args.names or models.NAMES:
        results.append(_in_own_process(name, options))
        add_rows(table, results[-1])
        written.write(args.json, [table], results=results)
    sys.exit(any(problems(result) for result in results))


if __name__ == "__main__":
    main()
