"""DFT and STFT beside NumPy and ONNX's own implementation."""

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import flexcomp
from flexcomp.errors import UnsupportedModelError
from tests.jointly import jointly

from .networks import model, node


def close(got, want):
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 2e-6 * np.abs(want).max()


def transform(shape, opset=20, axis=None, length=None, **attributes):
    weights = {} if length is None else {"n": np.int64(length)}
    if axis is not None and opset >= 20:
        weights["a"] = np.int64(axis)
    elif axis is not None:
        attributes["axis"] = axis
    names = ["x", "n" if length is not None else "", "a" if "a" in weights else ""]
    return model([node("DFT", *names[: 3 if opset >= 20 else 2], **attributes)], {"x": shape}, ["y"], weights, opset=opset)


TRANSFORMS = [
    (17, {}), (17, {"axis": 2, "onesided": 1}), (20, {"axis": 0}), (20, {"axis": -2, "length": 7}),
    (20, {"axis": 1, "length": 12}), (20, {"axis": -2, "inverse": 1}), (20, {"axis": 1, "inverse": 1, "length": 3}),
]  # fmt: skip


@pytest.mark.parametrize(  # half a spectrum is of real numbers
    ("opset", "settings", "parts"),
    [(*one, parts) for one in TRANSFORMS for parts in (1, 2) if parts == 1 or "onesided" not in one[1]],
)
@jointly(budgets=("min",))
def test_transforms(opset, settings, parts):
    x = np.random.default_rng(0).standard_normal((3, 5, 9, parts)).astype("f4")
    network = transform(x.shape, opset, **settings)
    (want,) = ReferenceEvaluator(network).run(None, {"x": x})
    close((yield network, {"x": x})["y"], want)


@pytest.mark.parametrize("length", [None, 9, 6])
@jointly(budgets=("min",))
def test_real_numbers_of_half_a_spectrum(length):
    x = np.random.default_rng(0).standard_normal((4, 6, 2)).astype("f4")
    network = transform(x.shape, 20, length=length, inverse=1, onesided=1)
    want = np.fft.irfft(x[..., 0] + 1j * x[..., 1], length, axis=1)[..., None]
    network.graph.output[0].type.tensor_type.ClearField("shape")
    close((yield network, {"x": x})["y"], want)


def framed(x, step, window, onesided):
    starts = range(0, x.shape[1] - len(window) + 1, step)
    frames = np.stack([x[:, s : s + len(window)] * window for s in starts], 1)
    spectrum = np.fft.rfft(frames) if onesided else np.fft.fft(frames)
    return np.stack([spectrum.real, spectrum.imag], -1)


@pytest.mark.parametrize(("step", "frame"), [(16, 40), (10, 40), (7, 32), (40, 40)])
@pytest.mark.parametrize("onesided", [0, 1])
@jointly(budgets=("min",))
def test_frames(step, frame, onesided):
    """As torch.stft is exported, where step and frame have a factor in common or none."""
    x = np.random.default_rng(0).standard_normal((2, 205, 1)).astype("f4")
    window = np.hanning(frame).astype("f4")
    weights = {"step": np.int64(step), "window": window}
    network = model([node("STFT", "x", "step", "window", onesided=onesided)], {"x": x.shape}, ["y"], weights)
    close((yield network, {"x": x})["y"], framed(x[..., 0], step, window, onesided))


@jointly(budgets=("min",))
def test_the_shape_of_frames_whose_sides_are_not_named():
    """One side, by ONNX's text; its inference of shapes has both."""
    weights = {"step": np.int64(10), "window": np.hanning(32).astype("f4")}
    nodes = [node("STFT", "x", "step", "window", out="s"), node("Shape", "s")]
    network = model(nodes, {"x": (2, 205, 1)}, ["y"], weights, types={"y": 7})
    np.testing.assert_array_equal((yield network, {"x": np.zeros((2, 205, 1), "f4")})["y"], [2, 18, 17, 2])


@jointly(budgets=("min",))
def test_frames_of_complex_numbers():
    x = np.random.default_rng(0).standard_normal((1, 60, 2)).astype("f4")
    weights = {"step": np.int64(6), "n": np.int64(16)}
    network = model([node("STFT", "x", "step", "", "n", onesided=0)], {"x": x.shape}, ["y"], weights)
    close((yield network, {"x": x})["y"], framed(x[..., 0] + 1j * x[..., 1], 6, np.ones(16), False))


def test_what_cannot_be_a_matrix_is_refused_by_name():
    network = model([node("DFT", "x", name="n")], {"x": (1, 1 << 14, 1)}, ["y"], opset=20)
    with pytest.raises(UnsupportedModelError, match=r"node 'n' \(DFT\): a transform of 16384 points is a matrix of"):
        flexcomp.build(network, threads=1)
    network = model([node("STFT", "x", "step", name="n")], {"x": (1, 99), "step": ()}, ["y"], types={"step": 7})
    with pytest.raises(UnsupportedModelError, match=r"node 'n' \(STFT\): its frame_step is computed"):
        flexcomp.build(network, threads=1)
