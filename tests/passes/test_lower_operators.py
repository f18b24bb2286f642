"""Operators with a kernel family become calls of its kernels, and no others."""

import pytest
import tvm
from tvm import relax

from flexcomp.passes import LowerOperators
from flexcomp.passes.attributes import IMPLEMENTATION
from flexcomp.schedules.tiles.tile import VectorUnit

from .networks import calls, network

op = relax.op
UNIT = VectorUnit(8, 16)
IMAGE = (1, 6, 6, 8)


def lowered(body, apply, shape: tuple[int, ...] = IMAGE) -> tvm.IRModule:
    return apply(LowerOperators(UNIT), network({"x": shape}, {}, body))


def test_equal_operators_share_a_kernel(apply):
    after = lowered(lambda emit, x: op.nn.softmax(emit(op.nn.softmax(emit(op.nn.softmax(x))))), apply)
    assert calls(after) == ["softmax_0"] * 3
    assert str(after["softmax_0"].attrs[IMPLEMENTATION]) == "vector"


def test_different_operators_have_their_own(apply):
    after = lowered(lambda emit, x: op.cumsum(emit(op.nn.softmax(emit(op.cumsum(x, axis=1)))), axis=2), apply)
    assert calls(after) == ["cumsum_0", "softmax_1", "cumsum_2"]


@pytest.mark.parametrize(
    "body",
    [
        lambda emit, x: op.nn.softmax(x, axis=1),  # rows that are not contiguous
        lambda emit, x: op.nn.max_pool2d(x, layout="NCHW"),
        lambda emit, x: op.mean(x, axis=[0, 1]),  # of no image
        lambda emit, x: op.astype(x, "float64"),
        lambda emit, x: op.exp(x),
    ],
)
def test_what_no_rule_takes_stays(body, becomes):
    before = network({"x": IMAGE}, {}, body)
    becomes(LowerOperators(UNIT), before, before)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (lambda emit, x: op.nn.max_pool2d(x, (2, 2), (2, 2), layout="NHWC"), "max_pool2d_0"),
        (lambda emit, x: op.mean(x, axis=[1, 2], keepdims=True), "mean_0"),
        (lambda emit, x: op.concat([x, x], axis=3), "concat_0"),
        (lambda emit, x: op.sort(x, axis=-1), "sort_0"),
        (lambda emit, x: op.astype(x, "float16"), "astype_0"),
    ],
)
def test_families(body, name, apply):
    assert calls(lowered(body, apply)) == [name]
