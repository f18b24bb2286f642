"""Convolutions as implicit matrix products: right in every order of threads, with every barrier needed, and fast loops."""


import pytest

from flexcomp.compiler.cuda_code import cuda_code
from flexcomp.schedules.cuda import ARCHITECTURES, conv
from flexcomp.schedules.cuda.block_tile import TILES, BlockTile, choose
from flexcomp.schedules.cuda.unit import Gpu
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.panel import panel_of
from flexcomp.schedules.tiles.place import Place
from flexcomp.schedules.tiles.spec import ConvSpec
from tests.cuda import nvcc
from tests.cuda.on_cpu.emulator import Emulator
from tests.schedules.cuda import barriers
from tests.schedules.cuda.layers import Layer

ORIN, TURING = ARCHITECTURES["sm_87"], ARCHITECTURES["sm_75"]
SAME = (1, 1, 1, 1)
RESIDUAL = ("relu", ("add", ("acc",), ("tensor", 0)))
FIRST = ConvSpec(1, 224, 224, 3, 64, (7, 7), (2, 2), (3, 3, 3, 3))  # of ResNet-50
SCALED = ("multiply", ("acc",), ("channel", 0))
CASES = {
    "window": (ConvSpec(1, 9, 7, 16, 32, (3, 3), padding=SAME), 32),
    "few_channels": (ConvSpec(2, 9, 7, 3, 20, (5, 3), (2, 2), (2, 1, 1, 1), epilogue=RESIDUAL), 32),
    "many_columns": (ConvSpec(1, 5, 20, 3, 32, (2, 11), padding=(0, 5, 0, 5)), 32),
    "large_kernel": (ConvSpec(1, 9, 9, 4, 32, (7, 7), padding=(3, 3, 3, 3)), 32),
    "pointwise_int8": (ConvSpec(1, 13, 9, 40, 70, epilogue=SCALED, weights="int8"), 64),
    "groups_float16": (ConvSpec(1, 8, 8, 32, 128, (3, 3), padding=SAME, dilation=(2, 1), groups=2, weights="float16"), 64),
    "bfloat16": (ConvSpec(1, 5, 8, 20, 130, (3, 3), padding=SAME, weights="bfloat16"), 128),
    "dense": (ConvSpec(1, 1, 33, 19, 35, epilogue=("sigmoid", ("acc",))), 32),
    "placed": (ConvSpec(1, 4, 6, 8, 24, place=Place((1, 4, 6, 64), 8, 64)), 32),
    "strided_pointwise": (ConvSpec(1, 9, 11, 40, 64, (1, 1), (2, 2)), 64),
    "odd_strided_pointwise": (ConvSpec(1, 9, 11, 18, 64, (1, 1), (2, 2), groups=2), 32),
    "pairs": (ConvSpec(1, 9, 7, 18, 40, (3, 3), padding=SAME), 32),
    "pairs_without_padding": (ConvSpec(1, 7, 9, 18, 64, (2, 4)), 64),
    "patches": (ConvSpec(2, 12, 16, 3, 32, (4, 4), (4, 4)), 32),
    "deep": (ConvSpec(1, 7, 6, 64, 64, (3, 3), (2, 1), (1, 1, 0, 0)), 64),
    "no_padding": (ConvSpec(1, 7, 9, 32, 40, (3, 2)), 32),
    "tall": (ConvSpec(3, 9, 7, 16, 64, (3, 3), padding=SAME), 64, BlockTile(128, 64, 16)),
    "few_columns": (ConvSpec(2, 9, 9, 12, 32, (3, 3), padding=SAME), 32, BlockTile(64, 32, 32, split_k=4)),
    "eight_threads": (ConvSpec(1, 5, 7, 40, 32, (3, 3), padding=SAME), 32, BlockTile(32, 32, 64, split_k=8)),
    "parts": (ConvSpec(1, 7, 6, 64, 70, (3, 3), padding=SAME, epilogue=RESIDUAL), 32, BlockTile(32, 32, 32, split_k=4, parts=3)),
    "parts_of_odd": (ConvSpec(1, 1, 37, 250, 35), 32, BlockTile(32, 32, 64, split_k=8, parts=2)),
    "parts_int8": (ConvSpec(1, 5, 6, 128, 40, epilogue=SCALED, weights="int8"), 32, BlockTile(64, 32, 32, split_k=4, parts=2)),
    # Without a table of places: it would be too large, or has no bits for so many rows and columns.
    "many_products": (ConvSpec(1, 5, 5, 115, 32, (3, 3), padding=SAME), 32),
    "more_products": (ConvSpec(1, 3, 3, 608, 32, (5, 5), padding=(2, 2, 2, 2)), 32),
    "very_large_kernel": (ConvSpec(1, 3, 40, 2, 32, (3, 33), padding=(1, 16, 1, 16)), 32),
}
# What threads load by themselves on GPUs that copy nothing to shared memory.
OLD = ("window", "few_channels", "odd_strided_pointwise", "dense", "placed", "more_products", "parts", "parts_int8")


def tile_of(columns: int, tile: BlockTile | None = None) -> BlockTile:
    return tile or next(tile for tile in sorted(TILES, key=lambda tile: tile.rows) if tile.columns == columns)


@pytest.fixture(scope="module")
def layers():
    found = {
        name: Layer(spec, panel_of(spec, columns), scratch=conv.scratch_of(spec, tile_of(columns, *tile)))
        for name, (spec, columns, *tile) in CASES.items()
    }
    return found | {f"{name}_loaded": found[name] for name in OLD}


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    symbols = {name: (name, ORIN) for name in CASES} | {f"{name}_loaded": (name, TURING) for name in OLD}
    codes = {}
    for symbol, (name, gpu) in symbols.items():
        spec, *tile = CASES[name]
        codes[symbol] = cuda_code(conv.kernel(spec, tile_of(*tile), gpu), gpu, symbol)
        assert ("fetch_" in codes[symbol].source) == (gpu is ORIN)
    return Emulator(codes, tmp_path_factory.mktemp("conv"))


@pytest.mark.parametrize("name", [*CASES, *(f"{name}_loaded" for name in OLD)])
def test_agrees_with_numpy_in_any_order(emulator, layers, name):
    assert max(layers[name].error(emulator, name, seed) for seed in range(3)) < 2e-6


@pytest.mark.parametrize("name", [*CASES, *(f"{name}_loaded" for name in OLD)])
def test_every_barrier_is_needed(emulator, layers, name):
    assert emulator.barriers(name)
    assert barriers.needless(emulator, name, lambda _: layers[name].whole()) == []


def test_tiles_are_small_where_there_is_little_to_do():
    large, small = choose(112 * 112, 256, 1, 2304, ORIN), choose(49, 64, 1, 64, ORIN)
    assert large.rows == 128 and small.rows * small.columns < 64 * 64


def test_blocks_share_products_where_multiprocessors_would_be_idle():
    """But not where a second launch takes as long; what they add up is scratch."""
    big, deep, shallow = ARCHITECTURES["sm_90"], ConvSpec(1, 7, 7, 512, 512, (3, 3), padding=SAME), ConvSpec(1, 7, 7, 512, 512)
    (small, shared), (alone,) = (candidates(spec, Gpu(big)) for spec in (deep, shallow))
    assert shared.tile.parts > 2 and small.tile.parts == alone.tile.parts == 1 and shared.panel == small.panel
    assert shared.scratch_nbytes == 4 * shared.tile.parts * 49 * 512 and not small.scratch and shared.work < 0.6 * small.work


def test_rows_that_are_loaded_one_by_one_meet_enough_columns():
    """Of tiles that take as long."""
    assert {candidates(FIRST, Gpu(ARCHITECTURES[name]))[0].tile.columns for name in ("sm_80", "sm_86", "sm_90")} == {64}


@pytest.mark.skipif(nvcc.nvcc() is None, reason="needs nvcc")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_loops_are_multiplications(architecture, tmp_path):
    """At least 83 % of the instructions of the loop over products, vectors of 128 bits from shared memory, no spills.

    Of a layer for each tile and way to load; `python -m tests.cuda.ptxas` looks at all layers of networks.
    sm_90 compiles one kernel of each tile: what differs between layers is the same as on sm_80.
    """
    specs = {
        "window": (ConvSpec(1, 28, 28, 128, 128, (3, 3), padding=SAME), BlockTile(128, 128, 16)),
        "tall": (ConvSpec(1, 28, 28, 128, 128, (3, 3), padding=SAME), BlockTile(128, 64, 16)),
        "small": (ConvSpec(1, 28, 28, 128, 128, (3, 3), padding=SAME), BlockTile(64, 64, 16)),
        "pointwise": (ConvSpec(1, 56, 56, 256, 64), BlockTile(128, 64, 16)),
        "split_k": (ConvSpec(1, 14, 14, 1024, 256), BlockTile(64, 32, 32, split_k=4)),
        "least": (ConvSpec(1, 1, 197, 768, 768), BlockTile(32, 32, 32, split_k=4)),
        "small_window": (ConvSpec(1, 14, 14, 256, 256, (3, 3), padding=SAME), BlockTile(64, 32, 32, split_k=4)),
        "least_window": (ConvSpec(1, 7, 7, 512, 512, (3, 3), padding=SAME), BlockTile(32, 32, 32, split_k=4)),
        "first": (FIRST, BlockTile(128, 64, 16)),
        "first_of_few": (FIRST, BlockTile(32, 64, 32, split_k=4)),
        "patches": (ConvSpec(1, 224, 224, 3, 768, (16, 16), (16, 16)), BlockTile(64, 32, 32, split_k=4)),
        "narrow": (ConvSpec(1, 28, 28, 128, 128, (3, 3), padding=SAME, weights="int8"), BlockTile(128, 128, 16)),
        "narrow_small": (ConvSpec(1, 14, 14, 256, 256, (3, 3), padding=SAME, weights="int8"), BlockTile(64, 32, 32, split_k=4)),
        "narrow_least": (ConvSpec(1, 7, 7, 512, 512, (3, 3), padding=SAME, weights="int8"), BlockTile(32, 32, 32, split_k=4)),
    }
    if architecture == "sm_90":
        specs = {name: specs[name] for name in ("window", "pointwise", "small", "narrow_small", "least_window", "first_of_few")}
    gpu = ARCHITECTURES[architecture]
    codes = [cuda_code(conv.kernel(*case, gpu), gpu, name) for name, case in specs.items()]
    cubin, functions = nvcc.compiled(codes, architecture, tmp_path)
    assert [function.spilled_nbytes for function in functions.values()] == [0] * len(specs)
    if nvcc.nvdisasm() is None:
        pytest.skip("needs nvdisasm")
    assert functions["window_kernel"].registers <= 128, "of its blocks two are held"
    for name in functions:
        loop = nvcc.longest_loop(cubin, name)
        assert nvcc.share(loop, "FFMA") >= 0.83, f"{name}: {nvcc.besides(loop, 'FFMA')}"
        assert nvcc.shared_reads(loop) == {"LDS.128"}
