"""Integer arithmetic against NumPy, to the last bit: over random layers, in slices and parts, with any zero point."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import tvm

from flexcomp.compiler.machine_code import compile_module
from flexcomp.device import resolve_target
from flexcomp.schedules.integer import ways as integer
from flexcomp.schedules.integer.family import candidate as integer_candidate
from flexcomp.schedules.machines import decoded_rows
from flexcomp.schedules.registry import Candidate, candidates, space
from flexcomp.schedules.row_bands import Rows
from flexcomp.schedules.tiles.panel import SCALED_BFLOAT16, Panel
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit

from ..convolutions import specs
from ..kernels import library
from ..reference import conv2d, in_two_slices, pack
from ..shapes_conv import Guarded, written_channels

HERE = resolve_target("llvm -opt-level=0")
UNITS = {
    "512 bits": VectorUnit(16, 32, dots="vpdpbusd"), "256 bits": VectorUnit(8, 16, dots="vpdpbusd"),
    "pairs": VectorUnit(8, 16, dots="vpmaddwd"),
}  # fmt: skip
NEEDED = {"512 bits": {"avx512_vnni"}, "256 bits": {"avx512_vnni", "avx_vnni"}, "pairs": {"avx2"}}  # one of these
RUNNABLE = [name for name, features in NEEDED.items() if features & {*HERE.features}]
SCALED = ("clip", ("round", ("multiply", ("acc",), ("channel", 0))), ("const", -100.0), ("const", 155.0))
RESIDUAL = ("relu", ("add", ("acc",), ("tensor", 0)))
EPILOGUES = {
    ("acc",): lambda y, t, c: y,
    RESIDUAL: lambda y, t, c: np.maximum(y + t, 0),
    SCALED: lambda y, t, c: np.clip(np.rint(y * c), -100, 155),
}
LAYERS = [
    ConvSpec(1, 9, 11, 24, 40),  # pixels that fill no vector, blocks that overlap
    ConvSpec(2, 7, 5, 30, 20, stride=(2, 3)),  # pixels that are gathered
    ConvSpec(2, 9, 11, 3, 24, (3, 3), (2, 2), (1, 1, 1, 1)),  # taps that come by columns, with zeros behind them
    ConvSpec(1, 14, 15, 21, 33, (3, 5), (1, 2), (1, 2, 1, 0), dilation=(1, 2)),  # and by themselves
    ConvSpec(1, 3, 3, 5, 16, (3, 3), padding=(4, 4, 3, 3)),  # rows of padding only
    ConvSpec(1, 6, 17, 9, 16, (2, 2), (2, 2)),  # a last column that nothing reads
    ConvSpec(1, 1, 1, 1283, 100),
    ConvSpec(1, 1, 70, 1, 16),
    ConvSpec(1, 30, 30, 64, 64, (3, 3), padding=(1, 1, 1, 1)),  # for several threads
]


def of_integers(spec: ConvSpec) -> ConvSpec:
    return replace(spec, weights="int8", integers=True)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", RUNNABLE)
def test_sums_are_those_of_integers(name, threads):
    """Every slice writes its channels and nothing else, reads no weights outside itself, and stays inside of its scratch.

    Of several threads those kernels that share work: the others are the same as of one thread.
    """
    unit = replace(UNITS[name], threads=threads)
    drawn = [spec for kind in ("conv", "dense") for spec in specs(kind, 9) if spec.groups == 1]
    layers = [replace(spec, epilogue=list(EPILOGUES)[i % len(EPILOGUES)]) for i, spec in enumerate([*LAYERS, *drawn])]
    cases = [(spec, way) for spec in map(of_integers, layers) for way in integer.ways(spec, unit) if way.slots == threads]
    assert len(cases) >= (20 if threads == 1 else 3)
    made = [integer_candidate(way, unit) for _, way in cases]
    compiled = library({f"kernel_{i}": candidate.build() for i, candidate in enumerate(made)}, HERE)
    for i, ((spec, way), candidate) in enumerate(zip(cases, made, strict=True)):
        check(spec, way, candidate, compiled[f"kernel_{i}"], np.random.default_rng(i))


def check(spec: ConvSpec, way: integer.Integer, candidate: Candidate, kernel, rng: np.random.Generator) -> None:
    """With the least and the largest numbers that there are, and all in between. A thread that has tasks uses its own room."""
    least = -int(rng.integers(0, 256))
    x = rng.integers(least, least + 256, (spec.batch, spec.height, spec.width, spec.in_channels)).astype("f4")
    w = rng.integers(-128, 128, (spec.out_channels, *spec.kernel, spec.group_in)).astype("f4")
    w[:: 2, 0, 0] = -128  # no scale but 1
    w[1:: 2, 0, 0] = 127
    bias, tensor = (rng.integers(-1000, 1000, shape).astype("f4") for shape in (spec.out_channels, spec.out_shape))
    factor = rng.uniform(1e-3, 1e-2, spec.out_channels).astype("f4")
    expected = EPILOGUES[spec.epilogue](conv2d(spec, x, w, bias).astype("f4"), tensor, factor)
    panel = candidate.panel
    packed = pack(panel, in_runs(spec, w, panel), bias, [factor] * spec.channel_vectors, least=least)
    y, result = np.full(expected.shape, np.nan, "f4"), tvm.runtime.tensor(np.full(expected.shape, np.nan, "f4"))
    cut = int(rng.integers(0, panel.blocks))
    for first, count, given in in_two_slices(packed, cut, 77):
        scratch = [Guarded(shape) for shape in candidate.scratch]
        operands = [x, *[tensor] * spec.tensors, given]
        kernel(*map(tvm.runtime.tensor, operands), first, count, result, *(one.inside for one in scratch))
        written = written_channels(candidate, first, count)
        y[..., written] = expected[..., written]
        assert all(one.is_untouched_outside() for one in scratch), f"scratch of {candidate} is too small for {spec}"
        tasks = count * spec.batch * way.parts
        each = -(-tasks // way.slots)
        assert scratch[0].written_rooms() == [slot * each < tasks for slot in range(way.slots)]
        np.testing.assert_array_equal(result.numpy(), y, err_msg=f"{spec} {candidate}")


@pytest.mark.parametrize("threads", [1, 3])
def test_kernels_that_are_told_compute_the_valid_pixels_alone(threads):
    """None that is not packed, whatever tiles and parts fit the whole; strides gather, and results may replace a tensor."""
    rng = np.random.default_rng(5)
    unit = replace(UNITS[RUNNABLE[0]], threads=threads)
    layers = [
        ConvSpec(1, 1, 64, 40, 96), ConvSpec(1, 1, 53, 40, 100), ConvSpec(2, 7, 5, 30, 20, stride=(2, 3)),
        ConvSpec(1, 1, 300, 768, 256),
    ]  # fmt: skip
    cases = [way for spec in layers for way in integer.ways(of_integers(replace(spec, epilogue=RESIDUAL)), unit)]
    assert {way.parts == 1 for way in cases} == {True, False}
    made = [integer_candidate(way, unit) for way in cases]
    compiled = library({f"kernel_{i}": candidate.told() for i, candidate in enumerate(made)}, HERE)
    for i, (way, candidate) in enumerate(zip(cases, made, strict=True)):
        spec, panel = way.spec, candidate.panel
        x = rng.integers(-100, 156, (spec.batch, spec.height, spec.width, spec.in_channels)).astype("f4")
        w = rng.integers(-128, 128, (spec.out_channels, *spec.kernel, spec.group_in)).astype("f4")
        w[:: 2, 0, 0], w[1:: 2, 0, 0] = -128, 127
        bias, tensor = (rng.integers(-1000, 1000, shape).astype("f4") for shape in (spec.out_channels, spec.out_shape))
        expected = EPILOGUES[RESIDUAL](conv2d(spec, x, w, bias).astype("f4"), tensor, 0).reshape(-1, spec.out_channels)
        packed = pack(panel, in_runs(spec, w, panel), bias, [], least=-100)
        pixels = len(expected)
        for valid in sorted({-1, 0, 1, 2, 3, 7, 17, pixels // 2, pixels - 1, pixels, pixels + 9}):
            y = tensor.copy() if candidate.in_place else np.full_like(tensor, np.nan)
            result, scratch = tvm.runtime.tensor(y), [Guarded(shape) for shape in candidate.scratch]
            residual = result if candidate.in_place else tvm.runtime.tensor(tensor)
            given = [tvm.runtime.tensor(x), residual, tvm.runtime.tensor(packed)]
            compiled[f"kernel_{i}"](*given, 0, panel.blocks, result, valid, *(one.inside for one in scratch))
            assert all(one.is_untouched_outside() for one in scratch)
            found, count = result.numpy().reshape(expected.shape), min(max(valid, 0), pixels)
            np.testing.assert_array_equal(found[:count], expected[:count], err_msg=f"{candidate} {valid}")
            np.testing.assert_array_equal(found[count:], y.reshape(expected.shape)[count:])


def in_runs(spec: ConvSpec, w: np.ndarray, panel: Panel) -> np.ndarray:
    """Weights with zeros behind every run."""
    runs, run = integer.runs_of(spec, panel.together)
    split = w.reshape(spec.out_channels, runs, -1)
    return np.pad(split, ((0, 0), (0, 0), (0, run - split.shape[2])))


@pytest.mark.parametrize("name", RUNNABLE)
def test_bands_of_rows(name):
    """Each is the same kernel on the rows that it needs, with scratch of its own."""
    unit, rng, cases, functions = UNITS[name], np.random.default_rng(3), [], {}
    layers = [of_integers(replace(spec, epilogue=RESIDUAL)) for spec in (LAYERS[0], LAYERS[3], LAYERS[4], LAYERS[5])]
    made = [integer_candidate(way, unit) for spec in layers for way in integer.ways(spec, unit)]
    for i, candidate in enumerate(made):
        kernel = candidate.rows
        assert decoded_rows(kernel.encode()) == kernel and kernel.scratch == candidate.scratch
        edges = [kernel.out_rows * part // 3 for part in range(4)]
        parts = [Rows(*pair) for pair in itertools.pairwise(edges) if pair[0] < pair[1]]
        functions |= {f"band_{i}_{rows.start}": kernel.band(rows).build() for rows in parts}
        cases.append((f"band_{i}", kernel, candidate.panel, parts))
    compiled = library(functions, HERE)
    for symbol, kernel, panel, parts in cases:
        spec = kernel.spec
        x = rng.integers(-9, 247, (1, spec.height, spec.width, spec.in_channels)).astype("f4")
        w = rng.integers(-128, 128, (spec.out_channels, *spec.kernel, spec.group_in)).astype("f4")
        bias, tensor = (rng.integers(-1000, 1000, shape).astype("f4") for shape in (spec.out_channels, spec.out_shape))
        expected = np.maximum(conv2d(spec, x, w, bias) + tensor, 0)
        packed = tvm.runtime.tensor(pack(panel, in_runs(spec, w, panel), bias, least=-9))
        for rows in parts:
            needed, band = kernel.needed(rows, 0), kernel.band(rows)
            assert band.way.panel == panel
            scratch = [Guarded(shape) for shape in band.scratch]
            given = [tvm.runtime.tensor(a.copy()) for a in (x[:, needed.start : needed.stop], tensor[:, rows.start : rows.stop])]
            result = tvm.runtime.tensor(np.full((1, rows.count, *spec.out_shape[2:]), np.nan, "f4"))
            compiled[f"{symbol}_{rows.start}"](*given, packed, 0, panel.blocks, result, *(one.inside for one in scratch))
            np.testing.assert_array_equal(result.numpy(), expected[:, rows.start : rows.stop], str(spec))
            assert all(one.is_untouched_outside() for one in scratch)


TARGETS = {
    "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4": ("vpdpbusd", "%zmm"),
    "llvm -mtriple=x86_64-linux-gnu -mcpu=alderlake": ("vpdpbusd", "%ymm"),
    "raspberry-pi-5": ("sdot", ".4b["),  # by lane
    "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v4": None,
    "llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3": ("vpmaddwd", "%ymm"),
    "llvm -mtriple=x86_64-linux-gnu -mcpu=sandybridge": None,
    "llvm -mtriple=x86_64-linux-gnu -mcpu=znver4 -mattr=-avx512vnni": None,
    "raspberry-pi-4b": None,
}
LAYER = of_integers(ConvSpec(1, 14, 14, 96, 96, epilogue=SCALED))


@pytest.mark.parametrize("text", TARGETS)
def test_processors_that_have_it_get_it(text):
    target, wanted = resolve_target(text), TARGETS[text]
    found = candidates(LAYER, target.vector_unit)
    assert {c.family == "integer" for c in found} == {wanted is not None}
    assembly = compile_module({"kernel": found[0].build()}, target).inspect_source("asm")
    multiplied = [line for line in assembly.splitlines() if wanted and wanted[0] in line and wanted[1] in line]
    tile = found[0].tile
    assert len(multiplied) >= tile.rows * tile.channels // target.vector_width if wanted else not multiplied
    assert wanted or not any(name in assembly for name in ("dpbusd", "sdot", "pmaddwd"))


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
def test_only_layers_of_integers(unit):
    """Others have the kernels that they had; so have grouped layers, few channels, and zero points of weights."""

    def families(spec: ConvSpec) -> set[str]:
        return {one.family for one in candidates(spec, unit)}

    assert families(LAYER) == {"integer"} == {candidate.family for candidate in space(LAYER, unit)}
    for other in (
        replace(LAYER, integers=False),
        replace(LAYER, weights="float16"),
        replace(LAYER, weights=SCALED_BFLOAT16),
        replace(LAYER, groups=2),
        replace(LAYER, groups=96),
        replace(LAYER, out_channels=3),
        replace(LAYER, in_channels=1, out_channels=16),  # more to pack than to multiply
    ):
        assert "integer" not in families(other), other
        assert families(other) == families(replace(other, integers=False))
    assert not integer.eligible(replace(LAYER, in_channels=4096, out_channels=3), unit)


def test_scratch_is_a_few_kibibytes():
    """Of the smallest kernel: the packed input of a tile, or of a row."""
    for unit in UNITS.values():
        for spec in (ConvSpec(1, 56, 56, 64, 256), ConvSpec(1, 56, 56, 64, 64, (3, 3), padding=(1, 1, 1, 1))):
            small, *others = integer.ways(of_integers(spec), unit)
            assert small.scratch_nbytes <= 24 * 1024
            assert all(small.panel == other.panel for other in others), "one form of weights"


def test_integers_are_taken_where_a_core_multiplies_them_faster():
    """By llvm-mca sdot does 2.3 times the products of float32's multiply-adds on A55, fewer than F(4) saves, and four on A76."""
    taken = {}
    for core in ("cortex-a55", "cortex-a76"):
        unit = resolve_target(f"llvm -mtriple=aarch64-linux-gnu -mcpu={core} -mattr=+dotprod").vector_unit
        for taps in (1, 3):
            spec = ConvSpec(1, 28, 28, 128, 128, (taps,) * 2, padding=(taps // 2,) * 4, weights="int8", integers=True)
            taken[core, taps] = any(one.family == "integer" for one in candidates(spec, unit))
    assert taken == {("cortex-a55", 1): True, ("cortex-a55", 3): False, ("cortex-a76", 1): True, ("cortex-a76", 3): True}
