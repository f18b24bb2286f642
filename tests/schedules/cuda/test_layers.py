"""Layers that are no tiles of an implicit product, and products of activations; and which kernel a layer gets."""

import numpy as np
import pytest

from flexcomp.compiler.cuda_code import cuda_code
from flexcomp.schedules.cuda import ARCHITECTURES, channelwise, gemv, matmul
from flexcomp.schedules.cuda.block_tile import TILES
from flexcomp.schedules.cuda.unit import Gpu
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.panel import panel_of
from flexcomp.schedules.tiles.spec import ConvSpec, MatmulSpec
from tests.cuda.on_cpu.emulator import EmulationError, Emulator
from tests.schedules.cuda import barriers
from tests.schedules.cuda.layers import Layer

ORIN, TURING = ARCHITECTURES["sm_87"], ARCHITECTURES["sm_75"]
SAME = (1, 1, 1, 1)
RESIDUAL = ("relu", ("add", ("acc",), ("tensor", 0)))
LAYERS = {
    "row_int8": (gemv, ConvSpec(1, 1, 1, 1100, 70, weights="int8")),
    "rows": (gemv, ConvSpec(1, 1, 3, 513, 32, epilogue=RESIDUAL)),
    "short_row": (gemv, ConvSpec(1, 1, 1, 40, 33, weights="float16", epilogue=("sigmoid", ("acc",)))),
    "depthwise": (channelwise, ConvSpec(1, 9, 7, 40, 40, (3, 3), padding=SAME, groups=40)),
    "odd_depthwise": (
        channelwise,
        ConvSpec(2, 9, 7, 33, 33, (3, 5), (2, 1), (1, 2, 1, 2), groups=33, epilogue=RESIDUAL, weights="bfloat16"),
    ),
    "groups_of_4": (channelwise, ConvSpec(1, 9, 7, 40, 80, (3, 3), padding=SAME, groups=10)),
    "groups_of_2": (channelwise, ConvSpec(1, 9, 7, 6, 9, (3, 3), padding=SAME, groups=3)),
    "multiplied": (channelwise, ConvSpec(1, 9, 7, 8, 64, (3, 3), padding=SAME, groups=8)),
}
PRODUCTS = {
    "odd": (MatmulSpec(3, 70, 33, 50, epilogue=RESIDUAL), 32),
    "right_shared": (MatmulSpec(2, 64, 128, 64, right_shared=True), 64),
    "pairs": (MatmulSpec(2, 70, 34, 50, epilogue=RESIDUAL), 32),
    "left_shared": (MatmulSpec(2, 40, 36, 20, left_shared=True), 32),
}


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    functions = {name: family.kernel(spec) for name, (family, spec) in LAYERS.items()}
    codes = {name: cuda_code(function, ORIN, name) for name, function in functions.items()}
    for name, (spec, columns) in PRODUCTS.items():
        tile = next(tile for tile in TILES if tile.columns == columns)
        for symbol, gpu in ((name, ORIN), (f"{name}_loaded", TURING)):
            codes[symbol] = cuda_code(matmul.kernel(spec, tile, gpu), gpu, symbol)
    return Emulator(codes, tmp_path_factory.mktemp("layers"))


@pytest.mark.parametrize("name", LAYERS)
def test_layers_agree_with_numpy(emulator, name):
    family, spec = LAYERS[name]
    layer = Layer(spec, panel_of(spec, family.COLUMNS))
    assert max(layer.error(emulator, name, seed) for seed in range(3)) < 1e-6
    assert emulator.barriers(name) == (1 if family is gemv else 0)
    assert barriers.needless(emulator, name, lambda _: layer.whole()) == []


@pytest.mark.parametrize("name", [*PRODUCTS, *(f"{name}_loaded" for name in PRODUCTS)])
def test_products_agree_with_numpy(emulator, name):
    spec, _ = PRODUCTS[name.removesuffix("_loaded")]
    rng = np.random.default_rng(0)
    a = rng.standard_normal((1 if spec.left_shared else spec.batch, spec.m, spec.k)).astype("f4")
    b = rng.standard_normal((1 if spec.right_shared else spec.batch, spec.k, spec.n)).astype("f4")
    tensors = [rng.standard_normal((spec.batch, spec.m, spec.n)).astype("f4") for _ in range(spec.tensors)]
    wanted = a.astype("f8") @ b
    wanted = np.maximum(wanted + tensors[0], 0) if tensors else wanted
    arguments = [a, b, *tensors, np.full(wanted.shape, np.nan, "f4")]
    for seed in range(3):
        np.testing.assert_allclose(emulator.run(name, arguments, seed=seed)[-1], wanted, rtol=1e-5, atol=2e-5)
    assert barriers.needless(emulator, name, lambda _: arguments) == []


def test_panels_that_are_too_short_are_read_beyond_their_end(emulator):
    """What the emulator is for: the fault is reported, and the process goes on."""
    family, spec = LAYERS["depthwise"]
    layer = Layer(spec, panel_of(spec, family.COLUMNS))
    x, packed, first, count, y = layer.whole()
    with pytest.raises(EmulationError, match="depthwise_kernel: a thread reads or writes outside of its buffers"):
        emulator.run("depthwise", [x, packed[:1], first, count, y])
    with pytest.raises(EmulationError, match=r"behind the end of a buffer|outside of its buffers"):
        emulator.run("depthwise", [x, packed, first, count, y[..., :39].copy()])
    assert layer.error(emulator, "depthwise", 0) < 1e-6


@pytest.mark.parametrize(
    ("spec", "family", "block"),
    [
        (ConvSpec(1, 1, 1, 512, 1000), "gemv", 16),
        (ConvSpec(1, 56, 56, 64, 64, (3, 3), padding=SAME), "direct", 64),  # whose blocks may share products
        (ConvSpec(1, 14, 14, 96, 96, (3, 3), padding=SAME, groups=96), "depthwise", 32),
        (ConvSpec(1, 14, 14, 128, 128, (3, 3), padding=SAME, groups=32), "grouped", 32),
        (ConvSpec(1, 112, 112, 128, 128, (3, 3), padding=SAME, groups=4), "direct", 32),
    ],
)
def test_layers_get_the_family_that_fits(spec, family, block):
    first, *others = candidates(spec, Gpu(ORIN))
    assert (first.family, first.panel.block, first.scratch_nbytes) == (family, block, 0)
    assert first.panel.groups * first.panel.blocks_per_group == first.panel.blocks
    # Of the same stored weights, and faster for its scratch.
    assert all(other.panel == first.panel and other.scratch_nbytes > 0 and other.work < first.work for other in others)
    assert all(candidate.build().attrs is not None for candidate in (first, *others))


def test_results_may_lie_over_an_operand_where_no_blocks_overlap():
    whole, overlapping = (ConvSpec(1, 9, 9, 64, channels, epilogue=RESIDUAL) for channels in (96, 100))
    assert candidates(whole, Gpu(ORIN))[0].in_place and not candidates(overlapping, Gpu(ORIN))[0].in_place
