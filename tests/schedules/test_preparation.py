"""Panels prepared from stored ones: what the same weights, transformed in NumPy and packed, would be."""

from dataclasses import replace

import numpy as np
import pytest
import tvm

from flexcomp.schedules.preparation import Preparation, WeightForm, eligible, function
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.strassen.weights import HalvesTransform
from flexcomp.schedules.tiles import blocks, narrow_panel
from flexcomp.schedules.tiles.panel import SCALED_BFLOAT16, Panel
from flexcomp.schedules.tiles.spec import MatmulSpec
from flexcomp.schedules.tiles.tile import VectorUnit
from flexcomp.schedules.winograd.weights import WeightTransform
from tests.schedules.kernels import library, runtime_calls
from tests.schedules.reference import pack

CLOSE = 1e-6  # of the largest element


def panel_of(weights: np.ndarray, vectors: np.ndarray, panel: Panel, transform=None) -> np.ndarray:
    """OHWI weights and float32[1 + vectors, out] in a panel."""
    if panel.in_blocks:
        return in_blocks(weights.reshape(len(weights), -1), vectors, panel)
    if panel.together > 1:
        return pack(panel, weights, vectors[0], list(vectors[1:]), least=-77)
    return pack(panel, weights, vectors[0], list(vectors[1:]), transform)


def in_blocks(weights: np.ndarray, vectors: np.ndarray, panel: Panel) -> np.ndarray:
    """Weights [channels, taps], rounded to a panel's blocks of inputs; the last block of channels overlaps."""
    q, scales = blocks.integers_of(weights, panel.kept), blocks.scales_of(weights, panel.kept)
    zeros = (np.arange(scales.size, dtype="i1") % 5 - 2).reshape(scales.shape) if panel.in_blocks.has_zeros else None
    first = np.minimum(np.arange(panel.blocks) * panel.block, len(weights) - panel.block)
    channels = first[:, None] + np.arange(panel.block)
    parts = [None if one is None else one[channels].transpose(0, 2, 1) for one in (vectors.T, q, scales, zeros)]
    return blocks.pack(*parts, panel.kept, panel.rows)


def bare(panel: Panel, array: np.ndarray) -> np.ndarray:
    """What kernels read of a panel: all but rows of padding."""
    if panel.in_blocks:
        return array[:, : panel.first_tap + panel.in_blocks.tap_rows(panel.taps)]
    end = panel.first_tap + panel.taps + (0 if panel.narrow else panel.vectors)
    return array[:, :end]


WINOGRAD = [WeightTransform(m) for m in (2, 4, 5)]
LINES = [WeightTransform(4, 3, axes=(False, True)), WeightTransform(2, 5, axes=(True, False))]
STEMS = [WeightTransform(4, 4, 2, before) for before in ((0, 0), (1, 1))]


def transformed(transform, out: int, block: int, in_channels: int, kernel, kept: str, vectors: int = 1) -> Preparation:
    """A preparation of `out` channels from blocks of 32 channels, for blocks of `block`."""
    taps = kernel[0] * kernel[1] * in_channels
    stored = Panel(1, out, min(32, out), taps, vectors, kept)
    if isinstance(transform, HalvesTransform):
        taps = taps * 7**transform.levels // 4**transform.levels
    elif transform is not None:
        taps = transform.positions * in_channels * transform.stride**2
    prepared = Panel(1, out, block, taps, vectors, kept if transform is None else "float32")
    return Preparation(stored, prepared, kernel, in_channels, transform)


def of_integers(out: int, block: int, wanted: int, vectors: int, lowest: int = 0) -> Preparation:
    stored, prepared = (Panel(1, out, one, 36, vectors, "int8", 4, lowest) for one in (block, wanted))
    return Preparation(stored, prepared, (1, 1), 36)


def of_pairs(out: int, block: int, wanted: int) -> Preparation:
    """Of five channels, the last of which is alone."""
    stored, prepared = (Panel(1, out, one, 2 * 6, 1, "bfloat16", 2) for one in (block, wanted))
    return Preparation(stored, prepared, (1, 2), 5)


NARROW = ("float16", "bfloat16", "int8", SCALED_BFLOAT16)
IN_BLOCKS = (
    "int4 in blocks of 16, float16 scales, zero points", "int8 in blocks of 32, float32 scales",
    "int4 in blocks of 16, float16 scales, zero points, 4 together",
)  # fmt: skip
CASES = [
    *((f"winograd {t.m}", transformed(t, 96, 48, 5, (3, 3), "float32")) for t in WINOGRAD),
    *((f"line {t.axes}", transformed(t, 64, 16, 3, (t.r, 1) if t.axes[0] else (1, t.r), "float32")) for t in LINES),
    *((f"stem {t.before}", transformed(t, 64, 32, 3, (7, 7), "float32")) for t in STEMS),
    *((f"strassen {n}", transformed(HalvesTransform(n), 128, 64 * n, 32, (1, 1), "float32", 0)) for n in (1, 2)),
    *((f"wider, {kept}", transformed(None, 96, 48, 9, (1, 1), kept, 2)) for kept in ("float32", "float16", "int8")),
    *((f"of {kept}", transformed(WINOGRAD[1], 64, 16, 3, (3, 3), kept)) for kept in NARROW),
    ("integers, wider", of_integers(96, 32, 48, 2)),
    ("integers, overlapping", of_integers(40, 24, 16, 0, -128)),
    ("pairs, wider", of_pairs(96, 32, 48)),
    ("pairs, overlapping", of_pairs(40, 24, 16)),
    ("a last block that overlaps", transformed(WINOGRAD[0], 72, 16, 4, (3, 3), "float32")),
    *((f"wider, {kept}", transformed(None, 88, 48, 70, (1, 1), kept, 2)) for kept in IN_BLOCKS),
    ("odd channels", transformed(WINOGRAD[0], 37, 16, 2, (3, 3), "float32")),
]  # fmt: skip


FUNCTIONS = {f"prepare_{number}": function(preparation) for number, (_, preparation) in enumerate(CASES)}


@pytest.fixture(scope="module")
def compiled():
    """All cases in one library."""
    return library(FUNCTIONS)


@pytest.mark.parametrize("number", range(len(CASES)), ids=[name for name, _ in CASES])
def test_any_range_of_blocks(compiled, number):
    """Each range is made of the stored blocks that it says, and of nothing else: the others are not handed over."""
    preparation, rng = CASES[number][1], np.random.default_rng(number)
    stored, prepared = preparation.stored, preparation.prepared
    assert eligible(stored, prepared)
    weights = rng.standard_normal((stored.group_channels, *preparation.kernel, preparation.in_channels)).astype("f4")
    vectors = rng.standard_normal((1 + stored.vectors, stored.group_channels)).astype("f4")
    source = panel_of(weights, vectors, stored)
    if stored.narrow and not stored.in_blocks:
        weights = narrow_panel.rounded(weights, stored.kept)
    expected = panel_of(weights, vectors, prepared, preparation.transform)
    run = compiled[f"prepare_{number}"]
    for first in range(prepared.blocks):
        for count in {1, prepared.blocks - first}:
            low, some = preparation.stored_range(first, count)
            given = np.full(stored.shape, 77, source.dtype)  # kernels know one shape
            given[:some] = source[low : low + some]
            made = np.full(prepared.shape, np.nan if prepared.dtype == "float32" else 77, expected.dtype)
            result = tvm.runtime.tensor(made)
            run(tvm.runtime.tensor(given), first, count, result)
            got, want = bare(prepared, result.numpy())[:count], bare(prepared, expected)[first : first + count]
            if preparation.as_kept:
                assert got.tobytes() == want.tobytes()
            else:
                assert np.abs(got - want).max() <= CLOSE * np.abs(want).max()


def test_preparations_ask_the_runtime_for_nothing():
    """They run on the loader's thread, beside a kernel that has all threads and their memory."""
    assert not runtime_calls(FUNCTIONS)
    product = candidates(MatmulSpec(12, 197, 197, 64), VectorUnit(16, 32))[0].build()
    assert "ParallelLaunch" in runtime_calls({"product": product})


def test_what_cannot_be_prepared():
    """Groups, lanes that repeat a channel, and types that would lose something again."""
    panel = Panel(1, 64, 32, 9, 0)
    assert eligible(panel, replace(panel, block=16))
    assert not eligible(replace(panel, groups=2), replace(panel, groups=2, block=16))
    assert not eligible(replace(panel, block=128), panel)
    assert not eligible(panel, replace(panel, kept="float16"))
    assert not eligible(replace(panel, vectors=1), panel)
    together = replace(panel, taps=12, kept="int8", together=4)
    assert eligible(together, replace(together, block=16))
    assert not eligible(together, replace(together, together=1))
    assert not eligible(together, replace(together, kept="float32", together=1))
    assert not eligible(together, replace(together, lowest=-128))


def test_forms_read_back():
    """And say nothing of integer arithmetic where there is none: what kernels are called depends on it."""
    panel = Panel(1, 64, 32, 12, 1, "int8")
    for form in (WeightForm(panel, (1, 1), 12), WeightForm(replace(panel, together=4, lowest=-128), (1, 1), 12)):
        assert WeightForm.decode(form.encode()) == form
        assert ("together" in form.encode()) == (form.panel.together > 1)
