"""FuseAttention: what it recognises, what it leaves alone, and that results stay."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from flexcomp.compiler.weights import evaluate
from flexcomp.passes import Canonicalise, FuseAttention, attributes
from flexcomp.passes.ir import bindings, dtype, shape
from flexcomp.schedules.cuda.architecture import ARCHITECTURES
from flexcomp.schedules.cuda.unit import Gpu
from flexcomp.schedules.tiles.tile import VectorUnit

from .networks import calls
from .reference import evaluate as evaluate_module

op = relax.op
UNIT = VectorUnit(8, 16)
TOKENS, HEADS, DEPTH = 20, 3, 8
WIDTH = HEADS * DEPTH


def network(mask=None, *, mask_input=False, scale_first=False, rank=4, returns_weights=False, transposed_keys=True):
    """Attention over the thirds of one input; `mask(scores, m)` uses a mask given as weight or as input."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, TOKENS, 3 * WIDTH), "float32"))
    m = relax.Var("m", relax.TensorType((1, 1, TOKENS, TOKENS), "bool" if mask is where else "float32"))
    inputs = [x, m] if mask_input else [x]
    params = inputs if mask is None or mask_input else [x, m]
    with builder.function("main", params, attrs={"num_input": len(inputs)}):
        with builder.dataflow():
            emit = builder.emit

            def heads(index: int, axes: list[int]):
                part = emit(op.strided_slice(x, [2], [index * WIDTH], [(index + 1) * WIDTH]))
                result = emit(op.permute_dims(emit(op.reshape(part, (1, TOKENS, HEADS, DEPTH))), axes))
                return result if rank == 4 else emit(op.reshape(result, shape(result)[1:]))

            q, v = heads(0, [0, 2, 1, 3]), heads(2, [0, 2, 1, 3])
            k = heads(1, [0, 2, 3, 1])
            if scale_first:
                q = emit(op.multiply(q, relax.const(0.3, "float32")))
            scores = emit(op.matmul(q, k))
            if not scale_first:
                scores = emit(op.multiply(scores, relax.const(0.3, "float32")))
            if mask is not None:
                scores = emit(mask(scores, m))
            weights = emit(op.nn.softmax(scores))
            y = emit(op.matmul(weights, v))
            if rank == 4:
                y = emit(op.permute_dims(y, [0, 2, 1, 3]))
            y = emit(op.reshape(y, (TOKENS, WIDTH)))
            output = builder.emit_output(relax.Tuple([y, weights]) if returns_weights else y)
        builder.emit_func_output(output)
    return Canonicalise()(builder.get())


def where(scores, m):
    return op.where(m, scores, relax.const(np.finfo("f4").min, "float32"))


def inverted_where(scores, m):
    hidden = op.less(m, relax.const(0.0, "float32"))
    return op.where(hidden, relax.const(-5.0, "float32"), scores)


def add(scores, m):
    return op.add(m, scores)


def fuse(mod: tvm.IRModule, *weights: np.ndarray) -> tvm.IRModule:
    before = mod.script()
    after = FuseAttention(UNIT, partial(evaluate, weights=weights))(mod)
    assert mod.script() == before, "the given module is left alone"
    relax.analysis.well_formed(_with_scratch(after))
    return after


def run(mod: tvm.IRModule, *arrays: np.ndarray) -> np.ndarray:
    """The output, by TVM's own legalisation; kernels get their scratch."""
    (output,) = evaluate_module(_with_scratch(mod), list(arrays))
    return output


@relax.expr_functor.mutator
class _Scratch(relax.PyExprMutator):
    """A call of a kernel (inputs…, output, scratch) as one with two outputs."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.mod = mod

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if call.op != tvm.ir.Op.get("relax.call_tir"):
            return call
        types = [call.ty_args[0]]
        for scratch in self.mod[call.args[0]].attrs["flexcomp.scratch"]:
            types.append(relax.TensorType([int(extent) for extent in scratch], "float32"))
        both = self.builder_.emit(relax.call_tir(call.args[0], list(call.args[1].fields), types))
        return relax.TupleGetItem(both, 0)


def _with_scratch(mod: tvm.IRModule) -> tvm.IRModule:
    mutator = _Scratch(mod)
    gv = mod.get_global_var("main")
    mutator.builder_.update_func(gv, mutator.visit_expr(mod["main"]))
    return mutator.builder_.get()


def assert_fused(mod: tvm.IRModule, *extra: str) -> None:
    names = calls(mod)
    assert [name for name in names if name != "relax.reshape"] == [*extra, "attention_0"]
    largest = max(int(np.prod(shape(binding.var))) for binding in bindings(mod["main"]))
    assert largest <= max(TOKENS * WIDTH, TOKENS * TOKENS * ("relax.permute_dims" in extra)), (
        "no queries × keys by heads"
    )


def test_of_padded_inputs_the_kernel_can_be_told_the_valid_rows():
    mod = network(add, mask_input=True)
    plain, padded = (
        next(func for gv, func in FuseAttention(UNIT, evaluate, padded)(mod).functions_items() if gv.name_hint == "attention_0")
        for padded in (False, True)
    )
    told = padded.attrs[attributes.TOLD]
    assert attributes.TOLD not in plain.attrs
    assert told.attrs[attributes.EXTENT] == TOKENS and list(told.attrs[attributes.BY_ROWS]) == [0, 1, 2]
    assert [str(param.ty) for param in told.params if not tirx.is_buffer_var(param)] == [str(told.params[-2].ty)]


LOWER = np.tril(np.ones((1, 1, TOKENS, TOKENS), bool))
OTHER = LOWER[..., ::-1, :] | np.eye(TOKENS, dtype=bool)
CASES = {
    "plain": (dict(), None, ()),
    "scaled first": (dict(scale_first=True), None, ()),
    "rank 3": (dict(rank=3), None, ()),
    "causal where": (dict(mask=where), LOWER, ()),
    "causal add": (dict(mask=add), np.where(LOWER, 0, -np.inf).astype("f4"), ()),
    "other where": (dict(mask=where), OTHER, ("relax.astype", "relax.permute_dims")),
    "soft add": (dict(mask=add), np.where(LOWER, 0, -3).astype("f4"), ("relax.permute_dims",)),
    "input add": (dict(mask=add, mask_input=True), np.where(LOWER, 0, -3).astype("f4"), ("relax.permute_dims",)),
    "inverted": (dict(mask=inverted_where), np.where(LOWER, 0, -1).astype("f4"), ()),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_attention_becomes_one_kernel(name):
    options, mask, extra = CASES[name]
    before = network(**options)
    weights = [] if mask is None or options.get("mask_input") else [mask]
    after = fuse(before, *weights)
    assert_fused(after, *extra)
    x = np.random.default_rng(0).standard_normal((1, TOKENS, 3 * WIDTH)).astype("f4")
    arrays = [x] if mask is None else [x, mask]
    np.testing.assert_allclose(run(after, *arrays), run(before, *arrays), rtol=1e-4, atol=1e-5)


def test_weights_that_are_returned_are_computed():
    after = fuse(network(returns_weights=True))
    assert "relax.nn.softmax" in calls(after) and "attention_0" not in calls(after)


def windows(shifted, count=2):
    """Attention within windows: one product's result taken apart, a bias of the heads and a mask of the windows added."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((count, TOKENS, 3 * WIDTH), "float32"))
    bias = relax.Var("bias", relax.TensorType((1, HEADS, TOKENS, TOKENS), "float32"))
    mask = relax.Var("mask", relax.TensorType((1, count, 1, TOKENS, TOKENS), "float32"))
    full = (count, HEADS, TOKENS, TOKENS)
    with builder.function("main", [x, bias, mask], attrs={"num_input": 1}):
        with builder.dataflow():
            emit = builder.emit
            parts = emit(op.permute_dims(emit(op.reshape(x, (count, TOKENS, 3, HEADS, DEPTH))), [2, 0, 3, 1, 4]))
            q, k, v = (emit(op.take(parts, relax.const(i, "int64"), axis=0, mode="clip")) for i in range(3))
            q = emit(op.multiply(q, relax.const(0.3, "float32")))
            scores = emit(op.add(emit(op.matmul(q, emit(op.permute_dims(k, [0, 1, 3, 2])))), bias))
            if shifted:
                scores = emit(op.add(emit(op.reshape(scores, (1, *full))), mask))
                scores = emit(op.reshape(scores, full))
            y = emit(op.matmul(emit(op.nn.softmax(scores)), v))
            output = builder.emit_output(op.reshape(emit(op.permute_dims(y, [0, 2, 1, 3])), (count, TOKENS, WIDTH)))
        builder.emit_func_output(output)
    return Canonicalise()(builder.get())


@pytest.mark.parametrize("shifted", [False, True])
def test_windows_read_one_product_in_place(shifted):
    random = np.random.default_rng(0)
    weights = [random.standard_normal(shape).astype("f4") for shape in ((1, HEADS, TOKENS, TOKENS), (1, 2, 1, TOKENS, TOKENS))]
    before = windows(shifted)
    after = fuse(before, *weights)
    on_weights = {"relax.add", "relax.reshape", "relax.permute_dims"}
    assert [name for name in calls(after) if name not in on_weights] == ["attention_0"]
    x = random.standard_normal((2, TOKENS, 3 * WIDTH)).astype("f4")
    np.testing.assert_allclose(run(after, x, *weights), run(before, x, *weights), rtol=1e-4, atol=1e-5)


def positions(order):
    """softmax(q·kᵀ + m + q·r)·v, r of every head and key, m given; in which order the three are added."""
    builder = relax.BlockBuilder()
    full = (1, HEADS, TOKENS, TOKENS)
    q, k, v = (relax.Var(name, relax.TensorType((1, HEADS, TOKENS, DEPTH), "float32")) for name in "qkv")
    m = relax.Var("m", relax.TensorType(full, "float32"))
    r = relax.Var("r", relax.TensorType((1, HEADS, DEPTH, TOKENS), "float32"))
    with builder.function("main", [q, k, v, m, r], attrs={"num_input": 4}):
        with builder.dataflow():
            emit = builder.emit
            transposed = emit(op.permute_dims(k, [0, 1, 3, 2]))
            terms = {"qk": emit(op.matmul(q, transposed)), "m": m, "qr": emit(op.matmul(q, r))}
            (a, b), c = order
            inner = emit(op.add(terms[a], terms[b]))
            scores = emit(op.add(inner, terms[c]))
            output = builder.emit_output(op.matmul(emit(op.nn.softmax(scores)), v))
        builder.emit_func_output(output)
    return Canonicalise()(builder.get())


@pytest.mark.parametrize("order", [(("qk", "m"), "qr"), (("m", "qk"), "qr"), (("qk", "qr"), "m")])
def test_positions_that_are_a_product_are_a_mask(order):
    random = np.random.default_rng(0)
    before = positions(order)
    shapes = [shape(param) for param in before["main"].params]
    arrays = [random.standard_normal(extents).astype("f4") for extents in shapes]
    after = fuse(before, arrays[-1])
    assert sorted(calls(after)) == ["attention_0", "relax.add", "relax.matmul", "relax.permute_dims"]
    np.testing.assert_allclose(run(after, *arrays), run(before, *arrays), rtol=1e-4, atol=1e-5)


SPAN = 11
# How scores by position are written.
BY_POSITION = {
    "both, summed first": dict(),
    "one after the other": dict(summed_first=False),
    "by query": dict(terms=("query",)),
    "by key": dict(terms=("key",)),
    "rank 3": dict(rank=3),
    "an index for every head": dict(index_heads=HEADS),
    "one table for all heads": dict(table_heads=None),
    "with a bias": dict(bias=True, summed_first=False),
    "masked after": dict(masked="after"),
    "masked before": dict(masked="before"),
}


def by_position(
    terms=("query", "key"), rank=4, summed_first=True, index_heads=1, table_heads=HEADS, bias=False, masked=None,
    is_returned=False, rows=TOKENS,
):  # fmt: skip
    """softmax(q·kᵀ + (q·t)[i, j] + (k·u)[j, i])·v."""
    builder = relax.BlockBuilder()
    lead = (1, HEADS) if rank == 4 else (HEADS,)
    axes = [*range(rank - 2), rank - 1, rank - 2]
    full = (*lead, TOKENS, TOKENS)

    def made(name, *extents, kind="float32"):
        return relax.Var(name, relax.TensorType(extents, kind))

    table = (() if table_heads is None else (*lead[:-1], table_heads)) + (DEPTH, SPAN)
    index = (*(1,) * (rank - 3), index_heads, TOKENS, TOKENS)
    params = [made(name, *lead, TOKENS, DEPTH) for name in "qkv"]
    q, k, v = params
    params += [made("t", *table), made("u", *table), made("i", *index, kind="int64")]
    *_, t, u, i = params
    m = made("m", *(full if bias else (1,) * (rank - 2) + full[-2:]))
    with builder.function("main", [*params, m], attrs={"num_input": 3}):
        with builder.dataflow():
            emit = builder.emit
            where = i if index_heads == HEADS else emit(op.broadcast_to(i, full))
            added = []
            if rows < TOKENS:
                where = emit(op.strided_slice(where, [rank - 2], [0], [rows]))
            for by, x, one in (("query", q, t), ("key", k, u)):
                x = emit(op.strided_slice(x, [rank - 2], [0], [rows])) if rows < TOKENS else x
                if by in terms:
                    scores = emit(op.gather_elements(emit(op.matmul(x, one)), where, rank - 1))
                    scores = emit(op.permute_dims(scores, axes)) if by == "key" else scores
                    added.append(emit(op.divide(scores, relax.const(2.0, "float32"))))
            if bias:
                added.append(m)
            if summed_first and len(added) > 1:
                added = [emit(op.add(*added))]
            scores = emit(op.multiply(emit(op.matmul(q, emit(op.permute_dims(k, axes)))), relax.const(0.3, "float32")))
            hidden = emit(op.less(m, relax.const(-1.0, "float32"))) if masked else None
            if masked == "before":
                scores = emit(op.where(hidden, relax.const(-3.0, "float32"), scores))
            for one in added:
                scores = emit(op.add(scores, one))
            if masked == "after":
                scores = emit(op.where(hidden, relax.const(-3.0, "float32"), scores))
            y = emit(op.matmul(emit(op.nn.softmax(scores)), v))
            output = builder.emit_output(relax.Tuple([y, added[0]]) if is_returned else y)
        builder.emit_func_output(output)
    return Canonicalise()(builder.get())


def given_by_position(mod):
    random = np.random.default_rng(0)
    arrays = []
    for param in mod["main"].params:
        if dtype(param) == "int64":
            arrays.append(random.integers(0, SPAN, shape(param)))
        else:
            arrays.append(random.standard_normal(shape(param)).astype("f4"))
    return arrays


@pytest.mark.parametrize("name", BY_POSITION)
def test_scores_by_position_are_no_tensors(name):
    options = BY_POSITION[name]
    before = by_position(**options)
    arrays = given_by_position(before)
    after = fuse(before, *arrays[3:])
    names = calls(after)
    assert names.count("attention_0") == 1 and not {"relax.matmul", "relax.gather_elements"} & set(names)
    largest = max(int(np.prod(shape(b.var))) for b in bindings(after["main"]) if dtype(b.var) == "float32")
    assert largest <= max(HEADS * TOKENS * DEPTH, TOKENS * TOKENS * (HEADS if options.get("bias") else 1))
    np.testing.assert_allclose(run(after, *arrays), run(before, *arrays), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("terms", ["query", "key"])
def test_scores_by_position_of_one_row_are_tensors(terms):
    """They are broadcast to all queries, or to all keys."""
    before = by_position(terms=(terms,), rows=1)
    arrays = given_by_position(before)
    after = fuse(before, *arrays[3:])
    assert "relax.gather_elements" in calls(after)
    np.testing.assert_allclose(run(after, *arrays), run(before, *arrays), rtol=1e-4, atol=1e-5)


def test_kernels_for_gpus_take_scores_by_position_as_tensors():
    mod = by_position()
    arrays = given_by_position(mod)[3:]
    after = FuseAttention(Gpu(ARCHITECTURES["sm_80"]), partial(evaluate, weights=arrays))(mod)
    assert calls(after).count("relax.gather_elements") == 2 and "attention_0" in calls(after)


def test_scores_by_position_that_are_returned_are_tensors():
    after = fuse(by_position(is_returned=True), *given_by_position(by_position())[3:])
    assert calls(after).count("relax.gather_elements") == 2 and "attention_0" in calls(after)
