import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from flexcomp.passes import Canonicalise

from .networks import calls, network
from .reference import assert_same_results

op = relax.op
IMAGE = (1, 4, 6, 6)


def operators(mod: tvm.IRModule) -> list[str]:
    return [name.removeprefix("relax.").removeprefix("nn.") for name in calls(mod)]


def test_split_becomes_slices(becomes):
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((1, 4, 6), "float32")) -> R.Tensor((1, 4, 6), "float32"):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                parts = R.split(x, 2, axis=1)
                a = parts[0]
                b = R.nn.relu(a)
                c = parts[1]
                y = R.concat((b, c), axis=1)
                R.output(y)
            return y

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((1, 4, 6), "float32")) -> R.Tensor((1, 4, 6), "float32"):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                a = R.strided_slice(x, [1], [0], [2])
                c = R.strided_slice(x, [1], [2], [4])
                b = R.nn.relu(a)
                y = R.concat((b, c), axis=1)
                R.output(y)
            return y

    becomes(Canonicalise(), Before, Expected)


def test_everything_in_one_dataflow_block(becomes):
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((2, 4), "float32")):
            R.func_attr({"num_input": 1})
            a = R.nn.relu(x)
            with R.dataflow():
                b = R.exp(a)
                pair = (a, b)
                R.output(pair)
            return pair

    @I.ir_module
    class Expected:
        @R.function
        def main(x: R.Tensor((2, 4), "float32")):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                a = R.nn.relu(x)
                b = R.exp(a)
                R.output(a, b)
            return (a, b)

    becomes(Canonicalise(), Before, Expected)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda emit, x: op.reshape(emit(op.squeeze(emit(op.reshape(x, (1, 144))), [0])), (4, 36)), ["reshape"]),
        (lambda emit, x: op.nn.relu(emit(op.reshape(emit(op.reshape(x, (144,))), IMAGE))), ["relu"]),
        (lambda emit, x: op.permute_dims(emit(op.permute_dims(x, [0, 2, 3, 1])), [0, 3, 2, 1]), ["permute_dims"]),
        (lambda emit, x: op.exp(emit(op.permute_dims(emit(op.permute_dims(x, [0, 2, 3, 1])), [0, 3, 1, 2]))), ["exp"]),
        (lambda emit, x: op.permute_dims(emit(op.mean(x, [2, 3], True)), [0, 2, 3, 1]), ["mean", "reshape"]),
        (lambda emit, x: op.exp(emit(op.broadcast_to(x, IMAGE))), ["exp"]),
        (lambda emit, x: op.exp(emit(op.astype(x, "float32"))), ["exp"]),
        (lambda emit, x: op.exp(emit(op.strided_slice(x, [1], [0], [4]))), ["exp"]),
        (lambda emit, x: op.strided_slice(x, [1], [3], [-5], [-1]), ["strided_slice"]),
        (lambda emit, x: op.exp(emit(op.concat([x], 1))), ["exp"]),
        (lambda emit, x: op.stack([x, emit(op.exp(x))], 1), ["exp", "reshape", "reshape", "concat"]),
        (lambda emit, x: op.nn.adaptive_avg_pool2d(x, (1, 1)), ["mean"]),
        (lambda emit, x: op.add(emit(op.exp(x)), emit(op.exp(x))), ["exp", "add"]),
    ],
    ids=[
        "reshapes", "reshape back", "permutes", "permute back", "permute of a pixel", "broadcast to same", "same dtype",
        "whole slice", "reversing slice", "concat of one", "stack", "global average", "equal expressions",
    ],
)  # fmt: skip
def test_rules(apply, body, expected):
    before = network({"x": IMAGE}, {}, body)
    after = apply(Canonicalise(), before)
    assert sorted(operators(after)) == sorted(expected)
    assert_same_results(before, after)


def test_dropout_goes(apply):
    before = network({"x": IMAGE}, {}, lambda emit, x: op.exp(emit(relax.TupleGetItem(emit(op.nn.dropout(x)), 0))))
    assert operators(apply(Canonicalise(), before)) == ["exp"]


def test_batch_norm_stays(apply):
    def body(emit, x, gamma, beta, mean, variance):
        return relax.TupleGetItem(emit(op.nn.batch_norm(x, gamma, beta, mean, variance, axis=1)), 0)

    before = network({"x": IMAGE}, dict.fromkeys(("gamma", "beta", "mean", "variance"), (4,)), body)
    assert operators(apply(Canonicalise(), before)) == ["batch_norm"]


def test_scalars_are_of_rank_0(apply):
    def body(emit, x):
        y = emit(op.multiply(x, relax.const([2.0], "float32")))
        return op.add(y, emit(op.reshape(relax.const([1.0], "float32"), (1, 1, 1, 1))))

    before = network({"x": IMAGE}, {}, body)
    after = apply(Canonicalise(), before)
    assert operators(after) == ["multiply", "add"]
    for binding in after["main"].body.blocks[0].bindings:
        assert binding.value.args[1].ty.ndim == 0
    assert_same_results(before, after)


@pytest.mark.parametrize(("value", "folded"), [(0.0, True), (1.0, False)])
def test_zero_padding_moves_into_the_convolution(apply, value, folded):
    def body(emit, x, w):
        padded = emit(op.nn.pad(x, [0, 0, 0, 0, 1, 2, 0, 1], "constant", value))
        return op.nn.conv2d(padded, w, padding=(1, 0, 0, 1))

    before = network({"x": IMAGE}, {"w": (3, 4, 3, 3)}, body)
    after = apply(Canonicalise(), before)
    assert operators(after) == (["conv2d"] if folded else ["pad", "conv2d"])
    if folded:
        (binding,) = after["main"].body.blocks[0].bindings
        assert [int(p) for p in binding.value.attrs.padding] == [2, 0, 2, 2]
    assert_same_results(before, after)


def test_results_that_are_inputs_or_equal(apply):
    def body(emit, x):
        return relax.Tuple([x, emit(op.exp(x)), emit(op.exp(x))])

    before = network({"x": IMAGE}, {}, body)
    after = apply(Canonicalise(), before)
    assert len(after["main"].ret_ty.fields) == 3
    assert_same_results(before, after)


def test_parameters_stay_though_unread(apply):
    before = network({"x": IMAGE}, {"w": (4,)}, lambda emit, x, w: op.exp(x))
    assert [p.name for p in apply(Canonicalise(), before)["main"].params] == ["x", "w"]
