"""Networks for `flexcomp demo`: real architectures, no download.

The `onnx` package ships the graphs of nine well-known networks for its own tests, with every weight
the same constant. Their outputs are 1/1000 for any input, so nothing computed wrongly would show.
Here the constants become seeded random weights, chosen so that the outputs tell inputs apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib import resources

import numpy as np
import onnx
from onnx import helper, numpy_helper

from flexcomp.demo.known import FILES, NAMES
from flexcomp.errors import InputError

_RANGE_KEEPERS = frozenset(  # operators whose output is positive when their input is
    ("AveragePool", "Concat", "Dropout", "Flatten", "GlobalAveragePool") + ("LRN", "MaxPool", "Reshape", "Transpose")
)
HE_GAIN = math.sqrt(2.0)  # a ReLU halves the second moment of a centred normal variable
CENTRED_GAIN = math.sqrt(1.0 / (0.5 - 0.5 / math.pi))  # and leaves this part as variance
# Of the last batch norm of a residual branch. Larger ones make deep random networks chaotic: rounding
# errors grow from block to block, and two correct implementations disagree.
RESIDUAL_GAIN = 0.25
BIAS = np.float32(0.05)  # standard deviation of biases and of batch-norm means
# Of the last layer: a softmax over 1000 classes is then neither flat nor one-hot.
LOGIT_GAIN = 5.0
# Networks that end in larger activations.
_LOGIT_GAINS = {"vgg19": 1.0, "inception_v2": 0.4, "shufflenet": 0.4, "alexnet": 1.5, "zfnet512": 2.0}


def load(name: str, seed: int = 0) -> onnx.ModelProto:
    """The network `name` (one of NAMES) with random weights drawn from `seed`."""
    if name not in FILES:
        raise InputError(f"there is no network {name!r}: it is one of {', '.join(NAMES)}")
    folder = resources.files("onnx") / "backend" / "test" / "data" / "light"
    return randomize(
        onnx.load_from_string((folder / FILES[name]).read_bytes()), seed, _LOGIT_GAINS.get(name, LOGIT_GAIN)
    )


def randomize(model: onnx.ModelProto, seed: int, logit_gain: float = LOGIT_GAIN) -> onnx.ModelProto:
    """A copy of `model` whose constant weights are random.

    Every ConstantOfShape of a known shape becomes an initializer. Its values follow from who
    reads it: filters and matrices are He-scaled, biases are small, batch-norm statistics are near
    those of a normalised activation.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    shapes = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    constants = [n for n in graph.node if n.op_type == "ConstantOfShape" and n.input[0] in shapes]
    readers = _readers(graph)
    makers = {name: node for node in graph.node for name in node.output}
    rng = np.random.default_rng(seed)
    weights = {}
    for node in constants:
        shape = tuple(int(d) for d in shapes[node.input[0]])
        weights[node.output[0]] = _draw(shape, _Use.find(node.output[0], readers, makers), rng, logit_gain)

    keep_nodes = [n for n in graph.node if not (n.output and n.output[0] in weights)]
    used = {name for n in keep_nodes for name in n.input}
    keep_constants = [i for i in graph.initializer if i.name in used]
    known = {i.name for i in keep_constants}
    keep_inputs = [i for i in graph.input if i.name in used and i.name not in known]
    for field, kept in (("node", keep_nodes), ("initializer", keep_constants), ("input", keep_inputs)):
        graph.ClearField(field)
        getattr(graph, field).extend(kept)
    graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in weights.items())
    result.ir_version = max(model.ir_version, 4)  # from 4 on an initializer need not be an input
    return result


def example_input(model: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Seeded picture-like inputs: smooth blobs of colour with some noise, mean 0, variance near 1."""
    rng = np.random.default_rng(seed)
    constants = {i.name for i in model.graph.initializer}
    return {
        i.name: picture(tuple(d.dim_value for d in i.type.tensor_type.shape.dim), rng)
        for i in model.graph.input
        if i.name not in constants
    }


def picture(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """A random float32 array of `shape` [..., height, width] that varies on all scales."""
    *lead, height, width = shape
    contrast = np.float32(rng.uniform(0.4, 1.6))
    result = rng.standard_normal(shape, dtype=np.float32) * 0.2
    for cells in (1, 3, 8):
        coarse = rng.standard_normal((*lead, cells, cells), dtype=np.float32)
        rows, columns = np.arange(height) * cells // height, np.arange(width) * cells // width
        result += 0.6 * coarse[..., rows[:, None], columns[None, :]]
    return contrast * result


class _Use:
    """The role in which a weight is read."""

    def __init__(self, node: onnx.NodeProto, position: int, readers: dict, makers: dict) -> None:
        self.node, self.position = node, position
        self.rectified = _is_rectified(node.input[0], makers)
        self.branch_end = any(n.op_type in ("Sum", "Add") for n, _ in readers.get(node.output[0], ()))
        self.last = not any(n.op_type in ("Conv", "Gemm", "MatMul") for n in _below(node, readers))

    @classmethod
    def find(cls, name: str, readers: dict, makers: dict) -> _Use | None:
        """The first reader of `name` that computes with the weight."""
        for node, position in readers.get(name, ()):
            if node.op_type in ("Unsqueeze", "Reshape", "Identity"):
                return cls.find(node.output[0], readers, makers)
            return cls(node, position, readers, makers)
        return None


def _readers(graph: onnx.GraphProto) -> dict[str, list[tuple[onnx.NodeProto, int]]]:
    result: dict[str, list] = {}
    for node in graph.node:
        for position, name in enumerate(node.input):
            result.setdefault(name, []).append((node, position))
    return result


def _is_rectified(name: str, makers: dict[str, onnx.NodeProto]) -> bool:
    """Whether the value `name` comes from a ReLU, if need be through operators that keep its range."""
    while name in makers and makers[name].op_type in _RANGE_KEEPERS:
        name = makers[name].input[0]
    return name in makers and makers[name].op_type in ("Relu", "Clip")


def _below(node: onnx.NodeProto, readers: dict) -> Iterator[onnx.NodeProto]:
    """All nodes that depend on `node`, nearest first."""
    seen, front = {id(node)}, [node]
    while front:
        for name in front.pop(0).output:
            for reader, _ in readers.get(name, ()):
                if id(reader) not in seen:
                    seen.add(id(reader))
                    front.append(reader)
                    yield reader


def _draw(shape: tuple[int, ...], use: _Use | None, rng: np.random.Generator, logit_gain: float) -> np.ndarray:
    op, position = (use.node.op_type, use.position) if use else ("", 0)
    if op in ("Conv", "Gemm", "MatMul") and position == 1:
        return _filters(shape, use, rng, logit_gain)
    if op == "BatchNormalization" and position in (1, 4):
        low, high = (0.9, 1.1) if position == 1 else (0.8, 1.2)
        gain = RESIDUAL_GAIN if position == 1 and use.branch_end else 1.0
        return (gain * rng.uniform(low, high, shape)).astype(np.float32)
    if op == "Mul":
        return rng.uniform(0.9, 1.1, shape).astype(np.float32)
    return BIAS * rng.standard_normal(shape, dtype=np.float32)  # biases, means


def _filters(shape: tuple[int, ...], use: _Use, rng: np.random.Generator, logit_gain: float) -> np.ndarray:
    """Weights that sum to zero per output channel and keep the variance of the input.

    Activations after a ReLU are positive; random filters would mostly pass on their mean, which
    is the same for every input, and deep networks would answer alike to everything.
    """
    transposed = {a.name: helper.get_attribute_value(a) for a in use.node.attribute}.get("transB", 0)
    op = use.node.op_type
    inputs = (0,) if op == "MatMul" or (op == "Gemm" and not transposed) else tuple(range(1, len(shape)))
    fan_in = math.prod(shape[a] for a in inputs)
    values = rng.standard_normal(shape, dtype=np.float32)
    gain = HE_GAIN if use.rectified else 1.0
    if fan_in > 16:
        values -= values.mean(axis=inputs, keepdims=True)
        gain = CENTRED_GAIN if use.rectified else 1.0
    if use.last:
        gain *= logit_gain
    values *= np.float32(gain / math.sqrt(fan_in))
    return values
