"""Winograd convolutions with weights that were trained: errors relative to the largest output, layer by layer."""

import numpy as np
import onnx
import pytest
import tvm
from onnx import numpy_helper

from benchmarks.networks import trained
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import Tile
from flexcomp.schedules.winograd.kernel import kernel
from flexcomp.schedules.winograd.transforms import KINDS
from flexcomp.schedules.winograd.ways import Winograd
from tests.schedules.kernels import library
from tests.schedules.reference import conv2d, pack

from .accuracy import ACCURACY


def trained_weights(name: str) -> list[np.ndarray]:
    """Weights OHWI of the 3×3 convolution of a network with the most channels."""
    model: onnx.ModelProto = trained.load(name)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    shapes: dict[tuple[int, ...], np.ndarray] = {}
    for node in model.graph.node:
        if node.op_type == "Conv" and node.input[1] in tensors:
            weights = numpy_helper.to_array(tensors[node.input[1]])
            if weights.shape[2:] == (3, 3) and weights.shape[1] > 1:
                shapes.setdefault(weights.shape, weights.transpose(0, 2, 3, 1).astype("f4"))
    return sorted(shapes.values(), key=lambda w: -w.shape[-1])[:1]


@pytest.mark.parametrize("name", ["open_nsfw"])
def test_accuracy_with_trained_weights(name):
    """Inputs as behind a rectifier, 15×15 pixels, no bias."""
    rng = np.random.default_rng(0)
    ways, operands = [], []
    for w in trained_weights(name):
        spec = ConvSpec(1, 15, 15, w.shape[-1], len(w), (3, 3), padding=(1, 1, 1, 1))
        x = np.maximum(rng.standard_normal((1, 15, 15, spec.in_channels)), 0).astype("f4")
        ways += [Winograd(spec, m, Tile(5, 16), groups=2) for m in KINDS]
        operands += [(x, w)] * len(KINDS)
    with tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}):
        compiled = library({f"kernel_{i}": kernel(way, 8) for i, way in enumerate(ways)})
    for i, (way, (x, w)) in enumerate(zip(ways, operands, strict=True)):
        bias = np.zeros(len(w), "f4")
        expected = conv2d(way.spec, x, w, bias)
        y = tvm.runtime.tensor(np.empty(expected.shape, "f4"))
        panel = tvm.runtime.tensor(pack(way.panel, way.weight_transform.apply(w), bias))
        scratch = [tvm.runtime.tensor(np.empty(shape, "f4")) for shape in way.scratch]
        compiled[f"kernel_{i}"](tvm.runtime.tensor(x), panel, 0, way.panel.blocks, y, *scratch)
        error = abs(y.numpy() - expected).max() / abs(expected).max()
        assert error < ACCURACY[way.m], f"{way.spec} {way}: {error}"
