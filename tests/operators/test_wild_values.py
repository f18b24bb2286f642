"""Operators that take coordinates: whatever they are, nothing outside of a tensor is read, and every run ends."""

from __future__ import annotations

import itertools

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

import flexcomp
from flexcomp.errors import InputError
from tests.conformance.verdict import UNOPTIMISED
from tests.jointly import jointly
from tests.pairs import pairs

from .agreement import agree
from .networks import model, node

WILD = [np.nan, np.inf, -np.inf, 1e30, -1e30, 3e9, -3e9]
RNG = np.random.default_rng(5)
IMAGE = RNG.standard_normal((2, 3, 6, 5)).astype("f4")


def answers(network, given: dict[str, np.ndarray], changed: list[dict[str, np.ndarray]], folder) -> list[np.ndarray | str]:
    """What two sessions agree on, bit for bit; the first agrees with ONNX Runtime. An input that is refused: the message."""
    flexcomp.build(network, UNOPTIMISED, threads=1, kernels="smallest").export_library(folder / "network.so")
    expected = onnxruntime.InferenceSession(network.SerializeToString()).run(None, given)[0]

    def answer(session, inputs):
        try:
            return session(**inputs)
        except InputError as error:
            return str(error)

    with flexcomp.load(folder / "network.so") as one, flexcomp.load(folder / "network.so", "min") as two:
        found = [answer(one, inputs) for inputs in (given, *changed)]
        again = [answer(two, inputs) for inputs in reversed((given, *changed))][::-1]
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-5)
    for a, b in zip(found, again, strict=True):
        np.testing.assert_array_equal(a, b)
    return found[1:]


def with_wild(given: dict[str, np.ndarray], name: str, places: slice | tuple) -> list[dict[str, np.ndarray]]:
    result = []
    for value in WILD:
        array = given[name].copy()
        array[places] = value
        result.append(given | {name: array})
    return result


MODES, PADDINGS = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")


@pytest.mark.parametrize("mode, padding, align", pairs(MODES, PADDINGS, (0, 1)))
def test_grid_sample(mode, padding, align, tmp_path):
    grid = (RNG.standard_normal((2, 3, 4, 2)) * 0.5).astype("f4")
    sample = node("GridSample", "x", "g", mode=mode, padding_mode=padding, align_corners=align)
    network = model([sample], {"x": IMAGE.shape, "g": grid.shape}, ["y"], opset=20)
    given = {"x": IMAGE, "g": grid}
    found = answers(network, given, with_wild(given, "g", (slice(None), 0)), tmp_path)
    assert all(np.isfinite(result[:, :, 1:]).all() for result in found)


@jointly(kernels="fastest")
def test_grid_samples_of_points_outside():
    """Every way to sample, with points that padding moves back more than once."""
    ways = list(itertools.product(MODES, PADDINGS, (0, 1)))
    names = [f"{mode}_{padding}_{align}" for mode, padding, align in ways]
    nodes = [
        node("GridSample", "x", "g", out=name, mode=mode, padding_mode=padding, align_corners=align)
        for name, (mode, padding, align) in zip(names, ways, strict=True)
    ]
    grid = (np.random.default_rng(2).standard_normal((2, 7, 9, 2)) * 2).astype("f4")
    network = model(nodes, {"x": IMAGE.shape, "g": grid.shape}, names, opset=20)
    yield from agree(network, rtol=1e-5, atol=1e-5, x=IMAGE, g=grid)


REGIONS = np.array([[0, 0, 4, 4], [1, 1, 5, 3], [2, 2, 2, 2], [3, 1, 2, 5]], "f4")


@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("mode", ["half_pixel", "output_half_pixel"])
def test_roi_align(ratio, mode, tmp_path):
    """Regions without samples are 0; as many as no image has are refused, not taken."""
    align = node(
        "RoiAlign", "x", "r", "b", output_height=2, output_width=3, sampling_ratio=ratio, spatial_scale=0.5,
        coordinate_transformation_mode=mode,
    )  # fmt: skip
    network = model([align], {"x": IMAGE.shape, "r": (4, 4), "b": (4,)}, ["y"], types={"b": TensorProto.INT64})
    given = {"x": IMAGE, "r": REGIONS, "b": np.array([1, 0, 1, 1])}
    found = answers(network, given, with_wild(given, "r", (0, 2)), tmp_path)
    refused = [value for value, result in zip(WILD, found, strict=True) if isinstance(result, str)]
    assert refused == ([] if ratio else [np.inf, 1e30, 3e9])
    assert all("node 'y' (RoiAlign): index" in result for result in found if isinstance(result, str))


def test_max_roi_pool(tmp_path):
    """The number of an image comes as a float."""
    regions = np.concatenate([np.array([[1], [0], [1], [0]], "f4"), REGIONS], 1)
    network = model([node("MaxRoiPool", "x", "r", pooled_shape=[2, 2])], {"x": IMAGE.shape, "r": regions.shape}, ["y"])
    given = {"x": IMAGE, "r": regions}
    found = answers(network, given, with_wild(given, "r", (0, 0)) + with_wild(given, "r", (0, slice(1, 5))), tmp_path)
    assert all(isinstance(result, str) for result in found[1 : len(WILD)]), "only NaN counts as 0"
    assert not any(isinstance(result, str) for result in found[len(WILD) :])
