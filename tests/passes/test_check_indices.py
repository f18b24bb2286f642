"""Operators that index by value get indices inside their axes."""

import numpy as np
import pytest
import tvm
from tvm import relax

from flexcomp.compiler import pipeline
from flexcomp.errors import ModelError
from flexcomp.passes import CheckIndices
from flexcomp.passes.attributes import BOUNDS
from flexcomp.passes.ir import operator

from .networks import calls

op = relax.op
ROWS = 10


def lookup(indices=None, dtype: str = "int64", mode: str = "fast") -> tvm.IRModule:
    """Rows of x: of `indices`, or of an input of this type, twice."""
    builder = relax.BlockBuilder()
    x, i = relax.Var("x", relax.TensorType((ROWS, 4), "float32")), relax.Var("i", relax.TensorType((3,), dtype))
    with builder.function("main", [x, i], attrs={"num_input": 2}):
        with builder.dataflow():
            chosen = i if indices is None else relax.const(np.array(indices, dtype))
            rows = [builder.emit(op.take(x, chosen, axis=0, mode=mode)) for _ in range(2)]
            result = builder.emit_output(relax.Tuple(rows))
        builder.emit_func_output(result)
    return builder.get()


def checked(mod: tvm.IRModule, apply) -> tvm.IRModule:
    return apply(CheckIndices(lambda func: pytest.fail("nothing here is computed from weights")), mod)


def constants(mod: tvm.IRModule) -> list[np.ndarray]:
    found = []
    relax.analysis.post_order_visit(
        mod["main"], lambda e: found.append(e.value.numpy()) if isinstance(e, tvm.ir.GenericConst) else None
    )
    return found


def test_a_kernel_checks_the_indices_of_a_user(apply):
    after = checked(lookup(), apply)
    assert calls(after) == ["indices_0", "relax.take", "indices_1", "relax.take"]
    assert [[*map(int, pair)] for pair in after["indices_0"].attrs[BOUNDS]] == [[-ROWS, ROWS]]
    takes = [b.value for b in after["main"].body.blocks[0].bindings if operator(b.value) == "take"]
    assert len(takes) == 2 and all(str(take.attrs.mode) == "clip" for take in takes)


def test_narrow_indices_are_widened_first(apply):
    assert calls(checked(lookup(dtype="uint8"), apply))[:2] == ["relax.astype", "indices_0"]


def test_known_indices_need_no_kernel(apply):
    assert calls(checked(lookup([0, 9, 3]), apply)) == ["relax.take"] * 2


def test_known_indices_from_the_end_are_counted_from_the_start(apply):
    after = checked(lookup([0, -1, -10]), apply)
    assert calls(after) == ["relax.add", "relax.take"] * 2
    assert any(np.array_equal(value, [0, ROWS, ROWS]) for value in constants(after)), "added to the indices"


@pytest.mark.parametrize("outside", [ROWS, -ROWS - 1])
def test_known_indices_outside_are_refused(outside):
    message = rf"operator take: index {outside} at position 2 is outside of \[-10, 10\)"
    with pytest.raises((ModelError, RuntimeError), match=message):  # TVM may hand on an error as its own
        pipeline.run(lookup([0, 1, outside]), [CheckIndices(lambda func: [])], "test")


def test_indices_that_a_converter_checked_stay(apply):
    assert calls(checked(lookup(mode="clip"), apply)) == ["relax.take"] * 2
