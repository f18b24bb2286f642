"""Gathers by an index that is the same for all leading axes."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from flexcomp.passes import GatherBeforeSpreading
from flexcomp.passes.ir import bindings, operator

from .reference import evaluate

# Data, index, what it is broadcast to, axis.
CASES = {
    "heads": ((3, 4, 6), (1, 4, 5), (3, 4, 5), 2),
    "no leading one": ((2, 3, 4, 6), (4, 5), (2, 3, 4, 5), 3),
    "another axis": ((3, 6, 4), (1, 5, 4), (3, 5, 4), 1),
    "fewer rows": ((3, 4, 6), (1, 2, 5), (3, 2, 5), -1),
    "all rows": ((3, 4, 6), (1, 1, 5), (3, 4, 5), 2),
}
OTHERS = {
    "fewer heads": ((3, 4, 6), (1, 4, 5), (2, 4, 5), 2),
    "along the axis": ((3, 4, 6), (1, 4, 5), (3, 4, 5), 0),
    "behind the axis, too": ((3, 4, 6), (1, 4, 1), (3, 4, 6), 1),
}


def network(data, index, spread, axis):
    builder = relax.BlockBuilder()
    x, i = relax.Var("x", relax.TensorType(data, "float32")), relax.Var("i", relax.TensorType(index, "int64"))
    with builder.function("main", [x, i], attrs={"num_input": 1}):
        with builder.dataflow():
            result = builder.emit_output(op.gather_elements(x, builder.emit(op.broadcast_to(i, spread)), axis))
        builder.emit_func_output(result)
    return builder.get()


@pytest.mark.parametrize("case", CASES)
def test_the_same_elements_without_the_broadcast(case):
    data, index, _, axis = CASES[case]
    before = network(*CASES[case])
    after = GatherBeforeSpreading()(before)
    assert {operator(b.value) for b in bindings(after["main"])}.isdisjoint({"gather_elements", "broadcast_to"})
    rng = np.random.default_rng(6)
    given = [rng.standard_normal(data, dtype=np.float32), rng.integers(0, data[axis], index)]
    np.testing.assert_array_equal(*(evaluate(one, given)[0] for one in (before, after)))


@pytest.mark.parametrize("case", OTHERS)
def test_others_stay(case):
    after = GatherBeforeSpreading()(network(*OTHERS[case]))
    assert "gather_elements" in {operator(b.value) for b in bindings(after["main"])}
