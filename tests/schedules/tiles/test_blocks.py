"""Weights in blocks of inputs: which form has their values, and where these lie in a panel."""

import numpy as np
import pytest

from flexcomp.schedules.tiles import blocks
from flexcomp.schedules.tiles.blocks import Blocks, blocks_of, exact
from flexcomp.schedules.tiles.panel import Panel, element_type, nbytes_of

ONES = np.ones((2, 2), "f4")


def integers(low: int, high: int, kind=np.int8) -> np.ndarray:
    return np.resize(np.array([low, high], kind), (2, 64))


@pytest.mark.parametrize(
    ("q", "zeros", "bits", "has_zeros"),
    [
        (integers(-8, 7), None, 4, False),
        (integers(0, 15, np.uint8), np.full((2, 2), 8, "u1"), 4, False),
        (integers(0, 15, np.uint8), np.full((2, 2), 7, "u1"), 4, True),
        (integers(0, 15, np.uint8), None, 4, True),  # the zero point is 0, and -8 after the offset
        (integers(0, 15, np.uint8), np.full((2, 2), 16, "u1"), 8, True),
        (integers(-9, 7), None, 8, False),
        (integers(0, 255, np.uint8), np.full((2, 2), 128, "u1"), 8, False),
    ],
)
def test_the_form_with_the_fewest_bits(q, zeros, bits, has_zeros):
    assert exact(q, ONES, zeros, 32) == Blocks(bits, 32, "float16", has_zeros)


def test_scales_keep_all_their_bits():
    q = integers(-8, 7)
    assert exact(q, ONES * np.float32(0.1), None, 32).scales == "float32"
    assert exact(q, ONES * np.float32(1e6), None, 32).scales == "float32"
    assert exact(q, ONES, None, 32, float16=False).scales == "float32"
    assert exact(q, ONES, None, 33) is None, "pairs of a block share bytes"


@pytest.mark.parametrize("form", [Blocks(4, 32, "float16", False), Blocks(8, 128, "float32", True, 4)])
def test_a_form_is_a_type_of_kept_weights(form):
    assert blocks_of(str(form)) == form and element_type(str(form)) == "int8"
    assert blocks_of("int8") is None and blocks_of("float32") is None
    assert nbytes_of(str(form)) == form.bits / 8 + (form.scale_nbytes + form.has_zeros * form.bits / 8) / form.size


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_of_a_panel(bits):
    """Two blocks of 16 channels, 40 inputs in blocks of 16: the last one is half full."""
    rng = np.random.default_rng(0)
    form = Blocks(bits, 16, "float16", True)
    panel = Panel(1, 32, 16, 40, 1, str(form))
    half = 1 << (bits - 1)
    q = rng.integers(0, 2 * half, (2, 40, 16)).astype("u1")
    zeros, scales = rng.integers(0, 2 * half, (2, 3, 16)).astype("u1"), rng.random((2, 3, 16)).astype("f2").astype("f4")
    head = rng.random((2, 2, 16)).astype("f4")
    packed = blocks.pack(head, q, scales, zeros, str(form), panel.rows)
    assert packed.shape == panel.shape and packed.dtype == np.int8 and panel.block_nbytes % 64 == 0
    flat = packed.reshape(2, -1)
    first, scaled = 4 * 2 * 16, 2 * 3 * 16
    np.testing.assert_array_equal(np.ascontiguousarray(flat[:, :first]).view("f4").reshape(2, 2, 16), head)
    np.testing.assert_array_equal(np.ascontiguousarray(flat[:, first : first + scaled]).view("f2").reshape(2, 3, 16), scales)
    assert panel.first_tap == 8 + 6 + (2 if bits == 4 else 3)
    taps = packed[:, panel.first_tap : panel.first_tap + form.rows(40)].astype("i4")
    if bits == 4:
        low, high = (taps << 28).astype("i4") >> 28, taps >> 4
        taps = np.stack([low, high], 2).reshape(2, 40, 16)
    np.testing.assert_array_equal(taps, q.astype("i4") - half)


@pytest.mark.parametrize("bits", [4, 8])
def test_words_of_a_panel(bits):
    """Taps of a channel together, of two blocks of 16 channels: 40 inputs, the last word of 4 bits is full, too."""
    form = Blocks(bits, 16, "float16", False, 4)
    panel = Panel(1, 32, 16, 37, 0, str(form))
    half = 1 << (bits - 1)
    q = np.random.default_rng(0).integers(0, 2 * half, (2, 37, 16)).astype("u1")
    packed = blocks.pack(np.zeros((2, 1, 16), "f4"), q, np.ones((2, 3, 16), "f4"), None, str(form), panel.rows)
    assert packed.shape == panel.shape
    words = packed[:, panel.first_tap : panel.first_tap + form.tap_rows(37)].reshape(2, -1, 16, 4).view("u1").astype("i4")
    parts = np.stack([words & 15, words >> 4], 2) - blocks.BIAS if bits == 4 else words[:, :, None].astype("u1").view("i1")
    taps = parts.transpose(0, 1, 2, 4, 3).reshape(2, -1, 16)
    np.testing.assert_array_equal(taps[:, :37], q.astype("i4") - half)
    assert not taps[:, 37:].any(), "the inputs beyond are zeros"


def test_values_of_blocks():
    q, zeros = integers(0, 15, np.uint8), np.array([[8, 0], [15, 3]], "u1")
    scales = np.array([[0.5, 2], [1, 0.1]], "f4")
    found = blocks.dequantised(q[:, :40], scales, zeros, 32)
    np.testing.assert_array_equal(found[:, 0], np.float32([-4, -15]))
    np.testing.assert_array_equal(found[:, 33], np.float32([30, np.float32(12) * np.float32(0.1)]))


def test_scales_beyond_16_bits_have_32():
    weights = np.full((1, 32), 1e6, "f4")
    assert blocks.rounding(weights).scales == "float32" and blocks.rounding(ONES).scales == "float16"
    assert blocks.rounding(ONES, float16=False).scales == "float32"
    kept = str(blocks.rounding(weights))
    np.testing.assert_allclose(blocks.integers_of(weights, kept) * blocks.scales_of(weights, kept), weights)
