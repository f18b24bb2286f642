"""Small networks with what programs can say, compiled for the driver `artifacts`.

`python -m tests.fuzz.networks FOLDER` writes for each NAME.so, NAME.weights, NAME.program (the encoded program), and
NAME.tensors: the bytes of its inputs, then of the outputs that the unchanged network gives.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp.program.program import Program
from tests.by_hand import encode_program
from tests.decoding import Sizes, gpt2_decoder


def residual() -> onnx.ModelProto:
    """Slices, Winograd beside direct kernels, sums in place, parts of a concatenation, bands of rows at small budgets."""
    g = Graph("residual", seed=3)
    x = g.relu(g.conv(g.input("x", (1, 3, 16, 16)), 32, 3))
    x = g.relu(g.op("Add", g.conv(g.relu(g.conv(x, 16, 1)), 32, 3), x, channels=32))
    joined = g.op("Concat", g.relu(g.conv(x, 32, 1)), x, g.relu(g.conv(x, 32, 3)), axis=1, channels=96)
    x = g.relu(g.conv(joined, 64, 1))
    return g.model(g.op("GlobalAveragePool", g.conv(x, 64, 1)), (1, 64, 1, 1))


def lookup() -> onnx.ModelProto:
    """Indices with bounds, two inputs and two outputs, weights that are no panels, a softmax."""
    rng = np.random.default_rng(5)
    table = numpy_helper.from_array(rng.standard_normal((40, 24), dtype=np.float32), "table")
    scale = numpy_helper.from_array(rng.standard_normal((6, 24), dtype=np.float32), "scale")
    dense = numpy_helper.from_array(rng.standard_normal((24, 48), dtype=np.float32), "dense")
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], axis=0),
        helper.make_node("Mul", ["rows", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "x"], ["sum"]),
        helper.make_node("MatMul", ["sum", "dense"], ["wide"]),
        helper.make_node("Softmax", ["wide"], ["y"], axis=-1),
        helper.make_node("ArgMax", ["wide"], ["best"], axis=-1, keepdims=0),
    ]
    info = helper.make_tensor_value_info
    inputs = [info("ids", TensorProto.INT64, [6]), info("x", TensorProto.FLOAT, [6, 24])]
    outputs = [info("y", TensorProto.FLOAT, [6, 48]), info("best", TensorProto.INT64, [6])]
    graph = helper.make_graph(nodes, "lookup", inputs, outputs, [table, scale, dense])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _with_few_rungs(program: Program) -> Program:
    """The smallest rung, the largest, and two between: cases take the time that decoding takes."""
    last = len(program.rungs) - 1
    kept = sorted({0, last // 3, 2 * last // 3, last})
    return replace(program, rungs=tuple(program.rungs[i] for i in kept))


def dense() -> onnx.ModelProto:
    """Little but weights: slices, pinned loads, and loads that are read ahead."""
    g = Graph("dense", seed=7)
    x = g.input("x", (1, 96))
    for width in (128, 128, 64):
        x = g.relu(g.dense(x, width))
    return g.model(x, (1, 64))


SIZES = Sizes(layers=1, width=64, heads=2, vocabulary=4200)


def decoder() -> onnx.ModelProto:
    """Caches with which rows change places, attention to those that are valid, and rows of a table in the file."""
    return gpt2_decoder(1, 8, SIZES)


def tied() -> onnx.ModelProto:
    """Rows of a table in the file that are parts of a dense layer's blocks."""
    g = Graph("tied", seed=7)
    ids, table = g.input("ids", (1, 2), TensorProto.INT64), g.normal((4200, 64), 0.1)
    x = g.relu(g.linear(g.op("Gather", table, ids, axis=0, channels=64), 64))
    return g.model(g.op("MatMul", x, g.op("Transpose", table, perm=[1, 0]), channels=4200), (1, 2, 4200))


NETWORKS = {"residual": residual, "lookup": lookup, "dense": dense, "decoder": decoder, "tied": tied}
STATES = {"decoder": SIZES.state}


def write(folder: Path) -> None:
    """Compile every network into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name, make in NETWORKS.items():
        artifact = flexcomp.build(make(), budget="min", threads=1, state=STATES.get(name))
        artifact = replace(artifact, program=_with_few_rungs(artifact.program))
        artifact.export_library(folder / f"{name}.so")
        digest = artifact.write_weights(folder / f"{name}.weights")
        (folder / f"{name}.program").write_bytes(encode_program(artifact.program, digest))
        given = {
            port.name: rng.integers(-3 if name == "lookup" else 0, 3, port.type.shape) if port.type.dtype == "int64"
            else rng.standard_normal(port.type.shape, dtype=np.float32)
            for port in artifact.program.inputs
        }  # fmt: skip
        with flexcomp.load(folder / f"{name}.so") as session:
            found = session.run(given)
        tensors = [given[port.name] for port in artifact.program.inputs]
        tensors += [found[port.name] for port in artifact.program.outputs]
        (folder / f"{name}.tensors").write_bytes(b"".join(np.ascontiguousarray(t).tobytes() for t in tensors))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
