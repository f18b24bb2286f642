"""SplitProducts: which concatenations it takes apart, and that results stay."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from flexcomp.passes import Canonicalise, SplitProducts
from flexcomp.passes.ir import bindings, shape

from .networks import calls, network
from .reference import assert_same_results

op = relax.op
PAIRS = (1, 9, 9, 8)


def pairs(emit, x, y, w, *, common=False, by_columns=False, flat=True):
    a = emit(op.broadcast_to(x, PAIRS))
    parts = [a, emit(op.broadcast_to(y, PAIRS)), *([y] if common else [])]
    parts = [emit(op.broadcast_to(part, PAIRS)) for part in parts]
    joined = emit(op.concat(parts, axis=2 if by_columns else 3))
    if flat:
        joined = emit(op.reshape(joined, (-1, shape(joined)[-1])))
    return emit(op.matmul(joined, w))


def built(depth=16, **options) -> tvm.IRModule:
    inputs = {"x": (1, 9, 1, 8), "y": (1, 1, 9, 8)}
    return Canonicalise()(network(inputs, {"w": (depth, 5)}, lambda emit, *given: pairs(emit, *given, **options)))


@pytest.mark.parametrize("options", [{}, {"flat": False}, {"common": True, "depth": 24}], ids=str)
def test_parts_are_multiplied_before_they_are_broadcast(options):
    before = built(**options)
    after = SplitProducts()(before)
    assert "relax.concat" not in calls(after) and calls(after).count("relax.matmul") == 2 + options.get("common", False)
    assert max(np.prod(shape(binding.var)) for binding in bindings(after["main"])) <= 9 * 9 * 5
    assert_same_results(before, after)


def test_other_concatenations_stay():
    beside = built(depth=8, by_columns=True)
    assert calls(SplitProducts()(beside)) == calls(beside)
    whole = network(
        {"x": (1, 9, 8), "y": (1, 9, 8)}, {"w": (16, 5)},
        lambda emit, x, y, w: emit(op.matmul(emit(op.concat([x, y], axis=2)), w)),
    )  # fmt: skip
    assert calls(SplitProducts()(whole)) == calls(whole)


def test_a_concatenation_that_is_read_again_stays():
    def body(emit, x, y, w):
        joined = emit(op.concat([emit(op.broadcast_to(one, PAIRS)) for one in (x, y)], axis=3))
        return emit(op.add(emit(op.matmul(joined, w)), emit(op.sum(joined, [3], keepdims=True))))

    mod = network({"x": (1, 9, 1, 8), "y": (1, 1, 9, 8)}, {"w": (16, 5)}, body)
    assert calls(SplitProducts()(mod)) == calls(mod)
