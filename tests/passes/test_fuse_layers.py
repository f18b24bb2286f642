import pytest
import tvm
from tvm import relax

from flexcomp.passes import FuseLayers
from flexcomp.passes.layers import read
from flexcomp.schedules.tiles.epilogue_names import describe

from .networks import calls, conv, network

op = relax.op
IMAGE = (1, 8, 8, 16)


def layer(mod: tvm.IRModule, index: int = 0):
    """The reading of the n-th layer function that main calls."""
    name = [name for name in calls(mod) if name.startswith("layer_")][index]
    func = mod[name]
    return read(func, tuple(int(i) for i in func.attrs["flexcomp.weights"]))


def test_conv_bias_residual_relu_become_one_layer():
    def body(emit, x, r, w, b):
        y = emit(conv(x, w, padding=(1, 1)))
        y = emit(op.add(y, emit(op.reshape(b, (1, 1, 1, 16)))))
        return op.nn.relu(emit(op.add(y, r)))

    before = network({"x": IMAGE, "r": IMAGE}, {"w": (16, 3, 3, 16), "b": (16,)}, body)
    text = before.script()
    after = FuseLayers()(before)
    assert before.script() == text, "the input module was changed"
    relax.analysis.well_formed(after)
    assert calls(after) == ["relax.reshape", "layer_conv2d"]
    reading = layer(after)
    assert reading.bias is not None and reading.spec.tensors == 1 and reading.spec.channel_vectors == 0
    assert reading.spec.epilogue == ("relu", ("add", ("acc",), ("tensor", 0)))
    assert reading.spec.padding == (1, 1, 1, 1)


def test_a_value_needed_elsewhere_ends_the_epilogue():
    def body(emit, x, w):
        y = emit(conv(x, w))
        z = emit(op.nn.relu(y))
        return op.concat([y, z], axis=3)

    after = FuseLayers()(network({"x": IMAGE}, {"w": (16, 1, 1, 16)}, body))
    assert calls(after) == ["layer_conv2d", "relax.nn.relu", "relax.concat"]


def test_a_value_read_twice_inside_the_epilogue_is_taken():
    def body(emit, x, w):
        y = emit(conv(x, w))
        return op.multiply(y, emit(op.sigmoid(y)))

    after = FuseLayers()(network({"x": IMAGE}, {"w": (16, 1, 1, 16)}, body))
    assert calls(after) == ["layer_conv2d"]
    assert layer(after).spec.epilogue == ("multiply", ("acc",), ("sigmoid", ("acc",)))


def test_the_later_of_two_anchors_takes_the_sum():
    def body(emit, x, w, v):
        return op.nn.relu(emit(op.add(emit(conv(x, w)), emit(conv(x, v)))))

    after = FuseLayers()(network({"x": IMAGE}, {"w": (16, 1, 1, 16), "v": (16, 1, 1, 16)}, body))
    assert [name.startswith("layer_conv2d") for name in calls(after)] == [True, True]
    assert describe(layer(after, 0).spec.epilogue) == ""
    assert describe(layer(after, 1).spec.epilogue) == "add+relu"


def test_an_output_of_the_network_stays():
    def body(emit, x, w):
        y = emit(conv(x, w))
        return relax.Tuple([y, emit(op.nn.relu(y))])

    builder = relax.BlockBuilder()
    x, w = (relax.Var(n, relax.TensorType(s, "float32")) for n, s in (("x", IMAGE), ("w", (16, 1, 1, 16))))
    with builder.function("main", [x, w], attrs={"num_input": 1}):
        with builder.dataflow():
            y = builder.emit_output(conv(x, w))
            z = builder.emit_output(op.nn.relu(y))
        builder.emit_func_output(relax.Tuple([y, z]))
    after = FuseLayers()(builder.get())
    assert calls(after) == ["layer_conv2d", "relax.nn.relu"]


@pytest.mark.parametrize("shape, taken", [((1, 1, 1, 16), True), ((16,), True), ((1,), True), ((8, 1), False)])
def test_only_per_channel_weights_join(shape, taken):
    def body(emit, x, w, s):
        return op.multiply(emit(op.nn.relu(emit(conv(x, w)))), s)

    after = FuseLayers()(network({"x": IMAGE}, {"w": (16, 1, 1, 16), "s": shape}, body))
    assert (calls(after) == ["layer_conv2d"]) == taken


def test_matrix_products():
    def body(emit, x, w, b):
        y = emit(op.add(emit(op.matmul(x, w)), b))
        scores = emit(op.matmul(y, emit(op.permute_dims(y, (0, 2, 1)))))
        return op.multiply(scores, relax.const(0.125))

    after = FuseLayers()(network({"x": (2, 5, 8)}, {"w": (8, 12), "b": (12,)}, body))
    assert calls(after) == ["layer_matmul", "relax.permute_dims", "layer_matmul1"]
    dense, product = layer(after, 0).spec, layer(after, 1).spec
    assert (dense.width, dense.in_channels, dense.out_channels) == (10, 8, 12)
    assert (product.batch, product.m, product.k, product.n) == (2, 5, 12, 5)
    assert product.epilogue == ("multiply", ("acc",), ("const", 0.125))


def test_other_layouts_and_types_are_left_alone():
    def body(emit, x, w):
        return op.nn.conv2d(x, w)

    before = network({"x": (1, 16, 8, 8)}, {"w": (16, 16, 1, 1)}, body)
    assert calls(FuseLayers()(before)) == ["relax.nn.conv2d"]


def test_a_reshape_that_keeps_the_channels_is_no_obstacle():
    def body(emit, x, r, w, b):
        y = emit(op.reshape(emit(op.matmul(emit(op.reshape(x, (10, 8))), w)), (2, 5, 12)))
        return op.add(r, emit(op.nn.relu(emit(op.add(y, b)))))

    after = FuseLayers()(network({"x": (2, 5, 8), "r": (2, 5, 12)}, {"w": (8, 12), "b": (12,)}, body))
    assert calls(after) == ["relax.reshape", "layer_matmul"]
    reading = layer(after)
    assert reading.bias is not None
    assert reading.spec.epilogue == ("add", ("tensor", 0), ("relu", ("acc",)))


def test_a_reshape_of_the_channels_ends_the_epilogue():
    def body(emit, x, w):
        return op.nn.relu(emit(op.reshape(emit(op.matmul(x, w)), (5, 3, 4))))

    after = FuseLayers()(network({"x": (5, 8)}, {"w": (8, 12)}, body))
    assert calls(after) == ["layer_matmul", "relax.reshape", "relax.nn.relu"]


def test_a_bias_that_is_not_the_only_reader_stays_in_the_epilogue():
    def body(emit, x, w, b):
        y = emit(op.matmul(x, w))
        return op.multiply(emit(op.add(y, b)), y)

    reading = layer(FuseLayers()(network({"x": (5, 8)}, {"w": (8, 12), "b": (12,)}, body)))
    assert reading.bias is None
    assert reading.spec.epilogue == ("multiply", ("add", ("acc",), ("channel", 0)), ("acc",))


def test_scaling_of_the_other_tensor_comes_along():
    def body(emit, x, r, w):
        other = emit(op.multiply(emit(op.add(r, relax.const(3.0, "float32"))), relax.const(0.5, "float32")))
        return op.round(emit(op.add(emit(conv(x, w)), other)))

    after = FuseLayers()(network({"x": IMAGE, "r": IMAGE}, {"w": (16, 1, 1, 16)}, body))
    assert calls(after) == ["layer_conv2d"]
    scaled = ("multiply", ("add", ("tensor", 0), ("const", 3.0)), ("const", 0.5))
    assert layer(after).spec.epilogue == ("round", ("add", ("acc",), scaled))


def test_scaling_that_others_read_stays():
    def body(emit, x, r, w):
        other = emit(op.multiply(r, relax.const(0.5, "float32")))
        return op.concat([emit(op.add(emit(conv(x, w)), other)), other], axis=3)

    after = FuseLayers()(network({"x": IMAGE, "r": IMAGE}, {"w": (16, 1, 1, 16)}, body))
    assert calls(after) == ["relax.multiply", "layer_conv2d", "relax.concat"]


@pytest.mark.parametrize(
    ("low", "high", "known"),
    [(0, 255, 0), (-117, 138, -117), (-128, 127, -128), (-1, 255, None), (1, 256, None), (-300, -45, None), (-9.5, 9, None)],
)
def test_layers_know_that_their_input_holds_integers(low, high, known):
    """Of which 8 bits have all, and 0: whatever moved them since they were rounded. Only narrow weights are told."""

    def body(emit, x, w):
        y = emit(op.clip(emit(op.round(x)), low, high))
        return conv(emit(op.nn.max_pool2d(y, (2, 2), layout="NHWC")), w)

    for kept, told in (("int8", True), ("float32", False)):
        after = FuseLayers(lambda names, weight, kept=kept: kept)(network({"x": IMAGE}, {"w": (16, 1, 1, 16)}, body))
        (func,) = (func for gv, func in after.functions_items() if gv.name_hint.startswith("layer_"))
        assert func.attrs.get("flexcomp.integers") == known
        assert layer(after).spec.integers == (told and known is not None)


def test_numbers_that_are_not_rounded_are_no_integers():
    def body(emit, x, w):
        return conv(emit(op.clip(x, 0, 255)), w)

    after = FuseLayers(lambda names, weight: "int8")(network({"x": IMAGE}, {"w": (16, 1, 1, 16)}, body))
    assert not layer(after).spec.integers
