"""Networks on the GPU of this machine: resident and streamed, next to the bound that copies and computing set.

    python -m benchmarks.lab.cuda build DIR [NETWORK …] --arch sm_90      here or elsewhere, with nvcc
    python -m benchmarks.lab.cuda run DIR [--repeat 50] [--json FILE]

`build` writes libraries, inputs and ONNX Runtime's outputs to DIR, which `run` needs on a machine with a GPU. An
inference is from inputs to outputs in the host's memory, for all; medians. Streamed ones are held against
max(computing, bytes / bandwidth), where bandwidth is the lower one of copies to the GPU and of DIR's storage, both measured, and
computing is the resident latency. Memory is the difference of `cuMemGetInfo` from before the session was opened; a session of the
smallest budget was open before, so the driver's context does not count.
The exit status is 1 if outputs differ by more than 1e-4 of the largest, and 2 without a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime

import flexcomp
from benchmarks import models
from benchmarks.lab.cuda.device import Gpu, NoGpu
from benchmarks.peers.measure import largest_error
from benchmarks.results import Results, Table, json_option
from benchmarks.storage import sequential_bandwidth

NETWORKS = ("resnet50_v15", "resnet152", "vgg19_torch", "mobilenet_v2", "vit_b16")
BUDGETS = ("all", 0.5, 0.25, 0.1, "min")
ACCURATE = 1e-4  # of the largest output
WARM_UP = 3
COLUMNS = {
    "network": "", "budget, MiB": ".1f", "memory taken, MiB": ".1f", "ms": ".2f", "bound, ms": ".2f", "over the bound": ".2f",
    "outputs differ by": ".1e",
}  # fmt: skip


def build(folder: Path, names: list[str], architecture: str) -> None:
    """Write a library for each network, with an input and the expected output."""
    for name in names:
        network = models.load(name)
        start = time.perf_counter()
        artifact = flexcomp.build(network.model, f"cuda -arch={architecture}", 0.1, input_shapes=network.input_shapes)
        artifact.export_library(folder / f"{name}.so")
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
        given = network.example(0)
        reference = onnxruntime.InferenceSession(network.model.SerializeToString(), providers=["CPUExecutionProvider"])
        wanted = dict(zip([port.name for port in reference.get_outputs()], reference.run(None, given), strict=True))
        np.savez(folder / f"{name}.inputs.npz", **given)
        np.savez(folder / f"{name}.outputs.npz", **wanted)


def run(folder: Path, repeat: int, gpu: Gpu, table: Table) -> tuple[list[dict], bool]:
    """Facts of all networks of a folder, and whether all outputs are right."""
    copies = gpu.copy_bandwidth()
    found, is_right = [], True
    for library in sorted(folder.glob("*.so")):
        given, wanted = (dict(np.load(library.with_suffix(f".{part}.npz"))) for part in ("inputs", "outputs"))
        storage = sequential_bandwidth(library.with_suffix(".weights"))
        with flexcomp.load(library, "min"):  # the context, and the driver's memory
            pass
        computing = None
        for budget in BUDGETS:
            facts = _measured(library, budget, given, wanted, repeat, gpu)
            computing = computing or facts["ms"]
            bound = max(computing, 1e3 * facts["bytes_read"] / min(copies, storage))
            facts |= {"network": library.stem, "bound_ms": bound, "copy_bandwidth": copies, "storage_bandwidth": storage}
            found.append(facts)
            is_right &= facts["error"] <= ACCURATE
            table.add(
                library.stem, facts["budget_bytes"] / 2**20, facts["taken_bytes"] / 2**20, facts["ms"], bound,
                facts["ms"] / bound, facts["error"],
            )  # fmt: skip
    return found, is_right


def _measured(library: Path, budget: str | float, given: dict, wanted: dict, repeat: int, gpu: Gpu) -> dict:
    before = gpu.used_nbytes()
    with flexcomp.load(library, budget) as session:
        for _ in range(WARM_UP):
            results = session.run(given)
        taken = gpu.used_nbytes() - before
        times, read = [], []
        for _ in range(repeat):
            start = time.perf_counter()
            session.run(given)
            times.append(1e3 * (time.perf_counter() - start))
            read.append(session.stats()["bytes_read"])
        stats = session.stats()
    return {
        "budget_bytes": stats["budget_bytes"], "taken_bytes": taken, "ms": statistics.median(times),
        "bytes_read": statistics.median(read), "error": largest_error([results[name] for name in wanted], list(wanted.values())),
    }  # fmt: skip


def main() -> int:
    """Build, or measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ways = parser.add_subparsers(dest="way", required=True)
    for way in ("build", "run"):
        ways.add_parser(way).add_argument("folder", type=Path)
    ways.choices["build"].add_argument("networks", nargs="*", metavar="NETWORK", default=list(NETWORKS))
    ways.choices["build"].add_argument("--arch", default="sm_90")
    ways.choices["run"].add_argument("--repeat", type=int, default=50)
    json_option(ways.choices["run"], "cuda")
    args = parser.parse_args()
    if args.way == "build":
        args.folder.mkdir(parents=True, exist_ok=True)
        build(args.folder, args.networks, args.arch)
        return 0
    try:
        gpu = Gpu()
    except NoGpu as error:
        print(f"this benchmark runs on a GPU only: {error}", file=sys.stderr)
        return 2
    written = Results.begin("benchmarks.lab.cuda")
    table = Table(COLUMNS, f"{gpu.name} ({gpu.architecture})")
    found, is_right = run(args.folder, args.repeat, gpu, table)
    written.write(args.json, [table], facts=found)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
