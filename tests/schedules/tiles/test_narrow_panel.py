"""Weights of 16 and 8 bits: what they are rounded to, how they lie in a panel, and what kernels make of them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from flexcomp.compiler.known import WEIGHTS
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.blocks import INT4
from flexcomp.schedules.tiles.emit import vector
from flexcomp.schedules.tiles.narrow_panel import OutOfRangeError, pack, require_fits, rounded
from flexcomp.schedules.tiles.panel import SCALED_BFLOAT16, WEIGHT_DTYPES, Panel
from flexcomp.schedules.tiles.panel_reader import widened
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit

from ..kernels import library

NUMPY = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "int8": np.int8}


@pytest.mark.parametrize("dtype", NUMPY)
@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_every_number_is_widened_exactly(dtype, lanes):
    """All bit patterns, subnormal numbers and infinities among them, as NumPy converts them; NaN stays NaN."""
    bits = np.arange(1 << 8 * np.dtype(NUMPY[dtype]).itemsize)
    narrow = bits.astype("u2" if len(bits) > 256 else "u1").view(NUMPY[dtype])
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        x = T.arg("x", T.buffer((len(bits),), dtype))
        y = T.arg("y", T.buffer((len(bits),), "float32"))
        with T.serial(len(bits) // lanes) as i:
            at = vector(i * lanes, lanes)
            T.buffer_store(y, widened(x[at], dtype, lanes), [at])
    kernel = library({"widen": builder.get()})["widen"]
    found = tvm.runtime.tensor(np.zeros(len(bits), "f4"))
    kernel(tvm.runtime.tensor(narrow), found)
    np.testing.assert_array_equal(found.numpy(), narrow.astype("f4"))


@pytest.mark.parametrize("dtype", [*NUMPY, SCALED_BFLOAT16])
def test_a_panel_holds_its_float32_rows_as_bits(dtype):
    rng = np.random.default_rng(0)
    panel = Panel(1, 24, 8, taps=5, vectors=1, kept=dtype)
    head, taps = rng.standard_normal((3, 2, 8), "f4"), rng.standard_normal((3, 5, 8), "f4")
    packed = pack(head, taps, dtype, panel.rows)
    assert packed.shape == panel.shape and packed.nbytes == panel.blocks * panel.block_nbytes and not panel.block_nbytes % 64
    rows = packed.reshape(3, -1).view("f4").reshape(3, -1, 8)
    np.testing.assert_array_equal(rows[:, :2], head)
    kept = packed[:, panel.first_tap : panel.first_tap + 5].astype("f4")
    if panel.scaled:
        kept *= rows[:, panel.head - 1 : panel.head]
    channels_first = rounded(taps.transpose(0, 2, 1).reshape(24, 5), dtype)
    np.testing.assert_array_equal(kept, channels_first.reshape(3, 8, 5).transpose(0, 2, 1))


def test_all_types_are_offered():
    assert (*WEIGHT_DTYPES, INT4) == WEIGHTS


def test_int8_errs_by_half_a_step_of_its_channel():
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((6, 40), "f4") * np.float32([[1e-30], [1e-3], [1], [1e3], [1e30], [0]])
    step = np.abs(weights).max(axis=1, keepdims=True) / 127
    assert np.all(np.abs(rounded(weights, "int8") - weights) <= step * 0.5001)


def test_int8_of_the_smallest_numbers_there_are():
    """Where 1/127 of a channel's largest weight is no float32 any more, nothing is divided by zero."""
    tiny = np.float32([[1e-45, 0], [3e-44, -1e-45], [1e-43, 2e-43]])
    assert np.all(np.abs(rounded(tiny, "int8")) <= 1e-42)


@pytest.mark.parametrize(
    ("dtype", "weight", "message"),
    [
        ("float16", 7e4, "weights up to 70000 do not fit float16, whose largest is 65504"),
        ("bfloat16", 3.4e38, "do not fit bfloat16"),
        ("int8", np.inf, "infinite or no numbers do not fit int8"),
        ("int8", np.nan, "infinite or no numbers do not fit int8"),
    ],
)
def test_weights_out_of_range_are_refused(dtype, weight, message):
    with pytest.raises(OutOfRangeError, match=message):
        require_fits(np.float32([[1, weight], [2, 3]]), dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_infinite_weights_stay_infinite(dtype):
    infinite = np.float32([[1, np.inf, -np.inf]])
    require_fits(infinite, dtype)
    np.testing.assert_array_equal(rounded(infinite, dtype), infinite)


@pytest.mark.parametrize(("dtype", "lines"), [("float32", 0), ("float16", 2), ("bfloat16", 2), ("int8", 1)])
def test_weights_that_are_used_once_are_asked_for_ahead_line_by_line(dtype, lines):
    """A tap of 64 channels; with several rows weights are in a cache already."""
    one, several = (
        candidates(ConvSpec(1, 1, rows, 300, 128, weights=dtype), VectorUnit(16, 32))[0] for rows in (1, 40)
    )
    assert one.family == "gemv" and one.tile.channels == 64
    assert str(one.build()).count("llvm.prefetch") == lines
    assert str(several.build()).count("llvm.prefetch") == 0
