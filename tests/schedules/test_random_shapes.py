"""Every kernel family against NumPy over random shapes.

    FLEXCOMP_SHAPES=200 python -m pytest tests/schedules/test_random_shapes.py tests/schedules/operators/test_attention.py

checks so many shapes of each family; without it a few, because each is a kernel to compile.
"""

import pytest
import tvm
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from . import shapes_conv, shapes_other
from .kernels import library
from .shapes import SHAPES

BATCH = 5  # kernels compiled together
FAMILIES = {
    **{
        kind: shapes_conv.cases(kind)
        for kind in ("direct", "dense", "depthwise", "winograd", "strassen", "im2col_gemm")
    },
    "matmul": shapes_other.matmul(),
    **{kind: shapes_other.rows(kind) for kind in ("softmax", "log_softmax", "layer_norm", "rms_norm")},
    "pool": shapes_other.pooling(),
    "concat": shapes_other.concatenation(),
    "cumsum": shapes_other.sums(),
    "sort": shapes_other.sorting(),
    "resize": shapes_other.resize(),
}


@pytest.mark.hypothesis
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.timeout(1800)
def test_random_shapes(family):
    seen: set[str] = set()

    @settings(max_examples=-(-2 * SHAPES // BATCH), phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(st.lists(FAMILIES[family], min_size=BATCH, max_size=BATCH, unique_by=lambda case: case.name))
    def check(cases):
        cases = [case for case in cases if case.name not in seen][: SHAPES - len(seen)]
        if not cases:
            return
        seen.update(case.name for case in cases)
        with tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}):
            compiled = library({f"kernel_{i}": case.build() for i, case in enumerate(cases)})
        for i, case in enumerate(cases):
            try:
                case.check(compiled[f"kernel_{i}"])
            except AssertionError as error:
                raise AssertionError(f"{case.name}: {error}") from error

    check()
    assert len(seen) == SHAPES, f"only {len(seen)} different shapes of {family}"
    print(f"{family}: {len(seen)} shapes")
