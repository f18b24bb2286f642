"""LowerAttention: Q, K and V are read where they lie, and the result is written as it is wanted."""

from __future__ import annotations

from tvm import relax

from flexcomp.passes import Canonicalise, LowerAttention
from flexcomp.passes.lower_attention import attention_over
from flexcomp.schedules.tiles.tile import VectorUnit

from .networks import calls

op = relax.op
QUERIES, HEADS, DEPTH, KEYS = 3, 4, 8, 12


def network(joined: bool, twice: bool = False):
    """Queries out of the first thirds of rows, two heads of keys; the result with joined heads, or as it is."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, QUERIES, 3 * HEADS * DEPTH), "float32"))
    k, v = (relax.Var(name, relax.TensorType((1, 2, KEYS, DEPTH), "float32")) for name in "kv")
    n = relax.Var("n", relax.TensorType((1,), "int64"))
    with builder.function("main", [x, k, v, n], attrs={"num_input": 4}):
        with builder.dataflow():
            emit = builder.emit
            part = emit(op.strided_slice(x, [2], [0], [HEADS * DEPTH]))
            q = emit(op.permute_dims(emit(op.reshape(part, (1, QUERIES, HEADS, DEPTH))), [0, 2, 1, 3]))
            y = emit(attention_over(q, k, v, n, 0.5, True))
            z = emit(op.permute_dims(y, [0, 2, 1, 3])) if joined else y
            output = builder.emit_output(relax.Tuple([y, z]) if twice else z)
        builder.emit_func_output(output)
    return Canonicalise()(builder.get())


def test_no_copy_is_left():
    mod = network(joined=True)
    before = mod.script()
    after = LowerAttention(VectorUnit(8, 16))(mod)
    assert mod.script() == before, "the given module is left alone"
    assert calls(after) == ["cached_attention_0"]
    (kernel,) = (func for gv, func in after.functions_items() if gv.name_hint != "main")
    assert "of valid keys" in str(kernel.attrs["flexcomp.description"])
    shapes = [tuple(int(e) for e in param.shape) for param in kernel.params]
    cache = (1, 2, KEYS, DEPTH)
    assert shapes[:5] == [(1, QUERIES, 3 * HEADS * DEPTH), cache, cache, (1,), (1, QUERIES, HEADS, DEPTH)]


def test_results_that_are_read_with_heads_apart():
    for joined, twice in ((False, False), (True, True)):
        after = LowerAttention(VectorUnit(8, 16))(network(joined, twice))
        assert calls(after)[-1 - twice :] == ["cached_attention_0", *["relax.permute_dims"] * twice]
        kernel = next(func for gv, func in after.functions_items() if gv.name_hint != "main")
        assert tuple(int(e) for e in kernel.params[4].shape) == (1, HEADS, QUERIES, DEPTH)
