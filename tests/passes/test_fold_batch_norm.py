import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from flexcomp.passes import FoldBatchNorm
from flexcomp.passes.ir import bindings, operator
from flexcomp.passes.weights import weight_vars

from .networks import network
from .reference import assert_same_results

op = relax.op
IMAGE = (1, 4, 6, 6)
NORM = dict.fromkeys(("gamma", "beta", "mean", "variance"), (4,))


def active(mod: tvm.IRModule) -> list[str]:
    """The operators that run at inference."""
    from_weights = weight_vars(mod["main"])
    return [operator(b.value) for b in bindings(mod["main"]) if b.var not in from_weights]


def norm(emit, x, parameters, axis=1, **attrs):
    return emit(relax.TupleGetItem(emit(op.nn.batch_norm(x, *parameters, axis=axis, training=False, **attrs)), 0))


def channels(emit, weight):
    return emit(op.reshape(weight, (1, 4, 1, 1)))


def test_batch_norm_folds_into_convolution(becomes):
    @I.ir_module
    class Before:
        @R.function
        def main(
            x: R.Tensor((1, 3, 6, 6), "float32"),
            w: R.Tensor((4, 3, 3, 3), "float32"),
            gamma: R.Tensor((4,), "float32"),
            beta: R.Tensor((4,), "float32"),
            mean: R.Tensor((4,), "float32"),
            variance: R.Tensor((4,), "float32"),
        ) -> R.Tensor((1, 4, 4, 4), "float32"):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                c = R.nn.conv2d(x, w)
                n = R.nn.batch_norm(c, gamma, beta, mean, variance, axis=1, epsilon=0.001, training=False)
                y = n[0]
                R.output(y)
            return y

    @I.ir_module
    class Expected:
        @R.function
        def main(
            x: R.Tensor((1, 3, 6, 6), "float32"),
            w: R.Tensor((4, 3, 3, 3), "float32"),
            gamma: R.Tensor((4,), "float32"),
            beta: R.Tensor((4,), "float32"),
            mean: R.Tensor((4,), "float32"),
            variance: R.Tensor((4,), "float32"),
        ) -> R.Tensor((1, 4, 4, 4), "float32"):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                shifted = R.add(variance, R.const(0.001, "float32"))
                root = R.rsqrt(shifted)
                scale = R.multiply(root, gamma)
                scaled_mean = R.multiply(mean, scale)
                negated = R.multiply(scaled_mean, R.const(-1.0, "float32"))
                shift = R.add(negated, beta)
                scale_oihw = R.reshape(scale, (4, 1, 1, 1))
                scaled_w = R.multiply(w, scale_oihw)
                c = R.nn.conv2d(x, scaled_w)
                shift_nchw = R.reshape(shift, (1, 4, 1, 1))
                y = R.add(c, shift_nchw)
                R.output(y)
            return y

    becomes(FoldBatchNorm(), Before, Expected)


def check(apply, body, weights, expected, inputs=None):
    before = network(inputs or {"x": IMAGE}, weights, body)
    after = apply(FoldBatchNorm(), before)
    assert active(after) == expected
    assert_same_results(before, after)


def test_through_the_bias(apply):
    def body(emit, x, w, b, *n):
        return op.nn.relu(norm(emit, emit(op.add(emit(op.nn.conv2d(x, w)), channels(emit, b))), n))

    check(apply, body, {"w": (4, 4, 3, 3), "b": (4,), **NORM}, ["conv2d", "add", "relu"])


@pytest.mark.parametrize(("scale", "center"), [(True, False), (False, True), (False, False)])
def test_norm_without_affine_part(apply, scale, center):
    def body(emit, x, w, *n):
        return norm(emit, emit(op.nn.conv2d(x, w)), n, scale=scale, center=center)

    check(apply, body, {"w": (4, 4, 3, 3), **NORM}, ["conv2d", "add"])


def test_grouped_convolution(apply):
    def body(emit, x, w, *n):
        return norm(emit, emit(op.nn.conv2d(x, w, groups=4)), n)

    check(apply, body, {"w": (4, 1, 3, 3), **NORM}, ["conv2d", "add"])


@pytest.mark.parametrize(("groups", "expected"), [(1, ["conv2d_transpose", "add"]), (2, None)])
def test_transposed_convolution(apply, groups, expected):
    def body(emit, x, w, *n):
        return norm(emit, emit(op.nn.conv2d_transpose(x, w, strides=2, groups=groups)), n)

    expected = expected or ["conv2d_transpose", "multiply", "add"]
    check(apply, body, {"w": (4, 4 // groups, 3, 3), **NORM}, expected)


def test_norm_with_mul_and_add_after_it(apply):
    """DenseNet's form: norm, multiplication, addition, with nothing linear before them."""

    def body(emit, x, a, b, *n):
        y = norm(emit, emit(op.nn.relu(x)), n)
        y = emit(op.multiply(y, channels(emit, a)))
        return op.nn.relu(emit(op.add(y, channels(emit, b))))

    check(apply, body, {"a": (4,), "b": (4,), **NORM}, ["relu", "multiply", "add", "relu"])


def test_subtractions_and_divisions(apply):
    def body(emit, x, w, a, b, c):
        y = emit(op.subtract(emit(op.nn.conv2d(x, w)), channels(emit, a)))
        y = emit(op.divide(y, channels(emit, b)))
        y = emit(op.subtract(channels(emit, c), y))
        return op.divide(emit(op.multiply(y, relax.const(0.5))), relax.const([4.0], "float32"))

    check(apply, body, {"w": (4, 4, 3, 3), "a": (4,), "b_variance": (4,), "c": (4,)}, ["conv2d", "add"])


def test_matrix_product(apply):
    def body(emit, x, w, b, s):
        y = emit(op.add(emit(op.matmul(x, emit(op.permute_dims(w)))), b))
        return op.multiply(y, s)

    check(apply, body, {"w": (4, 5), "b": (4,), "s": (4,)}, ["matmul", "add"], {"x": (2, 3, 5)})


def test_affine_part_of_a_layer_norm(apply):
    def body(emit, x, a, b):
        return op.add(emit(op.multiply(emit(op.tanh(x)), a)), b)

    check(apply, body, {"a": (5,), "b": (5,)}, ["tanh", "multiply", "add"], {"x": (2, 3, 5)})


def test_value_read_twice_is_not_folded(apply):
    def body(emit, x, w, s):
        y = emit(op.nn.conv2d(x, w))
        return op.add(emit(op.multiply(y, channels(emit, s))), y)

    check(apply, body, {"w": (4, 4, 3, 3), "s": (4,)}, ["conv2d", "multiply", "add"])


def test_scaling_by_an_activation_is_not_folded(apply):
    def body(emit, x, g, w):
        return op.multiply(emit(op.nn.conv2d(x, w)), g)

    check(apply, body, {"w": (4, 4, 3, 3)}, ["conv2d", "multiply"], {"x": IMAGE, "g": (1, 4, 1, 1)})


def test_broadcasting_the_value_itself_is_not_folded(apply):
    def body(emit, x, s):
        return op.multiply(emit(op.multiply(x, relax.const(2.0))), emit(op.reshape(s, (1, 1, 1, 7))))

    check(apply, body, {"s": (7,)}, ["multiply", "multiply"], {"x": (1, 4, 6, 1)})


def test_factors_along_two_axes(apply):
    def body(emit, x, a, b):
        y = emit(op.multiply(emit(op.multiply(x, channels(emit, a))), emit(op.reshape(b, (6,)))))
        return op.add(y, relax.const(1.0))

    check(apply, body, {"a": (4,), "b": (6,)}, ["multiply", "multiply", "add"])


def test_norm_whose_statistics_are_read_stays(apply):
    def body(emit, x, *n):
        result = emit(op.nn.batch_norm(x, *n, axis=1, training=False))
        first = emit(relax.TupleGetItem(result, 0))
        return op.add(first, emit(op.reshape(emit(relax.TupleGetItem(result, 1)), (1, 4, 1, 1))))

    before = network({"x": IMAGE}, NORM, body)
    assert "batch_norm" in active(apply(FoldBatchNorm(), before))


def test_norm_of_a_weight_stays_one(apply):
    def body(emit, x, w, *n):
        return op.add(x, norm(emit, w, n))

    check(apply, body, {"w": (1, 4, 1, 1), **NORM}, ["add"])


def test_result_of_main_may_be_inside_a_chain(apply):
    def body(emit, x, w, s):
        y = emit(op.nn.conv2d(x, w))
        z = emit(op.multiply(y, channels(emit, s)))
        return relax.Tuple([y, z])

    check(apply, body, {"w": (4, 4, 3, 3), "s": (4,)}, ["conv2d", "multiply"])


def test_norm_over_the_batch_stays(apply):
    def body(emit, x, *n):
        return relax.TupleGetItem(emit(op.nn.batch_norm(x, *n, axis=1, training=True)), 0)

    assert "batch_norm" in active(apply(FoldBatchNorm(), network({"x": IMAGE}, NORM, body)))


def test_what_is_rounded_next_is_left_as_it_is(apply):
    def body(emit, x, w, a, b):
        y = emit(op.multiply(emit(op.add(emit(op.nn.conv2d(x, w)), channels(emit, b))), channels(emit, a)))
        return op.round(y)

    weights = {"w": (4, 4, 1, 1), "a": (4,), "b": (4,)}
    assert active(apply(FoldBatchNorm(), network({"x": IMAGE}, weights, body))) == ["conv2d", "add", "multiply", "round"]
    unrounded = network({"x": IMAGE}, weights, lambda *args: op.nn.relu(body(*args).args[0]))
    assert active(apply(FoldBatchNorm(), unrounded)) == ["conv2d", "add", "relu"]


def test_differences_of_integers_are_left_as_they_are(apply):
    def body(emit, x):
        q = emit(op.astype(emit(op.astype(x, "uint8")), "float32"))
        return op.multiply(emit(op.subtract(q, relax.const(5.0, "float32"))), relax.const(0.1, "float32"))

    assert active(apply(FoldBatchNorm(), network({"x": IMAGE}, {}, body))) == ["astype", "astype", "subtract", "multiply"]


def shared(gammas: list[str | None], channels: int = 64, transposed: bool = False) -> tvm.IRModule:
    """One weight for several convolutions or products, each scaled by a vector or not."""
    names = list(dict.fromkeys(name for name in gammas if name))

    def body(emit, *variables):
        inputs, weight = variables[: len(gammas)], variables[len(gammas)]
        vectors, results = dict(zip(names, variables[len(gammas) + 1 :], strict=True)), []
        for x, name in zip(inputs, gammas, strict=True):
            result = emit(op.matmul(x, emit(op.permute_dims(weight)) if transposed else weight))
            if name:
                result = emit(op.multiply(result, emit(op.negative(vectors[name]))))
            results.append(result)
        return relax.Tuple(results)

    inputs = {f"x{i}": (3, channels) for i in range(len(gammas))}
    return network(inputs, {"w": (channels, channels), **dict.fromkeys(names, (channels,))}, body)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_weight_that_is_scaled_differently_stays_one(transposed):
    before = shared(["a", "b", None], transposed=transposed)
    after = FoldBatchNorm()(before)
    assert active(after) == ["matmul", "multiply", "matmul", "multiply", "matmul"]
    assert_same_results(before, after)


@pytest.mark.parametrize("mod", [shared(["a", "a"]), shared(["a", "a"], transposed=True), shared(["a", "b"], channels=8)])
def test_a_weight_that_is_scaled_alike_or_small_takes_the_scale(mod):
    assert active(FoldBatchNorm()(mod)) == ["matmul", "matmul"]
