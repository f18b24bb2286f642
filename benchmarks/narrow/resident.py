"""Everything resident, one thread: narrow weights beside float32.

    python -m benchmarks.narrow.resident                    # eight networks, and dense layers of one row
    python -m benchmarks.narrow.resident dense_25088 gpt2 [--rounds 40] [--kernels smallest]

Each network is built in all types and its libraries take turns within the second; who begins changes from turn to turn.
Reported is the median over turns of the time over float32's, with quartiles. Dense layers have weights beyond the
last cache in every type, and an inference of another type lies between any two: what they read comes from memory. Ends with
code 1 if a median is above what is wanted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx

import flexcomp
from benchmarks import models
from benchmarks.networks.graph import Graph
from benchmarks.turns import median_seconds

TYPES = ("float32", "float16", "bfloat16", "int8")
NEVER_SLOWER = (1.02, 1.02)
WANTED = {  # of float32's time, with 16 bits and with 8
    "resnet50_v15": NEVER_SLOWER,
    "mobilenet_v2": NEVER_SLOWER,
    "vit_b16": NEVER_SLOWER,
    "vgg19_torch": (0.99, 0.99),
    "gpt2": (0.99, 0.99),
    "alexnet": (0.80, 0.70),
    "dense_4096": (0.60, 0.32),
    "dense_25088": (0.60, 0.32),
}
RESULTS = Path(__file__).resolve().parents[1] / "results"
_TURN_S = 0.1  # of inferences in a row


@dataclass(frozen=True)
class Row:
    """A network with weights of one type."""

    network: str
    weights: str
    median_ms: float
    ratios: tuple[float, ...]  # of every turn, over float32's

    @property
    def ratio(self) -> float:
        """The median."""
        return statistics.median(self.ratios)

    @property
    def wanted(self) -> float | None:
        """What the ratio is not to exceed."""
        return WANTED.get(self.network, NEVER_SLOWER)[self.weights == "int8"] if self.weights != "float32" else None

    def __str__(self) -> str:
        low, _, high = statistics.quantiles(self.ratios, n=4)
        wanted = "" if self.wanted is None else f"{self.wanted:.2f}"
        quartiles = f"{low:.3f} to {high:.3f}"
        return f"| {self.network} | {self.weights} | {self.median_ms:.2f} | {self.ratio:.3f} | {quartiles} | {wanted} |"


HEADER = "| network | weights | ms | of float32's | quartiles | wanted |\n| --- | --- | --- | --- | --- | --- |"


def dense(inputs: int, outputs: int, layers: int) -> onnx.ModelProto:
    """Dense layers that take one row, and one after the other."""
    graph = Graph("dense", 0)
    x = graph.input("x", (1, inputs))
    for _ in range(layers):
        x = graph.relu(graph.dense(x, outputs))
    return graph.model(x, (1, outputs))


DENSE = {"dense_4096": (4096, 4096, 8), "dense_25088": (25088, 4096, 1)}  # the first one of VGG-19


def load(name: str) -> models.Network:
    """A network, or dense layers."""
    if name not in DENSE:
        return models.load(name)
    inputs, outputs, layers = DENSE[name]
    example = lambda variant: {"x": np.random.default_rng(variant).standard_normal((1, inputs)).astype(np.float32)}  # noqa: E731
    return models.Network(name, dense(inputs, outputs, layers), None, example)


def measure(name: str, folder: Path, rounds: int, kernels: str) -> list[Row]:
    """A network in all types, in turns."""
    network = load(name)
    inputs = network.example(0)
    with ExitStack() as stack:
        calls: list[Callable[[], object]] = []
        for weights in TYPES:
            path = folder / f"{name}.{weights}.so"
            built = flexcomp.build(
                network.model, input_shapes=network.input_shapes, kernels=kernels, weights=weights, threads=1, progress=False
            )
            built.export_library(path)
            session = stack.enter_context(flexcomp.load(path, "all", threads=1))
            calls.append(lambda session=session: session.run(inputs))
        slowest = max(median_seconds(call, 1) for call in calls)
        inferences = 1 if name in DENSE else max(1, round(_TURN_S / slowest))
        taken: list[list[float]] = [[] for _ in TYPES]
        for turn in range(rounds):
            first = turn % len(TYPES)
            for kind in [*range(first, len(TYPES)), *range(first)]:
                taken[kind].append(median_seconds(calls[kind], inferences, warm=name not in DENSE))
    wide = taken[0]
    return [
        Row(name, weights, statistics.median(times) * 1e3, tuple(a / b for a, b in zip(times, wide, strict=True)))
        for weights, times in zip(TYPES, taken, strict=True)
    ]


def main() -> int:
    """Measure the chosen networks and print a line for each type."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NETWORK", help=f"some of {', '.join((*DENSE, *models.NAMES))}")
    parser.add_argument("--rounds", type=int, default=40, help="turns of each")
    parser.add_argument(
        "--kernels", default="smallest", choices=("smallest", "fastest", "auto"), help="which are built"
    )
    parser.add_argument("--json", type=Path, default=RESULTS / "narrow_resident.json", help="where the figures go")
    args = parser.parse_args()
    if unknown := set(args.names) - {*DENSE, *models.NAMES}:
        parser.error(f"no network {', '.join(sorted(unknown))}; there are {', '.join((*DENSE, *models.NAMES))}")
    rows: list[Row] = []
    print(HEADER, flush=True)
    for name in args.names or WANTED:
        with tempfile.TemporaryDirectory() as folder:
            rows += measure(name, Path(folder), args.rounds, args.kernels)
        print(*rows[-len(TYPES) :], sep="\n", flush=True)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps([asdict(row) | {"ratio": row.ratio} for row in rows], indent=1))
    slow = [f"{row.network} {row.weights}" for row in rows if row.wanted is not None and row.ratio > row.wanted]
    if slow:
        print(f"above what is wanted: {', '.join(slow)}")
    return int(bool(slow))


if __name__ == "__main__":
    sys.exit(main())
