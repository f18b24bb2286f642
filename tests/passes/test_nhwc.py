import itertools

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from flexcomp.passes import ToNHWC
from flexcomp.passes.ir import bindings, operator, shape
from flexcomp.passes.weights import weight_vars

from .networks import network
from .reference import assert_same_results

op = relax.op
IMAGE = (1, 4, 6, 8)
KERNEL = {"w": (4, 4, 3, 3)}


def active(mod: tvm.IRModule) -> list[str]:
    """The operators that run at inference."""
    from_weights = weight_vars(mod["main"])
    return [operator(b.value) for b in bindings(mod["main"]) if b.var not in from_weights]


def conv(emit, x, w):
    return emit(op.nn.conv2d(x, w, padding=1))


def test_convolution_bias_relu(becomes):
    @I.ir_module
    class Before:
        @R.function
        def main(
            x: R.Tensor((1, 3, 6, 6), "float32"), w: R.Tensor((4, 3, 3, 3), "float32"), b: R.Tensor((4,), "float32")
        ) -> R.Tensor((1, 4, 6, 6), "float32"):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                c = R.nn.conv2d(x, w, padding=1)
                bias = R.reshape(b, (1, 4, 1, 1))
                d = R.add(c, bias)
                y = R.nn.relu(d)
                R.output(y)
            return y

    @I.ir_module
    class Expected:
        @R.function
        def main(
            x: R.Tensor((1, 3, 6, 6), "float32"), w: R.Tensor((4, 3, 3, 3), "float32"), b: R.Tensor((4,), "float32")
        ) -> R.Tensor((1, 4, 6, 6), "float32"):
            R.func_attr({"num_input": 1})
            with R.dataflow():
                wt = R.permute_dims(w, [0, 2, 3, 1])
                xt = R.permute_dims(x, [0, 2, 3, 1])
                c = R.nn.conv2d(xt, wt, padding=1, data_layout="NHWC", kernel_layout="OHWI")
                bias = R.reshape(b, (1, 1, 1, 4))
                d = R.add(c, bias)
                r = R.nn.relu(d)
                y = R.permute_dims(r, [0, 3, 1, 2])
                R.output(y)
            return y

    becomes(ToNHWC(), Before, Expected)


def check(apply, body, expected=None, weights=KERNEL, inputs=None):
    before = network(inputs or {"x": IMAGE}, weights, body)
    after = apply(ToNHWC(), before)
    if expected is not None:
        assert active(after) == expected
    assert_same_results(before, after)


@pytest.mark.parametrize("name", ["relu", "leakyrelu", "gelu", "silu"])
def test_activations(apply, name):
    def body(emit, x, w):
        return conv(emit, emit(getattr(op.nn, name)(conv(emit, x, w))), w)

    check(apply, body, ["permute_dims", "conv2d", name, "conv2d", "permute_dims"])


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda y: op.clip(y, 0, 6), "clip"),
        (lambda y: op.nn.max_pool2d(y, 3, 2, (1, 0, 1, 2), ceil_mode=True), "max_pool2d"),
        (lambda y: op.nn.avg_pool2d(y, (2, 3), (1, 2), 1, count_include_pad=True), "avg_pool2d"),
        (lambda y: op.nn.adaptive_avg_pool2d(y, (2, 3)), "adaptive_avg_pool2d"),
        (lambda y: op.image.resize2d(y, (9, 10), layout="NCHW"), "image.resize2d"),
        (lambda y: op.nn.pad(y, [0, 0, 0, 0, 1, 2, 3, 0]), "pad"),
        (lambda y: op.nn.softmax(y, 1), "softmax"),
        (lambda y: op.nn.log_softmax(y, -3), "log_softmax"),
        (lambda y: op.strided_slice(y, [2, 3], [1, 0], [6, 8], [2, 3]), "strided_slice"),
        (lambda y: op.mean(y, [2, 3], True), "mean"),
        (lambda y: op.max(y, [1], True), "max"),
        (lambda y: op.multiply(y, relax.const(2.0)), "multiply"),
        (lambda y: op.maximum(relax.const(0.1), y), "maximum"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_operators_stay_channels_last(apply, make, name):
    def body(emit, x, w):
        return emit(op.exp(emit(make(conv(emit, x, w)))))

    before = network({"x": IMAGE}, KERNEL, body)
    after = apply(ToNHWC(), before)
    assert active(after)[:4] == ["permute_dims", "conv2d", name, "exp"]
    assert_same_results(before, after)


@pytest.mark.parametrize("shape", [(4,), (4, 1, 1), (1, 4, 1, 1), (6, 1), (4, 6, 8), (1, 1)])
@pytest.mark.parametrize("left", [False, True])
def test_weight_operands(apply, shape, left):
    def body(emit, x, w, b):
        y = conv(emit, x, w)
        b = emit(op.reshape(b, (8,) if shape == (4,) else shape))
        return emit(op.subtract(b, y) if left else op.subtract(y, b))

    size = 8 if shape == (4,) else int(np.prod(shape))
    check(apply, body, ["permute_dims", "conv2d", "subtract", "permute_dims"], {**KERNEL, "b": (size,)})


EXTENTS = list(itertools.product((1, 2), (1, 3), (1, 2), (1, 2)))
FOLLOWERS = {
    "sigmoid": op.sigmoid,
    "clip": lambda y: op.clip(y, 0, 6),
    "softmax": lambda y: op.nn.softmax(y, 1),
    "max_pool2d": lambda y: op.nn.max_pool2d(y, 1),
    "resize2d": lambda y: op.image.resize2d(y, (2, 1), layout="NCHW"),
    "pad": lambda y: op.nn.pad(y, [0, 0, 0, 0, 1, 0, 0, 0]),
    "slice": lambda y: op.strided_slice(y, [1], [0], [1]),
    "concat": lambda y: op.concat([y, y], 2),
    "flatten": lambda y: op.reshape(y, (y.ty.shape.values[0], y.ty.shape.values[1], -1)),
    "rows_to_depth": lambda y: op.reshape(y, (y.ty.shape.values[0], 1, *y.ty.shape.values[1:])),
    "shuffle": lambda y: op.permute_dims(y, [0, 2, 3, 1]),
    **{
        f"mean_{''.join(map(str, axes))}_{keepdims}": lambda y, axes=list(axes), keepdims=keepdims: op.mean(y, axes, keepdims)
        for count in range(1, 5) for axes in itertools.combinations(range(4), count) for keepdims in (False, True)
    },
}  # fmt: skip


def shaped(extents, follow, weights=None):
    """A convolution of `extents`, an operator after it, and one more: each must give tensors of the shapes of before."""
    before = network(
        {"x": (extents[0], 2, *extents[2:])},
        {"w": (extents[1], 2, 1, 1), **(weights or {})},
        lambda emit, x, w, *more: emit(op.exp(emit(follow(emit(op.nn.conv2d(x, w)), *more)))),
    )
    after = ToNHWC()(before)
    relax.analysis.well_formed(after)
    assert tvm_ffi.structural_equal(after["main"].ret_ty, before["main"].ret_ty)


@pytest.mark.parametrize("name", FOLLOWERS)
def test_shapes_are_kept_for_all_extents_of_one(name):
    for extents in EXTENTS:
        shaped(extents, FOLLOWERS[name])


@pytest.mark.parametrize("extents", EXTENTS[:8], ids=str)
def test_shapes_are_kept_for_all_operands(extents):
    for rank in range(5):
        full = extents[4 - rank :]
        for ones in itertools.product((False, True), repeat=rank):
            other = tuple(1 if one else extent for one, extent in zip(ones, full, strict=True))
            shaped(extents, op.subtract, {"b": other})
            shaped(extents, lambda y, b: op.subtract(b, y), {"b": other})


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1, 1)])
def test_one_value(apply, shape):
    """The head of a classifier: a convolution with one result, added to one value."""

    def body(emit, x, w, b):
        total = emit(op.add(emit(op.nn.conv2d(x, w)), emit(op.reshape(b, shape))))
        return emit(op.squeeze(emit(op.mean(emit(op.sigmoid(total)), [2], True)), [1]))

    check(apply, body, weights={"w": (1, 4, 6, 8), "b": (1,)})


def test_prelu(apply):
    def body(emit, x, w, slope):
        return emit(op.nn.prelu(conv(emit, x, w), slope, 1))

    check(apply, body, ["permute_dims", "conv2d", "prelu", "permute_dims"], {**KERNEL, "slope": (4,)})


def test_residual_and_concat(apply):
    def body(emit, x, w):
        y = conv(emit, x, w)
        z = emit(op.concat([y, emit(op.add(y, conv(emit, y, w)))], 1))
        return emit(op.max(z, [1], True))

    expected = ["permute_dims", "conv2d", "conv2d", "add", "concat", "max", "reshape"]
    check(apply, body, expected)


def test_squeeze_and_excite_permutes_nothing(apply):
    def body(emit, x, w, v):
        y = conv(emit, x, w)
        gate = emit(op.sigmoid(emit(op.nn.conv2d(emit(op.mean(y, [2, 3], True)), v))))
        return emit(op.multiply(y, gate))

    expected = ["permute_dims", "conv2d", "mean", "conv2d", "sigmoid", "multiply", "permute_dims"]
    check(apply, body, expected, {**KERNEL, "v": (4, 4, 1, 1)})


def test_global_pooling_then_dense_is_a_reshape(apply):
    def body(emit, x, w, d):
        y = emit(op.nn.avg_pool2d(conv(emit, x, w), (6, 8)))
        return emit(op.matmul(emit(op.reshape(y, (1, 4))), d))

    expected = ["permute_dims", "conv2d", "avg_pool2d", "reshape", "matmul"]
    check(apply, body, expected, {**KERNEL, "d": (4, 5)})


def test_mean_without_axes_kept(apply):
    def body(emit, x, w, d):
        return emit(op.matmul(emit(op.mean(conv(emit, x, w), [2, 3])), d))

    check(apply, body, ["permute_dims", "conv2d", "mean", "matmul"], {**KERNEL, "d": (4, 5)})


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(apply, axis, keepdims):
    check(apply, lambda emit, x, w: emit(op.exp(emit(op.sum(conv(emit, x, w), [axis], keepdims)))))


def test_flatten_permutes_once(apply):
    def body(emit, x, w, d):
        y = emit(op.nn.relu(conv(emit, x, w)))
        return emit(op.matmul(emit(op.reshape(y, (1, 192))), d))

    expected = ["permute_dims", "conv2d", "relu", "permute_dims", "reshape", "matmul"]
    check(apply, body, expected, {**KERNEL, "d": (192, 5)})


def test_channel_shuffle(apply):
    def body(emit, x, w):
        y = emit(op.reshape(conv(emit, x, w), (1, 2, 2, 6, 8)))
        y = emit(op.reshape(emit(op.permute_dims(y, [0, 2, 1, 3, 4])), IMAGE))
        return emit(op.mean(conv(emit, y, w), [2, 3]))

    check(apply, body, ["permute_dims", "conv2d", "reshape", "permute_dims", "reshape", "conv2d", "mean"])


def test_patches_to_tokens(apply):
    """Vision transformers: an image of embedded patches becomes a sequence; that is free."""

    def body(emit, x, w, d):
        y = emit(op.reshape(emit(op.nn.conv2d(x, w, strides=2)), (1, 5, 12)))
        return emit(op.matmul(emit(op.permute_dims(y, [0, 2, 1])), d))

    weights = {"w": (5, 4, 2, 2), "d": (5, 7)}
    check(apply, body, ["permute_dims", "conv2d", "reshape", "matmul"], weights)


def test_detection_heads(apply):
    """Images of several scales flattened and joined, then split by channel."""

    def body(emit, x, w):
        large = conv(emit, x, w)
        small = conv(emit, emit(op.nn.max_pool2d(large, 2, 2)), w)
        flat = [emit(op.reshape(large, (1, 4, 48))), emit(op.reshape(small, (1, 4, 12)))]
        joined = emit(op.concat(flat, 2))
        boxes = emit(op.strided_slice(joined, [1], [0], [3]))
        return emit(op.sigmoid(boxes))

    expected = ["permute_dims", "conv2d", "max_pool2d", "conv2d", "reshape", "reshape", "concat", "strided_slice"]
    check(apply, body, [*expected, "sigmoid", "permute_dims"])


def test_input_that_comes_channels_last(apply):
    def body(emit, x, w):
        return emit(op.mean(conv(emit, emit(op.permute_dims(x, [0, 3, 1, 2])), w), [2, 3]))

    check(apply, body, ["conv2d", "mean"], inputs={"x": (1, 6, 8, 4)})


def test_pixels_that_are_rows_between_convolutions(apply):
    """A dense layer on pixels, weighed by channel and added to the image: nothing moves."""

    def body(emit, x, w, d, s):
        image = conv(emit, x, w)
        rows = emit(op.matmul(emit(op.permute_dims(image, [0, 2, 3, 1])), d))
        scaled = emit(op.multiply(s, emit(op.permute_dims(rows, [0, 3, 1, 2]))))
        return emit(op.mean(conv(emit, emit(op.add(scaled, image)), w), [2, 3]))

    expected = ["permute_dims", "conv2d", "matmul", "multiply", "add", "conv2d", "mean"]
    check(apply, body, expected, KERNEL | {"d": (4, 4), "s": (4, 1, 1)})


def test_result_that_is_permuted_to_channels_last(apply):
    def body(emit, x, w):
        return emit(op.permute_dims(conv(emit, x, w), [0, 2, 3, 1]))

    check(apply, body, ["permute_dims", "conv2d"])


def test_no_rows_of_one_column(apply):
    def body(emit, x, w):
        return emit(op.strided_slice(conv(emit, x, w), [2], [8], [8]))

    after = apply(ToNHWC(), network({"x": (1, 1, 8, 1)}, {"w": (1, 1, 3, 3)}, body))
    assert shape(after["main"].body.body) == (1, 1, 0, 1)


def test_gray_image_is_not_permuted(apply):
    check(apply, lambda emit, x, w: conv(emit, x, w), ["reshape", "conv2d", "permute_dims"], {"w": (4, 1, 3, 3)},
          {"x": (1, 1, 6, 8)})  # fmt: skip


def test_unknown_operator_gets_its_layout_back_once(apply):
    def body(emit, x, w):
        y = conv(emit, x, w)
        a = emit(op.cumsum(y, 2))
        b = emit(op.cumsum(y, 3))
        return emit(op.add(a, b))

    check(apply, body, ["permute_dims", "conv2d", "permute_dims", "cumsum", "cumsum", "add"])


def test_large_operand_is_not_permuted_for_a_small_one(apply):
    def body(emit, x, y, w):
        gate = emit(op.nn.conv2d(emit(op.mean(x, [2, 3], True)), w))
        return emit(op.multiply(y, gate))

    check(apply, body, ["mean", "reshape", "conv2d", "reshape", "multiply"], {"w": (4, 4, 1, 1)},
          {"x": IMAGE, "y": IMAGE})  # fmt: skip


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_grouped_strided_dilated(apply, groups):
    def body(emit, x, w):
        return emit(op.nn.conv2d(x, w, strides=(2, 1), padding=(0, 1, 2, 3), dilation=(1, 2), groups=groups))

    check(apply, body, ["permute_dims", "conv2d", "permute_dims"], {"w": (8, 4 // groups, 3, 2)})


CUT = ["strided_slice", "permute_dims"]


@pytest.mark.parametrize(
    ("size", "stride", "expected"),
    [
        (2, 2, ["permute_dims", "conv2d", "reshape", "permute_dims", "reshape", "permute_dims"]),
        (3, 2, ["permute_dims", *["conv2d"] * 4, "concat", "reshape", "permute_dims", "reshape", *CUT]),
        (5, 2, ["permute_dims", "conv2d", "reshape", "permute_dims", "reshape", *CUT]),
        (3, 1, ["permute_dims", "conv2d", "permute_dims"]),
    ],
)
def test_transposed_convolution(apply, size, stride, expected):
    def body(emit, x, w):
        return emit(op.nn.conv2d_transpose(x, w, strides=stride))

    check(apply, body, expected, {"w": (4, 16, size, size)})


def test_module_without_images_stays(apply):
    before = network({"x": (2, 3)}, {"w": (3, 4)}, lambda emit, x, w: op.nn.relu(emit(op.matmul(x, w))))
    assert tvm_ffi.structural_equal(apply(ToNHWC(), before), before)


def test_weights_computed_from_weights_stay_on_their_side(apply):
    def body(emit, x, w, s):
        scaled = emit(op.multiply(w, emit(op.reshape(s, (4, 1, 1, 1)))))
        return conv(emit, x, scaled)

    check(apply, body, ["permute_dims", "conv2d", "permute_dims"], {**KERNEL, "s": (4,)})
