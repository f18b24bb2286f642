"""Packed weights are made when they are written, in pieces, and are what they would be if made at once."""

import gc
import weakref

import numpy as np
import pytest
import tvm
from tvm import relax

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp.compiler import weight_operators
from flexcomp.compiler.weights import evaluate, evaluate_later
from flexcomp.deferred import Deferred, content_digest
from flexcomp.program.weights_file import write_weights
from flexcomp.schedules.strassen.weights import HalvesTransform
from tests.passes.reference import evaluate as reference

OP = relax.op
ROWS, COLUMNS = 1000, 96
LANES = np.minimum(np.arange(ROWS + 24), ROWS - 1)


def weight_side(*steps) -> relax.Function:
    """A function of w [ROWS, COLUMNS] and b [ROWS]; each step takes what the one before it gave, and b."""
    builder = relax.BlockBuilder()
    params = [relax.Var("w", relax.TensorType((ROWS, COLUMNS), "float32")), relax.Var("b", relax.TensorType((ROWS,), "float32"))]
    with builder.function("main", params):
        with builder.dataflow():
            value = params[0]
            for step in steps:
                value = builder.emit(step(value, params[1]))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()["main"]


def const(value, dtype="float32"):
    return relax.const(np.asarray(value), dtype)


def packed_call(function, shape, *args):
    dtype = function.split(".")[1] if function.startswith("pack") else "float32"
    return OP.call_pure_packed(f"flexcomp.{function}", *args, ty_args=relax.TensorType(shape, dtype))


MATRIX = np.random.default_rng(1).standard_normal((6, 4))
CHAINS = {
    "scaled by rows": [lambda x, b: OP.multiply(x, OP.reshape(b, (ROWS, 1)))],
    "scaled by columns": [lambda x, _: OP.multiply(x, const(np.arange(COLUMNS)))],
    "one row for all": [lambda x, b: OP.add(OP.broadcast_to(OP.reshape(b, (1, ROWS)), (COLUMNS, ROWS)), OP.permute_dims(x))],
    "transposed": [lambda x, _: OP.permute_dims(x, (1, 0)), lambda x, _: OP.sqrt(OP.maximum(x, const(0.0)))],
    "transposed, later": [lambda x, _: OP.negative(x), lambda x, _: OP.permute_dims(x, (1, 0))],
    "rows across rows": [lambda x, _: OP.reshape(x, (ROWS * 2, 3, COLUMNS // 6)), lambda x, _: OP.permute_dims(x, (0, 2, 1))],
    "few of many": [lambda x, _: OP.reshape(x, (COLUMNS, ROWS)), lambda x, _: OP.subtract(x, const(1.0))],
    "lanes": [lambda x, _: OP.take(x, const(LANES, "int64"), axis=0), lambda x, _: OP.reshape(x, (16, 64, COLUMNS))],
    "lanes apart": [lambda x, _: OP.take(x, const(LANES[::-1] * 7 % ROWS, "int64"), axis=0)],
    "lanes of columns": [lambda x, _: OP.take(x, const(np.arange(COLUMNS)[::-2], "int64"), axis=1)],
    "every third row": [lambda x, _: OP.strided_slice(x, [0, 1], [2, 1], [ROWS - 1, COLUMNS], [3, 1])],
    "rows from the last": [lambda x, _: OP.strided_slice(x, [0], [-1], [-ROWS - 1], [-1]), lambda x, _: OP.negative(x)],
    "columns": [lambda x, _: OP.negative(x), lambda x, _: OP.strided_slice(x, [1], [-64], [1 << 40])],
    "beside each other": [lambda x, b: OP.concat([x, OP.reshape(b, (ROWS, 1)), OP.zeros((ROWS, 31), "float32")], axis=1)],
    "below each other": [lambda x, _: OP.concat([x, x], axis=0), lambda x, _: OP.divide(x, const(3.0))],
    "filled up": [lambda x, _: OP.concat([x, OP.zeros((8, COLUMNS), "float32")], axis=0)],
    "combined": [
        lambda x, _: OP.astype(OP.reshape(x, (ROWS * 6, 4, 4)), "float64"),
        lambda x, _: OP.matmul(const(MATRIX, "float64"), x),
        lambda x, _: OP.astype(x, "float32"),
    ],
    "summed": [lambda x, _: OP.matmul(const(np.sign(MATRIX.round()), "float32"), OP.reshape(x, (ROWS * 6, 4, 4)))],
    "a product": [lambda x, _: OP.matmul(x, OP.permute_dims(x))],
    "axes added": [lambda x, _: OP.expand_dims(x, (0, 2)), lambda x, _: OP.squeeze(OP.rsqrt(OP.multiply(x, x)), (0,))],
    "against the largest": [lambda x, _: OP.divide(x, OP.max(x, (0,), keepdims=True))],
    "TVM computes it": [lambda x, _: OP.tanh(x), lambda x, b: OP.add(x, OP.expand_dims(b, 1))],
    "rounded to int8": [lambda x, _: packed_call("round.int8", (ROWS, COLUMNS), x)],
    "packed in float16": [
        lambda x, _: OP.reshape(x, (ROWS // 8, COLUMNS, 8)),
        lambda x, b: packed_call("pack.float16", (ROWS // 8, COLUMNS + 2, 8), OP.reshape(b, (ROWS // 8, 1, 8)), x),
    ],
    "deep": [lambda x, _: OP.add(x, x)] * 90,
}


@pytest.fixture(scope="module")
def arrays() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [(rng.random(shape) + 0.1).astype("f4") for shape in ((ROWS, COLUMNS), (ROWS,))]


@pytest.mark.parametrize("name", CHAINS)
def test_pieces_are_the_result(name, arrays):
    func = weight_side(*CHAINS[name])
    (later,), (now,) = evaluate_later(func, arrays), evaluate(func, arrays)
    assert isinstance(later, Deferred) == (now.nbytes >= 1 << 16)
    assert (later.shape, later.dtype, later.nbytes) == (now.shape, now.dtype, now.nbytes)
    np.testing.assert_array_equal(np.asarray(later), now)
    if "call_pure_packed" not in str(func):  # which TVM cannot compute
        (expected,) = reference(tvm.IRModule({"main": func}), arrays)
        np.testing.assert_allclose(now, expected, rtol=1e-5)


@pytest.mark.parametrize("name", CHAINS)
def test_any_rows_are_those_of_the_result(name, arrays):
    func = weight_side(*CHAINS[name])
    (later,), (now,) = evaluate_later(func, arrays), evaluate(func, arrays)
    if isinstance(later, Deferred):
        rows = later.begin()
        for first, end in ((0, 1), (later.count - 1, later.count), (later.count // 3, later.count // 2)):
            np.testing.assert_array_equal(rows(first, end), now[first:end])


def test_signed_sums_are_the_product_to_the_last_bit():
    rng = np.random.default_rng(0)
    signs = np.concatenate([HalvesTransform().matrix, np.zeros((1, 4))])
    operands = rng.standard_normal((5, 4, 300)).astype("f4").astype("f8") * 2.0 ** rng.integers(-30, 30, (5, 4, 300))
    operands[0, :, :10] = -0.0
    np.testing.assert_array_equal(
        weight_operators.signed_sums(signs, operands).view("u8"), np.matmul(signs, operands).view("u8")
    )


def test_a_number_of_rows_needs_as_many_of_the_weights(arrays):
    """Else making a panel by and by would make it again and again."""
    seen = []

    class Watched(np.ndarray):
        def __getitem__(self, index):
            seen.append(index)
            return np.asarray(self)[index]

    for name in ("scaled by rows", "lanes", "beside each other", "filled up", "combined", "rows across rows", "rounded to int8"):
        seen.clear()
        (later,) = evaluate_later(weight_side(*CHAINS[name]), [arrays[0].view(Watched), arrays[1]])
        assert not seen, "nothing is made yet"
        later.begin()(later.count // 2, later.count // 2 + later.count // 10)
        assert seen and all(index.stop - index.start <= ROWS // 10 + 1 for index in seen), name


def test_nothing_is_kept_of_what_was_written(arrays, tmp_path, monkeypatch):
    made: list[weakref.ref] = []
    alive: list[int] = []
    concat = weight_operators.BY_ROWS["concat"]

    def watched(*args):
        alive.append(sum(ref() is not None for ref in made))
        result = concat(*args)
        made.append(weakref.ref(result))
        return result

    monkeypatch.setitem(weight_operators.BY_ROWS, "concat", watched)
    entries = [(str(i), evaluate_later(weight_side(*CHAINS["beside each other"]), arrays)[0]) for i in range(4)]
    monkeypatch.setattr("flexcomp.deferred._PIECE_NBYTES", 1 << 14)
    write_weights(tmp_path / "w", entries)
    gc.collect()
    assert len(made) > 100 and max(alive) <= 2 and not any(ref() is not None for ref in made)


def test_equal_results_of_two_functions_are_one_array(arrays):
    """As of networks in several shapes: a digest is made once, of weights that are read once."""
    made: dict[bytes, Deferred] = {}
    read: list[tuple[int, int]] = []
    flat = arrays[0].reshape(-1)

    def rows(first: int, end: int) -> np.ndarray:
        read.append((first, end))
        return flat[first:end]

    weight = Deferred(arrays[0].shape, flat.dtype, flat.size, lambda: rows)
    results: dict[str, Deferred] = {}
    for name, steps in CHAINS.items():
        (one,), (other,) = (evaluate_later(weight_side(*steps), [weight, arrays[1].copy()], made=made) for _ in range(2))
        if isinstance(one, Deferred):
            results[name] = one
            assert one is other, name
            assert content_digest(one) == content_digest(evaluate_later(weight_side(*steps), arrays)[0]), name
            count = len(read)
            assert content_digest(other) == content_digest(one) and len(read) == count, name
    assert read and len(results) > 20 and len({id(one.begin) for one in results.values()}) == len(results)
    (others,) = evaluate_later(weight_side(*CHAINS["scaled by rows"]), [weight, arrays[1] + 1], made=made)
    assert others is not results["scaled by rows"]


def test_packed_weights_are_made_once_each_and_by_export_only(tmp_path, monkeypatch):
    g = Graph("dense", seed=3)
    x = g.relu(g.conv(g.input("x", (1, 64, 8, 8)), 128, 3))
    model = g.model(g.conv(x, 64, 3), (1, 64, 8, 8))
    packed: list[int] = []
    concat = weight_operators.BY_ROWS["concat"]

    def counted(making, call, first, end):
        result = concat(making, call, first, end)
        packed.append(result.nbytes)
        return result

    monkeypatch.setitem(weight_operators.BY_ROWS, "concat", counted)
    artifact = flexcomp.build(model, target="llvm -mcpu=x86-64-v3", threads=1)
    assert {layer.implementation.split()[0] for layer in artifact.program.layers} > {"direct"}, "several kernels for a layer"
    assert not packed
    artifact.write_weights(tmp_path / "weights")
    assert sum(packed) == sum(array.nbytes for _, array, _ in artifact.weights)


@pytest.mark.parametrize("name", [name for name in CHAINS if name != "TVM computes it"])
def test_no_operator_of_packing_is_compiled(name, arrays, monkeypatch):
    """To compile one takes as long as to make some hundred by NumPy."""
    monkeypatch.setattr("flexcomp.compiler.weights._compiled", None)
    evaluate(weight_side(*CHAINS[name]), arrays)
