"""Pad beside NumPy: every mode, pads that are longer than the axis, negative ones, axes of one element."""

import itertools

import numpy as np
import pytest
from onnx import TensorProto, helper

import flexcomp
from flexcomp.errors import ModelError, UnsupportedModelError
from flexcomp.frontend.operators.pads import _sources
from tests.jointly import jointly

from .networks import model, node

MODES = ("reflect", "edge", "wrap", "constant")


def padded(x: np.ndarray, pads: list[tuple[int, int]], mode: str) -> np.ndarray:
    cut = x[tuple(slice(max(-a, 0), n + min(b, 0)) for n, (a, b) in zip(x.shape, pads, strict=True))]
    return np.pad(cut, [(max(a, 0), max(b, 0)) for a, b in pads], mode)


@pytest.mark.parametrize("mode", MODES[:3])
def test_every_place_of_a_padded_axis_is_one_of_the_axis(mode):
    for extent, before, after in itertools.product(range(1, 7), range(16), range(16)):
        np.testing.assert_array_equal(
            _sources(mode, extent, before, after), np.pad(np.arange(extent), (before, after), mode), err_msg=f"{extent}"
        )


def several(mode: str, shape: tuple[int, ...], widths: list, dtype: str = "f4"):
    """One network that pads its input in several ways."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    names = [f"y{i}" for i in range(len(widths))]
    weights = {f"p{i}": np.int64(pads).T.ravel() for i, pads in enumerate(widths)}
    nodes = [node("Pad", "x", f"p{i}", out=name, mode=mode) for i, name in enumerate(names)]
    return model(nodes, {"x": shape}, names, weights, dict.fromkeys(["x", *names], kind), opset=19)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(1, 3), (5, 1)])
@jointly(budgets=("min",))
def test_pads_are_numpys(mode, shape):
    drawn = np.random.default_rng(shape[0]).integers(-1, 9, (10, 2, 2))
    left = np.array(shape) + np.minimum(drawn, 0).sum(axis=2)
    widths = drawn[(left > 0).all(axis=1)].tolist()
    widths += [[(0, 0), (0, 0)], [(0, 4), (shape[1], 0)], [(shape[0], shape[0] - 1), (9, 9)]]
    x = np.arange(np.prod(shape), dtype="f4").reshape(shape) + 1
    outputs = yield several(mode, shape, widths), {"x": x}
    for pads, found in zip(widths, outputs.values(), strict=True):
        np.testing.assert_array_equal(found, padded(x, pads, mode), err_msg=str(pads))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["int64", "bool", "uint8"])
@jointly(budgets=("min",))
def test_pads_of_other_types(dtype, mode):
    x = np.array([[1, 0, 1], [0, 1, 1]]).astype(dtype) if dtype != "int64" else np.array([[2**62 + 1, -3, 5], [7, 8, 9]])
    widths = [[(1, 0), (2, 2)], [(0, 3), (-1, 7)]]
    outputs = yield several(mode, (2, 3), widths, dtype), {"x": x}
    for pads, found in zip(widths, outputs.values(), strict=True):
        np.testing.assert_array_equal(found, padded(x, pads, mode), err_msg=str(pads))


def test_an_input_that_is_shorter_than_at_the_export(tmp_path):
    network = several("reflect", (9,), [[(6, 6)]])
    del network.graph.input[0].type.tensor_type.shape.dim[:], network.graph.value_info[:]
    network.graph.input[0].type.tensor_type.shape.dim.add().dim_param = "n"
    flexcomp.build(network, threads=1, input_shapes={"x": (4,)}).export_library(tmp_path / "network.so")
    x = np.arange(4, dtype="f4")
    with flexcomp.load(tmp_path / "network.so") as session:
        np.testing.assert_array_equal(session(x), np.pad(x, 6, "reflect"))


@pytest.mark.parametrize(
    ("mode", "pads", "message"),
    [
        ("constant", [(-2, -2)], r"a result has \[-1\] elements along its axes"),
        ("reflect", [(-3, 2)], "mode reflect copies elements, and an axis of"),
    ],
)
def test_pads_that_mean_nothing_are_refused_by_name(mode, pads, message):
    with pytest.raises((ModelError, UnsupportedModelError), match=rf"node 'n' \(Pad\): .*{message}"):
        network = helper.make_model(
            helper.make_graph(
                [node("Pad", "x", "p", mode=mode, name="n")],
                "network",
                [helper.make_tensor_value_info("x", TensorProto.FLOAT, (3,))],
                [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                [helper.make_tensor("p", TensorProto.INT64, [2 * len(pads)], np.int64(pads).T.ravel())],
            ),
            opset_imports=[helper.make_opsetid("", 19)],
        )
        flexcomp.build(network, threads=1)
