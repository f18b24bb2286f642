"""Builds four small networks that stress different parts of the runtime, and finds their right outputs. A process of its own.

    python -m benchmarks.soak.prepare DIR

DIR gets NETWORK-VERSION.so and .weights, and expected.json: for every network its inputs' files, and for every version
the hashes of the outputs, by threads, rung, first or second inference, and input. An output that is hashed here came from a
session of its own, with everything read by plain reads, and lies within TOLERANCE of ONNX Runtime's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto

import flexcomp
from benchmarks.networks.graph import Graph
from benchmarks.soak.files import digest
from flexcomp.runtime.library import read_info

# Of the largest output. Both add up float32 products, up to 4,096 in a sum, each in an order of its own, and some kernels are
# Winograd's: differences were 3e-7 to 1.3e-6. Other or stale weights differ by the size of the output.
TOLERANCE = 1e-5
VERSIONS = ("a", "b")  # of every network: the same graph with other weights, which replace each other's files
_EXAMPLES = 3
_ROWS = 8192
THREADS = (1, 2, 3)
BUILT_FOR = 2  # threads


@dataclass(frozen=True)
class Network:
    """A graph, and its inputs."""

    name: str
    model: onnx.ModelProto
    inputs: tuple[dict[str, np.ndarray], ...]


def networks(version: str) -> list[Network]:
    """All of them, with the weights of one of VERSIONS. The inputs are the same for every version."""
    inputs = np.random.default_rng(7)
    pixels = lambda shape: inputs.standard_normal(shape).astype("f4")  # noqa: E731
    rows = lambda shape: inputs.integers(0, _ROWS, shape)  # noqa: E731
    made = []
    for build, shape, draw in (
        (_convolutions, (1, 16, 16, 16), pixels), (_transformer, (1, 32, 128), pixels), (_embedding, (1, 24), rows),
        (_decoder, (1, 96, 6, 6), pixels),
    ):
        made.append(_network(build, shape, VERSIONS.index(version), draw))
    return made


def _network(build: Callable, shape: Sequence[int], seed: int, draw: Callable) -> Network:
    name = build.__name__.removeprefix("_")
    graph = Graph(name, seed)
    x = graph.input("x", shape, TensorProto.INT64 if build is _embedding else TensorProto.FLOAT)
    output, extents = build(graph, x)
    return Network(name, graph.model(output, extents), tuple({"x": draw(shape)} for _ in range(_EXAMPLES)))


def _convolutions(graph: Graph, x: str) -> tuple[str, Sequence[int]]:
    """A residual block between convolutions, and a dense layer that makes up most of the weights (2 MiB)."""
    x = graph.conv(x, 32, 3)
    y = graph.op("Add", graph.conv(x, 32, 3), graph.conv(x, 32, 1))
    y = graph.conv(graph.max_pool(y, 2, 2), 64, 3)
    y = graph.op("Flatten", y, channels=64 * 64)
    return graph.linear(graph.linear(y, 128), 10), (1, 10)


def _transformer(graph: Graph, x: str) -> tuple[str, Sequence[int]]:
    """Two layers of attention (two heads) and feed-forward on 32 tokens of 128 numbers: many small segments."""
    graph.channels[x] = 128
    for _ in range(2):
        x = graph.layer_norm(graph.op("Add", x, graph.attention(x, 32, 2)))
        hidden = graph.relu(graph.linear(x, 512))
        x = graph.layer_norm(graph.op("Add", x, graph.linear(hidden, 128)))
    return x, (1, 32, 128)


def _embedding(graph: Graph, x: str) -> tuple[str, Sequence[int]]:
    """Rows of a table of 4 MiB, which is sliced by rows, and a dense layer."""
    rows = graph.op("Gather", graph.normal((_ROWS, 128), 1.0), x, channels=128)
    return graph.linear(graph.layer_norm(rows), 64), (1, 24, 64)


def _decoder(graph: Graph, x: str) -> tuple[str, Sequence[int]]:
    """Three convolutions that grow an image. On its smallest budgets everything that is not pinned is read ahead."""
    for channels in (64, 32):
        x = graph.doubled(graph.relu(graph.conv(x, channels, 3)))
    return graph.conv(x, 3, 3), (1, 3, 24, 24)


def prepare(folder: Path) -> None:
    """Everything into `folder`."""
    expected: dict[str, dict] = {}
    for version in VERSIONS:
        for network in networks(version):
            library = folder / f"{network.name}-{version}.so"
            flexcomp.build(network.model, threads=BUILT_FOR).export_library(library)
            inputs = folder / f"{network.name}.npz"
            np.savez(inputs, **{f"{i}:{key}": value for i, given in enumerate(network.inputs) for key, value in given.items()})
            entry = expected.setdefault(network.name, {"inputs": inputs.name, "outputs": {}, "largest_budget": 0})
            entry["outputs"][version] = _outputs(library, network)
            entry["largest_budget"] = max(entry["largest_budget"], read_info(library)["resident_bytes"])
    (folder / "expected.json").write_text(json.dumps(expected))


def _outputs(library: Path, network: Network) -> dict[str, list[list[str]]]:
    """Of the first inference of every rung, and of the second, for every input; by threads."""
    judge = onnxruntime.InferenceSession(network.model.SerializeToString(), providers=["CPUExecutionProvider"])
    right = [judge.run(None, given)[0] for given in network.inputs]
    hashes: dict[str, list[list[str]]] = {}
    for threads in THREADS:
        with flexcomp.load(library, threads=threads) as session:
            budgets = [rung.budget_bytes for rung in session.ladder]
        hashes[str(threads)] = []
        for budget in budgets:
            outputs: list[list[np.ndarray]] = [[], []]  # of first inferences, which may use other kernels, and of second ones
            for given, want in zip(network.inputs, right, strict=True):
                with flexcomp.load(library, budget, threads, direct=False) as session:
                    for turn in outputs:
                        turn.append(session.run(given)["output"])
                apart = max(float(np.abs(turn[-1] - want).max() / np.abs(want).max()) for turn in outputs)
                if not apart <= TOLERANCE:
                    raise SystemExit(f"{library.name} at {budget} bytes, {threads} threads: {apart:.1e} from ONNX Runtime")
            hashes[str(threads)] += [[digest(output) for output in turn] for turn in outputs]
    return hashes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path, help="where the libraries and what they must compute go")
    prepare(parser.parse_args().dir)
