"""Errors of Winograd convolutions relative to the largest output: of random weights, and of weights that were trained."""

from functools import cache

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


def trained_weights(name: str) -> np.ndarray:
    """Weights OHWI of the 3×3 convolution of a network with the most channels."""
    model: onnx.ModelProto = trained.load(name)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    names = [node.input[1] for node in model.graph.node if node.op_type == "Conv"]
    found = [numpy_helper.to_array(tensors[name]) for name in names if name in tensors]
    return max((w for w in found if w.shape[2:] == (3, 3)), key=lambda w: w.shape[1]).transpose(0, 2, 3, 1).astype("f4")


@cache
def weights_of(kind: str) -> np.ndarray:
    """Weights of 256 input channels."""
    return trained_weights(kind) if kind != "random" else np.random.default_rng(1).standard_normal((256, 3, 3, 256), "f4")


@cache
def compiled(m: int):
    way = Winograd(ConvSpec(1, 15, 15, 256, 256, (3, 3), padding=(1, 1, 1, 1)), m, Tile(5, 16), groups=2)
    return way, library({"kernel": kernel(way, 8)})["kernel"]


@pytest.mark.parametrize("m", KINDS)
@pytest.mark.parametrize("kind", ["random", "open_nsfw"])
def test_accuracy(kind, m):
    """Random inputs and weights, and trained weights with inputs as behind a rectifier and no bias."""
    (way, function), w, rng = compiled(m), weights_of(kind), np.random.default_rng(0)
    x = rng.standard_normal((1, 15, 15, 256), "f4")
    bias = rng.standard_normal(len(w), "f4")
    if kind != "random":
        x, bias = np.maximum(x, 0), np.zeros_like(bias)
    expected = conv2d(way.spec, x, w, bias)
    y = tvm.runtime.tensor(np.empty(expected.shape, "f4"))
    panel = tvm.runtime.tensor(pack(way.panel, way.weight_transform.apply(w), bias))
    scratch = [tvm.runtime.tensor(np.empty(shape, "f4")) for shape in way.scratch]
    function(tvm.runtime.tensor(x), panel, 0, way.panel.blocks, y, *scratch)
    error = abs(y.numpy() - expected).max() / abs(expected).max()
    assert error < ACCURACY[m], f"{way}: {error}"
