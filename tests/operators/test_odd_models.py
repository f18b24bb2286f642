"""Small models that the fuzzer of models found: right next to ONNX Runtime, or refused by their node."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from flexcomp.errors import ModelError, UnsupportedModelError
from flexcomp.frontend import load_model
from tests.jointly import jointly

from .agreement import agree


def graph(nodes, inputs, outputs, weights=None, opset=20):
    """A model with inputs like these arrays; outputs are of any shape."""
    return helper.make_model(
        helper.make_graph(
            nodes, "odd",
            [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in inputs.items()],
            [helper.make_tensor_value_info(n, kind, None) for n, kind in outputs.items()],
            [numpy_helper.from_array(np.asarray(v), n) for n, v in (weights or {}).items()],
        ),
        opset_imports=[helper.make_opsetid("", opset)], ir_version=9,
    )  # fmt: skip


def node(kind, inputs, outputs, **attributes):
    return helper.make_node(kind, inputs.split(), outputs.split(), name=f"{kind}_node", **attributes)


def ramp(*shape, dtype="f4"):
    return (np.arange(np.prod(shape)).reshape(shape) - 2).astype(dtype)


FLOAT, UINT8 = TensorProto.FLOAT, TensorProto.UINT8
RIGHT = {
    "a split into one part": ([node("Split", "x", "y", num_outputs=1)], {"x": ramp(2, 3)}, {"y": FLOAT}, {}),
    "parts that are not equal": ([node("Split", "x", "y z", num_outputs=2)], {"x": ramp(5)}, {"y": FLOAT, "z": FLOAT}, {}),
    "a part without elements": (
        [node("Split", "x s", "y z", axis=-1)], {"x": ramp(2, 3)}, {"y": FLOAT, "z": FLOAT}, {"s": np.array([0, 3])},
    ),
    "the sign of what has none": ([node("Sign", "x", "y")], {"x": np.array([0, 1, 255], "u1")}, {"y": UINT8}, {}),
    "a division by a constant of 0": ([node("Div", "x z", "y")], {"x": ramp(5)}, {"y": FLOAT}, {"z": np.float32(0)}),
    "windows smaller than their strides": (
        [node("ConvTranspose", "x w", "y", auto_pad="SAME_UPPER", strides=[2, 2])], {"x": ramp(1, 1, 1, 3)}, {"y": FLOAT},
        {"w": ramp(1, 4, 1, 3)},
    ),
    "diagonals far outside": (
        [node("Trilu", "x k", "y"), helper.make_node("Trilu", ["x", "less"], ["z"], upper=0), node("Trilu", "x less", "t")],
        {"x": ramp(2, 3, 4)}, {"y": FLOAT, "z": FLOAT, "t": FLOAT}, {"k": np.int64(2**63 - 1), "less": np.int64(-(2**40))},
    ),
    "no updates": (
        [node("ScatterND", "x i u", "y")], {"x": ramp(2, 3), "i": np.zeros((0, 1), "int64"), "u": ramp(0, 3)}, {"y": FLOAT}, {},
    ),
    "a kernel of constants": (
        [node("Relu", "w", "r"), node("MaxPool", "r", "y i", kernel_shape=[3], auto_pad="SAME_UPPER"), node("Abs", "x", "z")],
        {"x": ramp(2)}, {"y": FLOAT, "i": TensorProto.INT64, "z": FLOAT}, {"w": ramp(1, 3, 8000)},
    ),
    "places that are fractions": (
        [node("OneHot", "x d v", "y")], {"x": np.array([0.3, 1.9, -0.5, 2.0], "f4")}, {"y": FLOAT},
        {"d": np.array(2, "f4"), "v": np.array([5.0, 7.0], "f4")},
    ),
    "windows of which none fits": (
        [node("MaxPool", "x", "y", ceil_mode=1, kernel_shape=[3, 3], strides=[2, 2])], {"x": ramp(2, 2, 1, 1)}, {"y": FLOAT}, {},
    ),
    "words without letters": (
        [node("Conv", "x w", "c", auto_pad="", pads=[1, 1, 1, 1]), node("ScatterElements", "c i u", "y", axis=2, reduction="")],
        {"x": ramp(1, 1, 4, 4)}, {"y": FLOAT},
        {"w": ramp(1, 1, 3, 3), "i": np.zeros((1, 1, 1, 4), "int64"), "u": ramp(1, 1, 1, 4)},
    ),
    "a unit that bends upwards": ([node("Celu", "x", "y", alpha=-1.5)], {"x": ramp(5)}, {"y": FLOAT}, {}),
    "a cap below zero": (
        [node("Attention", "x x x", "y", softcap=-1.0)], {"x": ramp(1, 2, 3, 4) / 8}, {"y": FLOAT}, {}, 23,
    ),
    "numbers that cannot shrink": (
        [node("Shrink", "u", "y", lambd=0.4, bias=0.5), node("Shrink", "x", "z", lambd=-1.0, bias=0.5)],
        {"u": np.array([0, 1, 2], "u4"), "x": ramp(5)}, {"y": TensorProto.UINT32, "z": FLOAT}, {},
    ),
    "a result that is known, and one that is read": (
        [node("MaxPool", "c", "p i", kernel_shape=[1], auto_pad="SAME_LOWER"), node("Cast", "p", "y", to=TensorProto.DOUBLE),
         node("Neg", "x", "z")],
        {"x": ramp(2)}, {"y": TensorProto.DOUBLE, "i": TensorProto.INT64, "z": FLOAT}, {"c": ramp(1, 2, 3)},
    ),
    "the mask of a dropout": (
        [node("Dropout", "x", "y m"), node("Not", "m", "z")], {"x": ramp(2, 3)}, {"y": FLOAT, "z": TensorProto.BOOL}, {},
    ),
    "pixels that are true or false": (
        [node("GridSample", "c g", "y", mode="nearest"), node("Cast", "x", "c", to=TensorProto.BOOL)][::-1],
        {"x": np.float32([[[[0, 1, 0], [2, 0, 3]]]])}, {"y": TensorProto.BOOL}, {"g": ramp(1, 2, 2, 2) / 2},
    ),
    "shifts by more bits than there are": (
        [node("BitShift", "x n", "y", direction="LEFT"), node("BitShift", "x n", "z", direction="RIGHT")],
        {"x": np.array([3], "u4"), "n": np.array([33], "u4")},  # one: vector units shift all bits out by themselves
        {"y": TensorProto.UINT32, "z": TensorProto.UINT32}, {},
    ),
    "classes in 32 bits": (
        [node("NegativeLogLikelihoodLoss", "x t", "y", reduction="none")], {"x": ramp(2, 3), "t": np.array([2, 0], "i4")},
        {"y": FLOAT}, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", RIGHT)
@jointly(kernels="fastest")
def test_an_odd_model_is_right(case):
    nodes, inputs, outputs, weights, *opset = RIGHT[case]
    yield from agree(graph(nodes, inputs, outputs, weights, *opset), **inputs)


BRANCH = helper.make_graph([node("Neg", "x", "n")], "branch", [], [helper.make_tensor_value_info("n", FLOAT, None)])
INNER = helper.make_graph(
    [node("LayerNormalization", "x s", "n", axis=2**63 - 1)], "branch", [], [helper.make_tensor_value_info("n", FLOAT, None)]
)
REFUSED = {
    "corners of one element": (
        [node("AffineGrid", "x size", "y", align_corners=1)], {"x": ramp(2, 2, 3)}, {"y": FLOAT},
        {"size": np.int64([2, 3, 1, 6])},
        r"node 'AffineGrid_node' \(AffineGrid\): align_corners is 1",
    ),
    "a constant of 8 bits": (
        [node("Cast", "w", "y", to=TensorProto.FLOAT8E4M3FN), node("Neg", "x", "z")], {"x": ramp(2)},
        {"y": TensorProto.FLOAT8E4M3FN, "z": FLOAT}, {"w": ramp(2)}, "'y' holds float8e4m3fn",
    ),
    "integer weights without windows": (
        [node("ConvInteger", "x w", "y", kernel_shape=[1])], {"x": ramp(4, 3, 1, dtype="i1")}, {"y": TensorProto.INT32},
        {"w": np.ones(1, "u1")},
        r"'ConvInteger_node' \(ConvInteger\): its inputs have 3 and 1 axes",
    ),
    "a window larger than an image": (
        [node("Conv", "x w", "y", kernel_shape=[7])], {"x": ramp(1, 1, 4)}, {"y": FLOAT}, {"w": ramp(1, 1, 7)},
        r"'Conv_node' \(Conv\): a result has \[1, 1, -2\] elements along its axes",
    ),
    "a flag that is neither": (
        [node("Mod", "x x", "y", fmod=7)], {"x": ramp(3)}, {"y": FLOAT}, {}, r"\(Mod\): its attribute fmod is 7: make it 0 or 1",
    ),
    "a period that is neither": (
        [node("HammingWindow", "n", "y", periodic=-1)], {}, {"y": FLOAT}, {"n": np.int64(5)},
        r"\(HammingWindow\): its attribute periodic",
    ),
    "axes that there are not": (
        [node("GatherND", "x i", "y", batch_dims=-(2**31))], {"x": ramp(2, 2)}, {"y": FLOAT}, {"i": np.zeros((2, 1), "int64")},
        r"\(GatherND\): its batch_dims is -2147483648",
    ),
    "a word that is none": (
        [node("MaxPool", "x", "y", kernel_shape=[2], auto_pad="other")], {"x": ramp(1, 1, 4)}, {"y": FLOAT}, {},
        r"\(MaxPool\): its auto_pad is 'other': make it one of NOTSET",
    ),
    "a word that is one of another operator": (
        [node("NegativeLogLikelihoodLoss", "x i", "y", reduction="add")], {"x": ramp(2, 3)}, {"y": FLOAT},
        {"i": np.array([0, 1])}, r"\(NegativeLogLikelihoodLoss\): its reduction is 'add': make it one of none, mean, sum",
    ),
    "a dropout of half of the elements": (
        [helper.make_node("Dropout", ["x", "", "t"], ["d"], "drop"), node("Neg", "d", "y")], {"x": ramp(3)}, {"y": FLOAT},
        {"t": np.bool_(True)}, r"'drop' \(Dropout\): in training mode its result is random",
    ),
    "an axis that is given twice": (
        [node("MeanVarianceNormalization", "x", "y", axes=[0, 0])], {"x": ramp(2, 2)}, {"y": FLOAT}, {},
        r"\(MeanVarianceNormalization\): In mean, the input axes is required to be non-repetitive",
    ),
    "two numbers of boxes": (
        [node("NonMaxSuppression", "x w m", "y")], {"x": ramp(1, 2, 4)}, {"y": TensorProto.INT64},
        {"w": ramp(1, 1, 2), "m": np.array([2, 3])}, "its max_output_boxes_per_class has 2 elements: give it one",
    ),
    "an axis of a running sum that there is not": (
        [node("CumSum", "x a", "y")], {"x": ramp(2, 2)}, {"y": FLOAT}, {"a": np.int64(2)},
        r"\(CumSum\): its axis is 2, and its input has 2 axes",
    ),
    "a part that is left out": (
        [helper.make_node("Concat", ["x", "", "x"], ["y"], "Concat_node", axis=0)], {"x": ramp(2)}, {"y": FLOAT}, {},
        r"'Concat_node' \(Concat\): its input 1, 'inputs', is left out",
    ),
    "boxes of an element type that ONNX has not for them": (
        [node("NonMaxSuppression", "x w m", "y")], {"x": ramp(1, 2, 4, dtype="f8")}, {"y": TensorProto.INT64},
        {"w": ramp(1, 1, 2, dtype="f8"), "m": np.array([2])},
        r"\(NonMaxSuppression\): its input 'boxes' holds double, which ONNX does not allow: give it tensor.float",
    ),
    "scores of other boxes": (
        [node("NonMaxSuppression", "x w m", "y")], {"x": ramp(3, 2, 4)}, {"y": TensorProto.INT64},
        {"w": ramp(3, 1, 4), "m": np.array([2])}, r"its boxes \[3, 2, 4\] do not fit its scores \[3, 1, 4\]",
    ),
    "a window larger than what is pooled": (
        [node("MaxPool", "x", "y", kernel_shape=[3, 1], strides=[2, 1])], {"x": ramp(5, 1, 2, 1)}, {"y": FLOAT}, {},
        r"\(MaxPool\): its window of 3 is larger than its padded input of 2, on axis 2",
    ),
    "pads of more elements than can be counted": (
        [node("AveragePool", "x", "y", kernel_shape=[3, 2**31 - 1], auto_pad="SAME_UPPER")], {"x": ramp(1, 1, 4, 4)},
        {"y": FLOAT}, {},
        r"\(AveragePool\): its padded input has axes of \[6, 2147483650\], with more elements than a kernel counts",
    ),
    "numbers that are drawn": (
        [node("RandomNormal", "", "r", shape=[3]), node("Add", "x r", "y")], {"x": ramp(3)}, {"y": FLOAT}, {},
        "RandomNormal .node 'RandomNormal_node'",
    ),
    "an update of a number": (
        [node("ScatterElements", "x i u", "y")], {"x": np.float32(3), "i": np.int64(0), "u": np.float32(4)}, {"y": FLOAT}, {},
        r"\(ScatterElements\): its input is a number",
    ),
    "more than there are": (
        [node("TopK", "x k", "y i")], {"x": ramp(2, 1)}, {"y": FLOAT}, {"k": np.array([2])},
        r"\(TopK\): (its k is 2|Axis has less than)",
    ),
    "a scale of nothing": (
        [node("QuantizeLinear", "x s", "y")], {"x": ramp(2, 2)}, {"y": UINT8}, {"s": np.float32(0)},
        r"\(QuantizeLinear\): its scale is 0",
    ),
    "a division by an attribute": (
        [node("Celu", "x", "y", alpha=0.0)], {"x": ramp(2)}, {"y": FLOAT}, {}, r"\(Celu\): its alpha is 0",
    ),
    "an axis that the input has not": (
        [node("LayerNormalization", "x s", "y", axis=5)], {"x": ramp(2, 2)}, {"y": FLOAT}, {"s": ramp(2)},
        r"\(LayerNormalization\): its axis is 5, and its input has 2 axes",
    ),
    "an axis beyond all": (
        [node("LayerNormalization", "x s", "y", axis=2**63 - 1)], {"x": ramp(2, 2)}, {"y": FLOAT}, {"s": ramp(2)},
        r"\(LayerNormalization\): its axis is 9223372036854775807",
    ),
    "more than can be counted": (
        [node("HannWindow", "n", "w"), node("Add", "x w", "y")], {"x": ramp(1)}, {"y": FLOAT}, {"n": np.int64(1_674_716_093)},
        r"'HannWindow_node/Range_16__1' \(Range\): it counts to 1,674,716,032",
    ),
    "the shape of more than there can be": (
        [node("Pad", "x p", "y"), node("Shape", "y", "t")], {"x": ramp(1, 1, 3)}, {"y": FLOAT, "t": TensorProto.INT64},
        {"p": np.array([0, 0, 0, 2**31 - 2, 2**31 - 2, 0])}, r"\(Pad\) has a tensor of 2147483647×2147483647×3",
    ),
    "parts that there are not": (
        [node("Split", "x", "y z", num_outputs=1)], {"x": ramp(2)}, {"y": FLOAT, "z": FLOAT}, {},
        r"\(Split\): its num_outputs is 1, and it has 2 outputs",
    ),
    "an axis beyond all, in a branch": (
        [helper.make_node("If", ["c"], ["y"], "If_node", then_branch=INNER, else_branch=INNER)],
        {"x": ramp(2, 2), "c": np.array([True])}, {"y": FLOAT}, {"s": ramp(2)},
        r"\(LayerNormalization\): its axis is 9223372036854775807",
    ),
    "a condition of two": (
        [helper.make_node("If", ["c"], ["y"], "If_node", then_branch=BRANCH, else_branch=BRANCH)], {"x": ramp(2)}, {"y": FLOAT},
        {"c": np.array([True, False])}, r"'If_node' \(If\): its condition has 2 elements",
    ),
    "zero points of which there are none": (
        [node("MatMulInteger", "x w z", "y")], {"x": ramp(4, 3, dtype="u1")}, {"y": TensorProto.INT32},
        {"w": np.ones((3, 2), "u1"), "z": np.zeros(0, "u1")}, r"'MatMulInteger_node' .*: it has 0 zero points for an axis of 4",
    ),
    "a loss without a word": (  # ONNX Runtime sums up, and the default is a mean
        [node("SoftmaxCrossEntropyLoss", "x l", "y", reduction="")], {"x": ramp(2, 3), "l": np.array([0, 1])}, {"y": FLOAT}, {},
        r"\(SoftmaxCrossEntropyLoss\): its reduction is ''",
    ),
    "many times nothing": (
        [node("Expand", "x s", "y")], {"x": ramp(1, 1, 1)}, {"y": FLOAT}, {"s": np.array([2**62, 0, 2**62])}, "Expand_node|'y'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_an_odd_model_is_refused_by_its_node(case):
    nodes, inputs, outputs, weights, message = REFUSED[case]
    with pytest.raises((ModelError, UnsupportedModelError), match=message):
        load_model(graph(nodes, inputs, outputs, weights))
