"""Products by tensor cores: of rounded operands, right in every order of threads, with every barrier needed."""

from dataclasses import replace

import numpy as np
import pytest

from flexcomp.compiler.cuda_code import cuda_code
from flexcomp.schedules.cuda import ARCHITECTURES, conv, matmul
from flexcomp.schedules.cuda.block_tile import TENSOR_TILES, BlockTile, rates
from flexcomp.schedules.cuda.unit import Gpu
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.panel import panel_of
from flexcomp.schedules.tiles.spec import ConvSpec, MatmulSpec
from tests.cuda import nvcc
from tests.cuda.on_cpu.emulator import Emulator
from tests.schedules.cuda import barriers
from tests.schedules.cuda.layers import Layer

ORIN = replace(ARCHITECTURES["sm_87"], tf32=True)
SAME = (1, 1, 1, 1)
RESIDUAL = ("relu", ("add", ("acc",), ("tensor", 0)))
SPECS = {
    "window": ConvSpec(1, 9, 7, 32, 96, (3, 3), padding=SAME),
    "few_channels": ConvSpec(2, 9, 7, 3, 64, (5, 3), (2, 2), (2, 1, 1, 1), epilogue=RESIDUAL),
    "dense": ConvSpec(1, 1, 133, 19, 131, epilogue=("sigmoid", ("acc",))),
    "int8": ConvSpec(1, 13, 9, 40, 66, epilogue=("multiply", ("acc",), ("channel", 0)), weights="int8"),
    "groups_float16": ConvSpec(1, 8, 8, 32, 256, (3, 3), padding=SAME, groups=2, weights="float16"),
}
PRODUCTS = {"odd": MatmulSpec(2, 70, 33, 50, epilogue=RESIDUAL), "pairs": MatmulSpec(1, 130, 34, 132)}
# All tiles compute windows, and some of each kind all else.
SOME = [tile for tile in TENSOR_TILES if (tile.rows, tile.columns) in ((128, 128), (64, 32), (32, 32))]
CASES = {
    f"{name}_{tile.rows}_{tile.columns}_{tile.depth}": (name, tile)
    for name in (*SPECS, *PRODUCTS)
    for tile in (TENSOR_TILES if name == "window" else SOME)
} | {"window_parts": ("window", BlockTile(32, 32, 32, split_k=4, tf32=True, parts=3))}


def rounded(numbers: np.ndarray) -> np.ndarray:
    """The nearest with ten bits of mantissa, of two the one that is farther from zero."""
    mantissa, exponent = np.frexp(numbers.astype("f8"))
    scaled = np.abs(mantissa) * 2**11
    return (np.sign(mantissa) * np.floor(scaled + 0.5) * np.exp2(exponent - 11.0)).astype("f4")


@pytest.fixture(scope="module")
def layers():
    found = {}
    for symbol, (name, tile) in CASES.items():
        if name in SPECS:
            scratch, panel = conv.scratch_of(SPECS[name], tile), panel_of(SPECS[name], tile.columns)
            found[symbol] = [Layer(SPECS[name], panel, change, scratch) for change in (None, rounded)]
    return found


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    codes = {}
    for symbol, (name, tile) in CASES.items():
        family, spec = (conv, SPECS[name]) if name in SPECS else (matmul, PRODUCTS[name])
        codes[symbol] = cuda_code(family.kernel(spec, tile, ORIN), ORIN, symbol)
    return Emulator(codes, tmp_path_factory.mktemp("tensor"))


@pytest.mark.parametrize("name", [name for name, (spec, _) in CASES.items() if spec in SPECS])
def test_operands_of_layers_are_rounded_and_sums_are_not(emulator, layers, name):
    """What NumPy computes of rounded operands, and so a little else than it computes of others."""
    given, of_rounded = layers[name]
    assert max(of_rounded.error(emulator, name, seed) for seed in range(2)) < 2e-6
    assert 2e-5 < given.error(emulator, name, 0) < 2e-3


@pytest.mark.parametrize("name", [name for name, (spec, _) in CASES.items() if spec in PRODUCTS])
def test_products_agree_with_numpy(emulator, name):
    spec, rng = PRODUCTS[CASES[name][0]], np.random.default_rng(0)
    a = rng.standard_normal((spec.batch, spec.m, spec.k)).astype("f4")
    b = rng.standard_normal((spec.batch, spec.k, spec.n)).astype("f4")
    tensors = [rng.standard_normal((spec.batch, spec.m, spec.n)).astype("f4") for _ in range(spec.tensors)]
    arguments = [a, b, *tensors, np.full((spec.batch, spec.m, spec.n), np.nan, "f4")]
    exact, wanted = (x.astype("f8") @ y for x, y in ((a, b), (rounded(a), rounded(b))))
    if tensors:
        exact, wanted = (np.maximum(product + tensors[0], 0) for product in (exact, wanted))
    for seed in range(2):
        found = emulator.run(name, arguments, seed=seed)[-1]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-5)
    assert 2e-5 < np.abs(found - exact).max() / np.abs(exact).max() < 2e-3
    assert barriers.needless(emulator, name, lambda _: arguments) == []


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(("window", "int8"))])
def test_every_barrier_is_needed(emulator, layers, name):
    assert barriers.needless(emulator, name, lambda _: layers[name][0].whole()) == []


def test_what_is_no_number_stays_so(emulator, layers):
    """NaN and infinities go through where they are read, and nowhere else."""
    name = next(iter(CASES))
    layer = layers[name][0]
    x, *others = layer.whole()
    x = x.copy()
    x[0, 0, 0, 0], x[0, 8, 6, 0] = np.nan, np.inf
    y = emulator.run(name, [x, *others])[-1]
    assert np.isnan(y[0, :2, :2]).all() and not np.isfinite(y[0, 7:, 5:]).any()
    assert np.isfinite(y[0, 2:7]).all()


@pytest.mark.parametrize("spec", [SPECS["window"], PRODUCTS["pairs"]])
def test_tensor_cores_compute_where_they_are_asked_for(spec):
    (asked,), (other,) = (candidates(spec, Gpu(one)) for one in (ORIN, ARCHITECTURES["sm_87"]))
    assert str(asked.tile).endswith("tf32") and not other.tile.tf32
    source = [cuda_code(c.build(), gpu).source for c, gpu in ((asked, ORIN), (other, ARCHITECTURES["sm_87"]))]
    assert ["tf32" in text for text in source] == [True, False]


def test_tiles_are_as_fast_as_tensor_cores_and_instructions_let_them():
    found = {name: max(rates(replace(ARCHITECTURES[name], tf32=True)).values()) for name in ("sm_80", "sm_86", "sm_90")}
    assert found["sm_80"] == 8 and found["sm_86"] == 1 and 4 < found["sm_90"] < 8


@pytest.mark.skipif(nvcc.nvcc() is None, reason="needs nvcc")
@pytest.mark.parametrize("name", ["sm_80", "sm_90"])
def test_loops_are_as_few_instructions_as_tiles_are_chosen_by(name, tmp_path):
    """Nothing spills, and a multiprocessor's four schedulers issue so many multiply-adds in a cycle."""
    gpu = replace(ARCHITECTURES[name], tf32=True)
    window = ConvSpec(1, 28, 28, 128, 128, (3, 3), padding=SAME, epilogue=RESIDUAL)
    kernels = {f"{tile.rows}_{tile.columns}_{tile.depth}": conv.kernel(window, tile, gpu) for tile in TENSOR_TILES}
    for tile in SOME[:2]:
        narrow = ConvSpec(1, 28, 28, 128, 128, (3, 3), padding=SAME, weights="int8")
        first = ConvSpec(1, 224, 224, 3, 64, (7, 7), (2, 2), (3, 3, 3, 3))
        kernels |= {f"{kind}_{tile.rows}": conv.kernel(s, tile, gpu) for kind, s in (("narrow", narrow), ("first", first))}
        kernels[f"product_{tile.rows}"] = matmul.kernel(MatmulSpec(12, 197, 64, 197), tile, gpu)
    codes = [cuda_code(kernel, gpu, f"k_{symbol}") for symbol, kernel in kernels.items()]
    cubin, functions = nvcc.compiled(codes, name, tmp_path)
    assert {symbol for symbol, function in functions.items() if function.spilled_nbytes} == set()
    if nvcc.nvdisasm() is None:
        pytest.skip("needs nvdisasm")
    for tile, issued in TENSOR_TILES.items():
        loop = nvcc.longest_loop(cubin, f"k_{tile.rows}_{tile.columns}_{tile.depth}_kernel")
        assert 4 * 16 * 8 * 8 * nvcc.share(loop, "HMMA.1688.F32.TF32") > 0.95 * issued, tile
