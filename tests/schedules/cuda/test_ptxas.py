"""Every family through nvcc and ptxas: nothing spills, and blocks fit."""

import pytest

from flexcomp.compiler.cuda_code import cuda_code
from flexcomp.schedules.cuda import ARCHITECTURES, attention, channelwise, conv, fallback, gemv, matmul, pool, rowwise
from flexcomp.schedules.cuda.block_tile import TILES
from flexcomp.schedules.operators.pool import PoolSpec
from flexcomp.schedules.operators.rowwise import KINDS, RowSpec
from flexcomp.schedules.tiles.spec import ConvSpec, MatmulSpec
from tests.cuda import nvcc
from tests.schedules.generic.cases import CASES, legalised
from tests.schedules.operators.attentions import dense

SAME = (1, 1, 1, 1)
RESIDUAL = ("relu", ("add", ("acc",), ("tensor", 0)))


def kernels(architecture):
    """Layers of ResNet-50, MobileNetV2 and ViT-B/16, by the names of families."""
    functions = {}
    for tile in TILES:
        name = f"{tile.rows}x{tile.columns}x{tile.depth}"
        window = ConvSpec(1, 28, 28, 128, 128, (3, 3), padding=SAME, epilogue=RESIDUAL)
        functions[f"conv_{name}"] = conv.kernel(window, tile, architecture)
        functions[f"matmul_{name}"] = matmul.kernel(MatmulSpec(12, 197, 197, 64), tile, architecture)
    tile = next(iter(TILES))
    for dtype in ("float16", "bfloat16", "int8"):
        window = ConvSpec(1, 28, 28, 128, 128, (3, 3), padding=SAME, weights=dtype)
        functions[f"conv_{dtype}"] = conv.kernel(window, tile, architecture)
    functions["first"] = conv.kernel(ConvSpec(1, 224, 224, 3, 64, (7, 7), (2, 2), (3, 3, 3, 3)), tile, architecture)
    functions["gemv"] = gemv.kernel(ConvSpec(1, 1, 1, 2048, 1000, weights="float16"))
    functions["depthwise"] = channelwise.kernel(ConvSpec(1, 56, 56, 144, 144, (3, 3), padding=SAME, groups=144))
    functions["grouped"] = channelwise.kernel(ConvSpec(1, 28, 28, 256, 256, (3, 3), padding=SAME, groups=32))
    functions["pool"] = pool.kernel(PoolSpec(1, 112, 112, 64, 3, 3, (2, 2), SAME, (1, 1), "max", False, 56, 56))
    functions |= {kind: rowwise.kernel(RowSpec(kind, (197, 768), 1, 1e-5)) for kind in KINDS}
    functions["attention"] = attention.kernel(dense(1, 12, 197, 197, 64, 64), architecture)
    functions["attention_of_one"] = attention.kernel(dense(1, 12, 1, 1024, 128, 128, has_lengths=True), architecture)
    for name in ("gelu", "take", "mean_last", "softmax_last", "argmax", "scatter"):
        for i, function in enumerate(legalised(*CASES[name])):
            functions[f"{name}_{i}"] = fallback.schedule(function, architecture).func
    return functions


@pytest.mark.skipif(nvcc.nvcc() is None, reason="needs nvcc")
@pytest.mark.parametrize("name", ["sm_75", "sm_87", "sm_90"])  # sm_80 has sm_87's instructions
def test_nothing_spills(name, tmp_path):
    architecture = ARCHITECTURES[name]
    codes = {function: cuda_code(func, architecture, function) for function, func in kernels(architecture).items()}
    _, functions = nvcc.compiled(list(codes.values()), name, tmp_path)
    launches = [launch for code in codes.values() for launch in code.launches]
    assert {launch.function for launch in launches} == set(functions)
    assert {name for name, function in functions.items() if function.spilled_nbytes} == set()
    for launch in launches:
        function = functions[launch.function]
        assert function.shared_nbytes <= architecture.block_shared_nbytes
        threads = launch.threads[0] * launch.threads[1] * launch.threads[2]
        assert architecture.blocks(threads, function.registers, function.shared_nbytes) >= 1, launch.function
