"""Fast matrix products: what is on offer, accuracy, scratch, a network. Random shapes are in test_random_shapes.py."""

from dataclasses import replace

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, tirx

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp.device.target import resolve_target
from flexcomp.schedules import registry
from flexcomp.schedules.strassen import ways as strassen
from flexcomp.schedules.strassen.family import candidate as strassen_candidate
from flexcomp.schedules.strassen.kernel import kernel
from flexcomp.schedules.strassen.ways import Strassen
from flexcomp.schedules.strassen.weights import HalvesTransform
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import Tile, VectorUnit
from tests.schedules.convolutions import RESIDUAL
from tests.schedules.kernels import library, require_no_memory
from tests.schedules.reference import conv2d, pack

AVX2 = VectorUnit(8, 16)


@pytest.mark.parametrize("levels", [1, 2])
def test_products_of_the_combined_weights_are_the_product(levels):
    """The algebra alone, on exact numbers: the operands of one pixel of every part, seven products on every level."""
    rng = np.random.default_rng(levels)
    rows, depth, block = 2**levels, 16, 8
    a, b = rng.integers(-9, 9, (rows, depth)), rng.integers(-9, 9, (depth, block))
    combined = HalvesTransform(levels).apply(b.T[None].astype("f4"))
    right = list(combined.reshape(7**levels, depth >> levels, block >> levels))

    def multiply(left: np.ndarray) -> np.ndarray:
        if len(left) == 1:
            return left @ right.pop(0)
        halves = [np.hsplit(part, 2) for part in np.vsplit(left, 2)]
        (a11, a12), (a21, a22) = halves
        s1 = a21 + a22
        s2 = s1 - a11
        p = [multiply(operand) for operand in (a11, a12, s2, a11 - a21, a22, s1, a12 - s2)]
        u2, u3 = p[0] + p[2], p[0] + p[2] + p[3]
        return np.block([[p[0] + p[1], u2 + p[5] + p[6]], [u3 + p[4], u3 + p[5]]])

    np.testing.assert_array_equal(multiply(a), a @ b)


@pytest.mark.parametrize(("levels", "accuracy"), [(1, 5e-6), (2, 1e-5)])
def test_errors_of_long_sums_stay_small(levels, accuracy):
    """1024 products for each output, pixels that fill no tile."""
    rng = np.random.default_rng(0)
    spec = ConvSpec(1, 5, 11, 1024, 96)
    way = Strassen(spec, Tile(4, 8), 1, levels=levels)
    x, w = rng.standard_normal((1, 5, 11, 1024), "f4"), rng.standard_normal((96, 1, 1, 1024), "f4")
    bias = rng.standard_normal(96, "f4")
    candidate = strassen_candidate(way, AVX2)
    panel = pack(way.panel, w, bias, transform=candidate.transform)
    scratch = [tvm.runtime.tensor(np.full(shape, np.nan, "f4")) for shape in way.scratch]
    y = tvm.runtime.tensor(np.full((1, 5, 11, 96), np.nan, "f4"))
    compiled = library({"kernel": candidate.build()})["kernel"]
    compiled(tvm.runtime.tensor(x), tvm.runtime.tensor(panel), 0, way.panel.blocks, y, *scratch)
    expected = conv2d(spec, x, w, bias)
    assert abs(y.numpy() - expected).max() < accuracy * abs(expected).max()


@pytest.mark.parametrize(("pixels", "groups", "threads"), [(47, 3, 1), (75, 1, 3)])
def test_pixels_that_are_not_valid_are_left_out(pixels, groups, threads):
    """By tiles that valid ones fill, an incomplete last one among them, in one band and several, and by plain products."""
    spec = ConvSpec(1, 1, pixels, 128, 96, epilogue=RESIDUAL)
    rng = np.random.default_rng(1)
    x, w, t = (rng.standard_normal(shape, "f4") for shape in ((1, 1, pixels, 128), (96, 1, 1, 128), (1, 1, pixels, 96)))
    bias = rng.standard_normal(96, "f4")
    wanted = np.maximum(conv2d(spec, x, w, bias) + t, 0)
    way = Strassen(spec, Tile(6, 16), groups, threads)
    way = replace(way, tile=replace(way.tile, rows=way.rows))
    candidate = strassen_candidate(way, AVX2)
    panel = pack(way.panel, w, bias, transform=candidate.transform)
    compiled = library({"kernel": candidate.told()})["kernel"]
    for valid in [0, 1, 3, 4, 5, 10, 11, 12, 13, 23, 36, 40, pixels - 2, pixels - 1, pixels, pixels + 9]:
        scratch = [tvm.runtime.tensor(np.full(shape, np.nan, "f4")) for shape in way.scratch]
        y = tvm.runtime.tensor(np.full((1, 1, pixels, 96), np.nan, "f4"))
        inputs = (tvm.runtime.tensor(one) for one in (x, t, panel))
        compiled(*inputs, 0, way.panel.blocks, y, valid, *scratch)
        found = y.numpy()[0, 0]
        np.testing.assert_allclose(found[:valid], wanted[0, 0, :valid], rtol=1e-4, atol=1e-4)
        computed = np.flatnonzero(np.isfinite(found[:, 0]))
        assert len(computed) <= min(valid + way.rows, pixels)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_offers_fill_the_threads(threads):
    """Bands are shared evenly, scratch is bounded, and small layers are left to the direct kernel."""
    unit = VectorUnit(16, 32, threads=threads)
    for size, channels, out in ((28, 512, 128), (14, 1024, 256), (14, 256, 1024), (7, 2048, 512)):
        for way in strassen.ways(ConvSpec(1, size, size, channels, out), unit):
            assert way.slots == threads
            assert way.levels == 1 or way.groups == 1
            assert 4 * np.prod(way.scratch[0][1:]) <= 1.5 * 400 * 1024
            assert way.bands * way.groups >= way.tiles
    levels = {way.levels for way in strassen.ways(ConvSpec(1, 14, 14, 1024, 256), unit)}
    assert levels == {1, 2}
    assert not strassen.ways(ConvSpec(1, 56, 56, 32, 256), unit)
    assert not strassen.ways(ConvSpec(1, 14, 14, 256, 256, (3, 3)), unit)


@pytest.mark.parametrize(("size", "channels", "out"), [(14, 256, 1024), (14, 1024, 256), (28, 512, 128), (7, 2048, 512)])
def test_two_threads_get_the_same_number_of_tiles(size, channels, out):
    """The best way for 256 → 1024 at 14×14 pixels used to give one thread four tiles and the other three."""
    way = min(strassen.ways(ConvSpec(1, size, size, channels, out), VectorUnit(16, 32, threads=2)), key=lambda w: w.work)
    bands = [min(way.groups, way.tiles - start) for start in range(0, way.tiles, way.groups)]
    first = -(-len(bands) // 2)
    assert sum(bands[:first]) == sum(bands[first:])


def on_offer(spec, unit):
    """The work of Strassen's candidates, by levels."""
    found = {1: [], 2: []}
    for one in registry.candidates(spec, unit):
        if one.family == "strassen":
            found[one.transform.levels].append(one.work)
    return found


def test_two_levels_must_be_worth_their_weights():
    """Where nothing is gained, there is one level only: 16 pixels are too few for quarters."""
    unit = VectorUnit(16, 32)
    for spec in (ConvSpec(1, 14, 14, 1024, 256), ConvSpec(1, 7, 7, 512, 2048), ConvSpec(1, 28, 28, 256, 512)):
        by_levels = on_offer(spec, unit)
        assert not by_levels[2] or max(by_levels[2]) < 0.98 * min(by_levels[1])
    assert not on_offer(ConvSpec(1, 6, 6, 1024, 256), unit)[2]


def test_two_levels_are_worth_their_weights_at_the_lengths_that_inputs_have():
    """They compute whole tiles of quarters, however few pixels are valid."""
    spec, unit = ConvSpec(1, 1, 512, 384, 384), VectorUnit(16, 32)
    assert on_offer(spec, unit)[2]
    padded = on_offer(spec, replace(unit, padded=((512, 129),)))
    assert padded[1] and not padded[2]


def test_one_level_where_registers_are_few():
    """With 16 registers the weights of two levels are read for tiles of six rows, more often than their products save."""
    for spec in (ConvSpec(1, 14, 14, 1024, 256), ConvSpec(1, 4, 81, 512, 512), ConvSpec(1, 28, 28, 256, 512)):
        assert {way.levels for way in strassen.ways(spec, AVX2)} == {1}


@pytest.mark.parametrize("levels", [1, 2])
def test_no_memory_besides_the_operands(levels):
    spec = ConvSpec(1, 14, 14, 64, 64, epilogue=RESIDUAL)
    require_no_memory({"kernel": kernel(Strassen(spec, Tile(5, 16), 1, slots=2, levels=levels), 8)})


def test_a_network_computes_the_same_with_the_fastest_kernels(tmp_path):
    """Weights are combined at build time; a layer with strides, and one on two levels."""
    g = Graph("strassen", seed=5)
    x = g.relu(g.conv(g.input("x", (1, 128, 17, 30)), 512, 1, stride=2, padding=0))
    model = g.model(g.relu(g.conv(x, 128, 1, padding=0)), (1, 128, 9, 15))
    x = np.random.default_rng(0).standard_normal((1, 128, 17, 30)).astype("f4")
    outputs = {}
    for kernels in ("smallest", "fastest"):
        artifact = flexcomp.build(model, kernels=kernels)
        library = tmp_path / f"{kernels}.so"
        artifact.export_library(library)
        families = {layer.implementation.split()[0] for layer in artifact.program.layers}
        assert ("strassen" in families) == (kernels == "fastest")
        on_two_levels = any("quadruples" in layer.implementation for layer in artifact.program.layers)
        assert on_two_levels == (kernels == "fastest" and resolve_target("native").vector_unit.registers >= 32)
        with flexcomp.load(library) as session:
            outputs[kernels] = session(x)
    assert abs(outputs["fastest"] - outputs["smallest"]).max() < 1e-5 * abs(outputs["smallest"]).max()


def test_the_code_of_one_level_is_that_of_one_product_for_each_size_of_tile():
    """LLVM compiles no multiply-add twice: for 4 tiles of 6 pairs, and for 7 of 6 and 2 of 5."""
    for pixels, sizes in ((48, (6,)), (104, (6, 5))):
        way = Strassen(ConvSpec(1, 1, pixels, 128, 96), Tile(6, 16), 3)
        assert {way.rows, way.units // way.tiles} == {*sizes}
        found: list[tirx.Mul] = []
        tvm_ffi.structural_walk(kernel(way, 8).body, (tirx.Mul, found.append))
        assert sum(str(one.ty.dtype) == "float32x8" for one in found) == 2 * sum(sizes)


def test_passes_write_out_few_numbers_of_a_kernel_that_is_told():
    """Where tiles begin hangs on the valid pixels by long expressions, which an analyzer would put into every index."""
    way = Strassen(ConvSpec(1, 1, 75, 128, 96), Tile(6, 16), 1, 1)
    way = replace(way, tile=replace(way.tile, rows=way.rows))
    told = strassen_candidate(way, AVX2).told().with_attr("global_symbol", "main")
    simplified = s_tir.transform.StmtSimplify()(tvm.IRModule({"main": told}))["main"]
    assert bounds_in(simplified) < 10 * bounds_in(told)


def bounds_in(func: tirx.PrimFunc) -> int:
    found: list = []
    tvm_ffi.structural_walk(func.body, [(kind, found.append) for kind in (tirx.Min, tirx.Max, tirx.Select)])
    return len(found)
