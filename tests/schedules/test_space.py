"""The space of a tuner: names, sizes, and that what it offers computes the layer."""

from dataclasses import replace

import numpy as np
import pytest
import tvm

from flexcomp.device.target import resolve_target
from flexcomp.schedules.registry import candidates, named, space
from flexcomp.schedules.tiles.narrow_panel import rounded
from flexcomp.schedules.tiles.spec import ConvSpec, MatmulSpec

from .kernels import library
from .reference import conv2d, pack

AVX2 = resolve_target("llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v3").vector_unit
UNITS = {
    "avx2": AVX2,
    "avx512": resolve_target("llvm -mtriple=x86_64-linux-gnu -mcpu=x86-64-v4").vector_unit,
    "neon": resolve_target("raspberry-pi-4b").vector_unit,
}
SPECS = [
    ConvSpec(1, 14, 14, 16, 24, (3, 3), padding=(1, 1, 1, 1)),
    ConvSpec(1, 15, 13, 3, 20, (7, 7), (2, 2), (3, 3, 3, 3)),
    ConvSpec(1, 9, 9, 24, 24, (3, 3), padding=(1, 1, 1, 1), groups=24),
    ConvSpec(1, 7, 11, 16, 40),
    ConvSpec(1, 1, 1, 64, 48),
    ConvSpec(1, 9, 7, 128, 100),
]


@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
@pytest.mark.parametrize("spec", [*SPECS, MatmulSpec(2, 9, 24, 16), ConvSpec(1, 2, 2, 3, 5)], ids=str)
def test_names_are_unique_and_lead_back_to_the_candidate(spec, unit):
    found = space(spec, unit)
    names = [str(candidate) for candidate in found]
    assert len(set(names)) == len(names)
    offered = list(dict.fromkeys(str(candidate) for candidate in candidates(spec, unit)))
    assert names[: len(offered)] == offered
    assert all(named(spec, unit, str(c)).scratch == c.scratch and named(spec, unit, str(c)).tile == c.tile for c in found)
    assert named(spec, unit, "direct 99×99") is None


@pytest.mark.parametrize("name", UNITS)
def test_the_space_of_a_large_layer_is_rich_and_its_tiles_fit_the_registers(name):
    unit = UNITS[name]
    found = space(ConvSpec(1, 56, 56, 64, 64, (3, 3), padding=(1, 1, 1, 1)), unit)
    assert 40 < len(found) < 500
    for candidate in found:
        assert candidate.tile.rows * candidate.tile.channels <= unit.registers * unit.width
        assert candidate.scratch_nbytes <= 8 << 20


@pytest.mark.parametrize("name", UNITS)
def test_a_pointwise_layer_is_also_tried_with_other_tiles_of_strassens_products(name):
    spec = ConvSpec(1, 14, 14, 256, 256)
    offered = [str(c) for c in candidates(spec, UNITS[name])]
    more = [c for c in space(spec, UNITS[name])[len(offered) :] if c.family == "strassen"]
    assert {c.transform.levels for c in more} == {1, 2}
    assert len({c.tile for c in more}) >= 4


@pytest.mark.parametrize("name", UNITS)
def test_im2col_is_also_tried_with_other_tiles(name):
    spec = ConvSpec(1, 14, 14, 64, 64, (3, 3), padding=(1, 1, 1, 1))
    offered = {c.tile for c in candidates(spec, UNITS[name]) if c.family == "im2col_gemm"}
    assert {c.tile for c in space(spec, UNITS[name]) if c.family == "im2col_gemm"} > offered


NARROW = [replace(spec, weights=("int8", "float16", "bfloat16")[i % 3]) for i, spec in enumerate(SPECS)]


@pytest.mark.parametrize("spec", [*SPECS, *NARROW], ids=str)
def test_candidates_compute_the_layer(spec):
    rng = np.random.default_rng(0)
    more = space(spec, AVX2)[len(candidates(spec, AVX2)) :]
    picked = {c.family: c for c in (more[i] for i in rng.permutation(len(more)))}  # one of every family
    picked = [*picked.values(), *(more[i] for i in rng.permutation(len(more))[:1])]
    with tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}):
        kernels = library({f"k{i}": candidate.build() for i, candidate in enumerate(picked)})
    x = rng.standard_normal((spec.batch, spec.height, spec.width, spec.in_channels), dtype="f4")
    w = rng.standard_normal((spec.out_channels, *spec.kernel, spec.group_in), dtype="f4")
    w = rounded(w, spec.weights) if spec.weights != "float32" else w
    bias = rng.standard_normal(spec.out_channels, dtype="f4")
    expected = conv2d(spec, x, w, bias)
    for i, candidate in enumerate(picked):
        panel = pack(candidate.panel, w, bias, transform=candidate.transform)
        y = tvm.runtime.tensor(np.full(expected.shape, np.nan, "f4"))
        scratch = [tvm.runtime.tensor(np.full(shape, np.nan, "f4")) for shape in candidate.scratch]
        kernels[f"k{i}"](*map(tvm.runtime.tensor, (x, panel)), 0, candidate.panel.blocks, y, *scratch)
        error = np.abs(y.numpy() - expected).max() / np.abs(expected).max()
        assert error < 1e-5, str(candidate)
