"""Networks on the GPU of this machine: resident and streamed, next to the bound that loading and computing set, and PyTorch.

    python -m benchmarks.lab.cuda build DIR [NETWORK …] --arch sm_90 [--tf32]     here or elsewhere, with nvcc
    python -m benchmarks.lab.cuda run DIR [--repeat 50] [--seconds 2] [--torch] [--json FILE]

`build` writes libraries, inputs and ONNX Runtime's outputs to DIR; `run` needs these, flexcomp-runtime and a GPU. An inference is
from inputs to outputs in the host's memory; medians of --repeat inferences, or of those of --seconds. The bound is
max(computing, bytes / rate): the loader reads and copies at that rate where nothing is computed, and computing is the resident
latency. Memory is the difference of `cuMemGetInfo`; an earlier session made the driver's context. --torch measures torchvision's
network of that architecture as a CUDA graph, in the faster of both layouts. The exit status is 1 if outputs differ by more than
1e-4 of the largest, or 5e-3 with TF32, and 2 without a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import flexcomp
from benchmarks.lab.cuda.device import Gpu, NoGpu
from benchmarks.peers.measure import largest_error
from benchmarks.results import Results, Table, json_option

NETWORKS = ("resnet50_v15", "resnet152", "vgg19_torch", "mobilenet_v2", "vit_b16")
TORCHVISION = dict(zip(NETWORKS, ("resnet50", "resnet152", "vgg19", "mobilenet_v2", "vit_b_16"), strict=True))
BUDGETS = ("all", 0.5, 0.25, 0.1, "min")
TF32 = "_tf32"  # ends the names of libraries that compute so
ACCURATE = {False: 1e-4, True: 5e-3}  # of the largest output
WARM_UP = 3
COLUMNS = {
    "network": "", "budget, MiB": ".1f", "memory taken, MiB": ".1f", "ms": ".2f", "bound, ms": ".2f", "over the bound": ".2f",
    "PyTorch, ms": ".2f", "outputs differ by": ".1e",
}  # fmt: skip


def build(folder: Path, names: list[str], architecture: str, tf32: bool) -> None:
    """Write a library for each network, with an input and the expected output."""
    import onnxruntime  # not needed where the libraries run

    from benchmarks import models

    for name in names:
        network = models.load(name)
        start = time.perf_counter()
        artifact = flexcomp.build(network.model, f"cuda -arch={architecture}", 0.1, input_shapes=network.input_shapes, tf32=tf32)
        library = folder / f"{name}{TF32 * tf32}.so"
        artifact.export_library(library)
        print(f"{library.stem}: {time.perf_counter() - start:.0f} s", flush=True)
        given = network.example(0)
        reference = onnxruntime.InferenceSession(network.model.SerializeToString(), providers=["CPUExecutionProvider"])
        wanted = dict(zip([port.name for port in reference.get_outputs()], reference.run(None, given), strict=True))
        np.savez(library.with_suffix(".inputs.npz"), **given)
        np.savez(library.with_suffix(".outputs.npz"), **wanted)


def run(folder: Path, median: Callable[[Callable], float], gpu: Gpu, table: Table, torch: bool) -> tuple[list[dict], bool]:
    """Facts of all networks of a folder, and whether all outputs are right."""
    found, is_right = [], True
    for library in sorted(folder.glob("*.so")):
        given, wanted = (dict(np.load(library.with_suffix(f".{part}.npz"))) for part in ("inputs", "outputs"))
        name, tf32 = library.stem.removesuffix(TF32), library.stem.endswith(TF32)
        with flexcomp.load(library, "min") as session:  # also for the context, and the driver's memory
            rate, budgets = session.read_rate(), [rung.budget_bytes for rung in session.ladder]
        peer, computing = _torch_ms(TORCHVISION[name], tf32, median) if torch else None, None
        for budget in (one for one in BUDGETS if one in ("all", "min") or one * budgets[-1] > budgets[0]):
            facts = _measured(library, budget, given, wanted, median, gpu)
            computing = computing or facts["ms"]
            bound = max(computing, 1e3 * facts["bytes_read"] / rate)
            facts |= {"network": library.stem, "bound_ms": bound, "read_rate": rate, "torch_ms": peer}
            found.append(facts)
            is_right &= facts["error"] <= ACCURATE[tf32]
            table.add(
                library.stem, facts["budget_bytes"] / 2**20, facts["taken_bytes"] / 2**20, facts["ms"], bound,
                facts["ms"] / bound, peer, facts["error"],
            )  # fmt: skip
    return found, is_right


def _measured(library: Path, budget: str | float, given: dict, wanted: dict, median: Callable, gpu: Gpu) -> dict:
    before = gpu.used_nbytes()
    with flexcomp.load(library, budget) as session:
        results = [session.run(given) for _ in range(WARM_UP)][-1]
        taken = gpu.used_nbytes() - before
        milliseconds = median(lambda: session.run(given))
        stats = session.stats()
    return {
        "budget_bytes": stats["budget_bytes"], "taken_bytes": taken, "ms": milliseconds, "bytes_read": stats["bytes_read"],
        "error": largest_error([results[name] for name in wanted], list(wanted.values())),
    }  # fmt: skip


def _torch_ms(name: str, tf32: bool, median: Callable[[Callable], float]) -> float:
    import torch
    import torchvision

    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    given, found = torch.randn(1, 3, 224, 224), []
    for layout in (torch.contiguous_format, torch.channels_last):
        network = getattr(torchvision.models, name)(weights=None).eval().cuda().to(memory_format=layout)
        x, graph, stream = given.cuda().contiguous(memory_format=layout), torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.inference_mode():
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    network(x)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                y = network(x)
            found.append(median(lambda x=x, graph=graph, y=y: (x.copy_(given), graph.replay(), y.cpu())))
        del network, x, y, graph
    torch.cuda.empty_cache()
    return min(found)


def main() -> int:
    """Build, or measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ways = parser.add_subparsers(dest="way", required=True)
    building, running = (ways.add_parser(way) for way in ("build", "run"))
    for way in (building, running):
        way.add_argument("folder", type=Path)
    building.add_argument("networks", nargs="*", metavar="NETWORK", default=list(NETWORKS))
    building.add_argument("--arch", default="sm_90")
    building.add_argument("--tf32", action="store_true")
    running.add_argument("--repeat", type=int, default=50)
    running.add_argument("--seconds", type=float, default=2)
    running.add_argument("--torch", action="store_true")
    json_option(running, "cuda")
    args = parser.parse_args()
    if args.way == "build":
        args.folder.mkdir(parents=True, exist_ok=True)
        build(args.folder, args.networks, args.arch, args.tf32)
        return 0
    try:
        gpu = Gpu()
    except NoGpu as error:
        print(f"this benchmark runs on a GPU only: {error}", file=sys.stderr)
        return 2

    def median(call: Callable[[], object]) -> float:
        times, end = [], time.perf_counter() + args.seconds
        while not times or (len(times) < args.repeat and time.perf_counter() < end):
            start = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - start))
        return statistics.median(times)

    written = Results.begin("benchmarks.lab.cuda")
    table = Table(COLUMNS, gpu.name)
    found, is_right = run(args.folder, median, gpu, table, args.torch)
    written.write(args.json, [table], facts=found)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
