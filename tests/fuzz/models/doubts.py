"""Differences that are no defects: what ONNX leaves open, what oracles do wrong, and rounding (`rounding.py`).

Each exemption is as narrow as it can be told from the graph, its values and its results.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.fuzz.models import oracle
from tests.fuzz.models.facts import EPSILONS, element_types, inferred_graph, values_of
from tests.fuzz.models.oracle import Outputs, Truth
from tests.fuzz.models.rounding import agrees_when_wide, cuts_windows, is_sensitive, picks_among_equals

# Wrong in ONNX's reference: windows that lie in padding, transposed convolutions of three axes with an output shape, sequences of
# length 0 that are reversed, axes that Unsqueeze counts from the end, LRN of more channels than pictures, and norms with p = 1,
# of numbers with their signs.
_ONLY_BY_ONNXRUNTIME = ("MaxPool", "AveragePool", "LpPool", "ConvTranspose", "ReverseSequence", "Unsqueeze",
                        "LRN", "LpNormalization")  # fmt: skip
_RECURRENT = ("GRU", "LSTM", "RNN")
# What ONNX's reference of recurrent layers does not read.
_UNREAD = ("activation_alpha", "activation_beta", "activations", "clip", "input_forget", "linear_before_reset")
# Operators by which oracles compute 64-bit integers as float64.
_THROUGH_FLOATS = ("Einsum", "Gemm", "Mean", "Mod", "Pow", "Range", "Resize", "Shrink", "Clip", "ReduceMean", "ReduceL1",
                   "ReduceL2", "ReduceLogSum", "ReduceLogSumExp")  # fmt: skip
_LARGEST = ("ArgMax", "ArgMin", "GlobalMaxPool", "MaxPool")
_OF_INTEGERS = ("Pow", "ReduceLogSum", "ReduceLogSumExp")
_TO_INTEGERS = ("Cast", "CastLike", "OneHot", "QuantizeLinear", "Shrink", *_OF_INTEGERS)
_EXACT = 2**53  # the largest integers that float64 holds


def doubt(model: onnx.ModelProto, inputs: Outputs, truth: Truth, outputs: Outputs) -> str:
    """Why results that differ from `truth` may be right; empty if nothing tells."""
    if _is_longer(model, truth, outputs):
        return "of NonMaxSuppression, whose result has as many rows as there can be"
    opset = max((o.version for o in model.opset_import if o.domain == ""), default=1)
    if opset < 10 and any(node.op_type == "Dropout" and len(node.output) > 1 for node in model.graph.node):
        return "of the mask of a Dropout, which ONNX leaves open before opset 10"
    if truth.by == "reference" and any(_departs(node, model, inputs) for node in model.graph.node):
        return "of ONNX's reference alone, which departs"
    if _as_inferred(model, truth, outputs):
        return f"we have the types of ONNX's inference, {truth.by} has others"
    if _converts_no_number(model, inputs):
        return "of a float that is converted to integers which do not hold it"
    if _overflows(model, truth, outputs):
        return "of integers that float64 does not hold, as which oracles take them"
    differing = _makers(model, truth, outputs)
    if differing and all(any(_ranks_no_number(node, model, inputs) for node in nodes) for nodes in differing):
        return "of a largest number among some that are none, which is as comparisons are ordered"
    if any(_quantises_zeros(node, model, inputs) for node in model.graph.node):
        return "of zeros that are quantised by their own range, whose scale is 0 by ONNX's definition and 1 in ONNX Runtime"
    if any(_quantises_no_range(node, model, inputs) for node in model.graph.node):
        return "of numbers that are quantised by their own range, which is infinite or none"
    means = [node.input[0] for node in model.graph.node if node.op_type == "ReduceMean"]
    if any(not value.size for value in values_of(model, inputs, means).values()):
        return "of a mean of no numbers, which ONNX leaves open"
    if any(_squares_beyond(node, model, inputs) for node in model.graph.node):
        return "of squares of integers whose sum is none"
    if differing and all(any(_skips_no_number(node, model, inputs) for node in nodes) for nodes in differing):
        return "of an interpolation with weight 0 of no number, whose product is none and which we leave out"
    if any(_has_infinite_weights(node, model, inputs) for node in model.graph.node):
        return "of a recurrence that begins with 0 times infinity, which libraries of matrix products may leave out"
    if picks_among_equals(model, inputs, truth, outputs):
        return "of the place of the largest number among some that are equal but for rounding"
    if cuts_windows(model, truth, outputs):
        return "of windows as integers: the last bit of 1 decides"
    if truth.by == "onnxruntime":
        other = oracle.by_reference(model, inputs)
        if other is not None and other.keys() == outputs.keys() and not oracle.difference(other, outputs):
            return "ONNX's reference agrees with us, ONNX Runtime does not"
    if agrees_when_wide(model, inputs, truth, outputs):
        return "the graph in float32 agrees with us"
    if is_sensitive(model, inputs, truth, outputs):
        return "small changes of the values change that much"
    return ""


def _is_longer(model: onnx.ModelProto, truth: Truth, outputs: Outputs) -> bool:
    """Whether results of NonMaxSuppression have rows of -1 after those of the oracle. Results of its results may differ."""
    made = [node.output[0] for node in model.graph.node if node.op_type == "NonMaxSuppression"]
    for name in made:
        if name in outputs:
            want, got = truth.outputs[name], np.asarray(outputs[name])
            rows = len(want)
            if got.shape[1:] != want.shape[1:] or (got[:rows] != want).any() or (got[rows:] != -1).any():
                return False
    return bool(made)


def _departs(node: onnx.NodeProto, model: onnx.ModelProto, inputs: Outputs) -> bool:
    """Whether ONNX's reference may be wrong.

    Of a mask of Attention with one column, which ONNX broadcasts, it fills the other columns with -inf. It mixes the
    image's statistics into the ones that BatchNormalization is given, in opsets whose operator has no mode of training. It
    clamps cubic samples next to a border as linear ones.
    """
    if node.op_type == "GridSample":
        named = {a.name: a.s for a in node.attribute}
        return named.get("mode") in (b"cubic", b"bicubic") and named.get("padding_mode") == b"border"
    if node.op_type == "BatchNormalization":
        return any(o.domain == "" and 9 <= o.version <= 13 for o in model.opset_import)
    if node.op_type == "Attention" and len(node.input) > 3:
        given = {t.name: tuple(t.dims) for t in model.graph.initializer} | {n: v.shape for n, v in inputs.items()}
        return given.get(node.input[3], (1,))[-1:] == (1,)
    if node.op_type in _RECURRENT:
        return any(a.name in _UNREAD for a in node.attribute) or (len(node.input) > 4 and bool(node.input[4]))
    one_pixel = any(a.s == b"pytorch_half_pixel" for a in node.attribute if a.name == "coordinate_transformation_mode")
    return node.op_type in _ONLY_BY_ONNXRUNTIME or one_pixel


def _makers(model: onnx.ModelProto, truth: Truth, outputs: Outputs) -> list[list[onnx.NodeProto]]:
    """For each output that differs, the nodes that it is computed by."""
    makers = {name: node for node in model.graph.node for name in node.output}
    found = []
    for name, want in truth.outputs.items():
        if oracle.difference({name: want}, {name: np.asarray(outputs[name])}):
            nodes, names = [], [name]
            while names:
                node = makers.get(names.pop())
                if node is not None and node not in nodes:
                    nodes.append(node)
                    names += node.input
            found.append(nodes)
    return found


def _ranks_no_number(node: onnx.NodeProto, model: onnx.ModelProto, inputs: Outputs) -> bool:
    if node.op_type not in _LARGEST or not node.input:
        return False
    return any(np.isnan(value.astype("f8")).any() for value in values_of(model, inputs, [node.input[0]]).values())


def _skips_no_number(node: onnx.NodeProto, model: onnx.ModelProto, inputs: Outputs) -> bool:
    """Whether the node interpolates among numbers that are not finite."""
    if node.op_type not in ("Resize", "Upsample") or not any(a.s in (b"linear", b"cubic") for a in node.attribute):
        return False
    return any(not np.isfinite(value.astype("f8")).all() for value in values_of(model, inputs, [node.input[0]]).values())


def _quantises_zeros(node: onnx.NodeProto, model: onnx.ModelProto, inputs: Outputs) -> bool:
    if node.op_type != "DynamicQuantizeLinear":
        return False
    return any(not value.any() for value in values_of(model, inputs, [node.input[0]]).values())


def _quantises_no_range(node: onnx.NodeProto, model: onnx.ModelProto, inputs: Outputs) -> bool:
    if node.op_type != "DynamicQuantizeLinear":
        return False
    return any(not np.isfinite(value).all() for value in values_of(model, inputs, [node.input[0]]).values())


def _squares_beyond(node: onnx.NodeProto, model: onnx.ModelProto, inputs: Outputs) -> bool:
    """Whether a ReduceSumSquare may leave its type: ONNX Runtime clamps where NumPy and we wrap around."""
    if node.op_type != "ReduceSumSquare":
        return False
    found = [value for value in values_of(model, inputs, [node.input[0]]).values() if value.dtype.kind == "i"]
    return any((value.astype("f8") ** 2).sum() > np.iinfo(value.dtype).max for value in found)


def _has_infinite_weights(node: onnx.NodeProto, model: onnx.ModelProto, inputs: Outputs) -> bool:
    """Whether the node is a recurrence without an initial state whose R is not finite."""
    if node.op_type not in _RECURRENT or len(node.input) < 3 or any(node.input[5:6]):
        return False
    found = values_of(model, inputs, [node.input[2]])
    return any(not np.isfinite(value.astype("f8")).all() for value in found.values())


def _as_inferred(model: onnx.ModelProto, truth: Truth, outputs: Outputs) -> bool:
    """Whether results have other types than the oracle's, and those of ONNX's inference where that knows them."""
    ours = {name: (np.shape(outputs[name]), np.asarray(outputs[name]).dtype) for name in truth.outputs}
    if all(ours[name] == (want.shape, want.dtype) for name, want in truth.outputs.items()):
        return False
    graph = inferred_graph(model)
    if graph is None:
        return False
    for output in graph.output:
        tensor, (found, kind) = output.type.tensor_type, ours[output.name]
        if helper.tensor_dtype_to_np_dtype(tensor.elem_type) != kind:
            return False
        if not tensor.HasField("shape"):
            return truth.by == "reference"
        if len(tensor.shape.dim) != len(found):
            return False
        for dim, extent in zip(tensor.shape.dim, found, strict=True):
            if dim.HasField("dim_value") and dim.dim_value != extent:
                return False
    return True


def _converts_no_number(model: onnx.ModelProto, inputs: Outputs) -> bool:
    """Whether a node makes an integer of a float that its type does not hold: ONNX does not say which.

    Powers and logarithms of integers are such floats, too.
    """
    graph = inferred_graph(model)
    if graph is None:
        return False
    kinds = element_types(graph)
    asked = [node for node in graph.node if node.op_type in _TO_INTEGERS and _bounds(node, kinds)]
    found = values_of(model, inputs, [name for node in asked for name in node.input[:2] if name])
    for node in asked:
        given = [found[name].astype("f8") for name in node.input[:2] if name in found and found[name].dtype.kind in "fiuV"]
        if not given or (kinds.get(node.input[0]) not in EPSILONS and node.op_type not in _OF_INTEGERS):
            continue
        numbers, (low, high) = given[0], _bounds(node, kinds)
        with np.errstate(all="ignore"):
            if node.op_type == "Pow":
                numbers = np.power(numbers, given[1])
                numbers = np.where(numbers == np.floor(numbers), numbers, np.nan)
            if np.isnan(numbers).any() or (numbers <= low - 1).any() or (numbers >= high + 1).any():
                return True
    return False


def _bounds(node: onnx.NodeProto, kinds: dict[str, int]) -> tuple[float, float] | None:
    """The floats that a node's integers hold; None if its result is none. Of a quantisation all are held, but NaN."""
    if node.op_type == "OneHot":
        return -(2.0**31), 2.0**31
    kind = kinds.get(node.output[0], 0)
    if kind in (TensorProto.UNDEFINED, TensorProto.STRING):
        return None
    numpy_type = np.dtype(helper.tensor_dtype_to_np_dtype(kind))
    if node.op_type == "QuantizeLinear":
        return -np.inf, np.inf
    if numpy_type.kind not in "iu":
        return None
    if node.op_type in ("ReduceLogSum", "ReduceLogSumExp"):
        return 1.0, np.inf
    return float(np.iinfo(numpy_type).min), float(np.iinfo(numpy_type).max)


def _overflows(model: onnx.ModelProto, truth: Truth, outputs: Outputs) -> bool:
    """Whether results differ only in 64-bit integers beyond 2^53, of operators that oracles compute in float64."""
    if not any(node.op_type in _THROUGH_FLOATS for node in model.graph.node):
        return False
    for name, want in truth.outputs.items():
        got = np.asarray(outputs[name])
        if want.shape != got.shape:
            return False
        differ = ~oracle.agreement(want, got)
        if differ.any() and want.dtype.name not in ("int64", "uint64"):
            return False
        sizes = np.maximum(np.abs(want[differ].astype("f8")), np.abs(got[differ].astype("f8")))
        if (sizes < _EXACT).any():
            return False
    return True
