"""Differences that are no defects: what ONNX leaves open, what oracles do wrong, and rounding that grows.

Each exemption is as narrow as it can be told from the graph, its values and its results.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.fuzz.models import oracle
from tests.fuzz.models.oracle import Outputs, Truth
from tests.fuzz.models.values import narrow

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
_WINDOWS = ("BlackmanWindow", "HammingWindow", "HannWindow")
_EXACT = 2**53  # the largest integers that float64 holds
# Operators that add up products: their errors are as large as those of the largest sum, also where terms cancel.
_SUMS = ("Conv", "ConvTranspose", "DFT", "Einsum", "Gemm", "MatMul", "ReduceMean", "ReduceSum", "STFT")
# What one more is in the last bit of 1.
_EPSILONS = {
    TensorProto.FLOAT: 2.0**-23, TensorProto.FLOAT16: 2.0**-10, TensorProto.BFLOAT16: 2.0**-7, TensorProto.DOUBLE: 2.0**-52,
}  # fmt: skip


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
    pooled = [node.input[0] for node in model.graph.node if node.op_type in _LARGEST and node.input]
    if any(np.isnan(value.astype("f8")).any() for value in _values(model, inputs, pooled).values()):
        return "of a largest number among some that are none, which is as comparisons are ordered"
    if any(_quantises_zeros(node, model, inputs) for node in model.graph.node):
        return "of zeros that are quantised by their own range, whose scale is 0 by ONNX's definition and 1 in ONNX Runtime"
    if any(_quantises_no_range(node, model, inputs) for node in model.graph.node):
        return "of numbers that are quantised by their own range, which is infinite or none"
    means = [node.input[0] for node in model.graph.node if node.op_type == "ReduceMean"]
    if any(not value.size for value in _values(model, inputs, means).values()):
        return "of a mean of no numbers, which ONNX leaves open"
    if any(_squares_beyond(node, model, inputs) for node in model.graph.node):
        return "of squares of 32-bit integers whose sum is none"
    if any(_has_infinite_weights(node, model, inputs) for node in model.graph.node):
        return "of a recurrence that begins with 0 times infinity, which libraries of matrix products may leave out"
    if _picks_among_equals(model, inputs, truth, outputs):
        return "of the place of the largest number among some that are equal but for rounding"
    if _cuts_windows(model, truth, outputs):
        return "of windows as integers: the last bit of 1 decides"
    if truth.by == "onnxruntime":
        other = oracle.by_reference(model, inputs)
        if other is not None and other.keys() == outputs.keys() and not oracle.difference(other, outputs):
            return "ONNX's reference agrees with us, ONNX Runtime does not"
    if _agrees_when_wide(model, inputs, truth, outputs):
        return "the graph in float32 agrees with us"
    if _is_sensitive(model, inputs, truth, outputs):
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


def _quantises_zeros(node: onnx.NodeProto, model: onnx.ModelProto, inputs: Outputs) -> bool:
    if node.op_type != "DynamicQuantizeLinear":
        return False
    return any(not value.any() for value in _values(model, inputs, [node.input[0]]).values())


def _quantises_no_range(node: onnx.NodeProto, model: onnx.ModelProto, inputs: Outputs) -> bool:
    if node.op_type != "DynamicQuantizeLinear":
        return False
    return any(not np.isfinite(value).all() for value in _values(model, inputs, [node.input[0]]).values())


def _squares_beyond(node: onnx.NodeProto, model: onnx.ModelProto, inputs: Outputs) -> bool:
    """Whether a ReduceSumSquare may leave its type: ONNX Runtime clamps where NumPy and we go on modulo 2^32."""
    if node.op_type != "ReduceSumSquare":
        return False
    found = _values(model, inputs, [node.input[0]]).values()
    return any(value.dtype == np.int32 and (value.astype("f8") ** 2).sum() > np.iinfo(np.int32).max for value in found)


def _picks_among_equals(model: onnx.ModelProto, inputs: Outputs, truth: Truth, outputs: Outputs) -> bool:
    """Whether results that differ are places by ArgMax or ArgMin, of computed numbers that are equal but for a few last bits."""
    makers = {name: node for node in model.graph.node for name in node.output}
    kinds = _types(_inferred(model) or model.graph)
    for name, want in truth.outputs.items():
        got = np.asarray(outputs[name])
        if not oracle.difference({name: want}, {name: got}):
            continue
        node = makers.get(name)
        if node is None or node.op_type not in ("ArgMax", "ArgMin") or node.input[0] not in makers or want.shape != got.shape:
            return False
        numbers = _values(model, inputs, [node.input[0]]).get(node.input[0], np.array(np.nan)).astype("f8")
        given = {a.name: a.i for a in node.attribute}
        axis, largest = given.get("axis", 0), np.abs(numbers).max()
        if not np.isfinite(largest) or kinds.get(node.input[0]) not in _EPSILONS:
            return False
        if got.min() < 0 or got.max() >= numbers.shape[axis]:
            return False
        if not given.get("keepdims", 1):
            want, got = np.expand_dims(want, axis), np.expand_dims(got, axis)
        off = np.take_along_axis(numbers, got, axis) - np.take_along_axis(numbers, want, axis)
        if (np.abs(off) > 4 * _EPSILONS[kinds[node.input[0]]] * largest).any():
            return False
    return True


def _cuts_windows(model: onnx.ModelProto, truth: Truth, outputs: Outputs) -> bool:
    """Whether the graph is a window of integers, and its results differ by one at most."""
    if [node.op_type in _WINDOWS for node in model.graph.node] != [True]:
        return False
    (name,) = truth.outputs
    want, got = truth.outputs[name], np.asarray(outputs[name])
    return want.dtype.kind in "iu" and want.shape == got.shape and bool((np.abs(want.astype("i8") - got.astype("i8")) <= 1).all())


def _has_infinite_weights(node: onnx.NodeProto, model: onnx.ModelProto, inputs: Outputs) -> bool:
    """Whether the node is a recurrence without an initial state whose R is not finite."""
    if node.op_type not in _RECURRENT or len(node.input) < 3 or any(node.input[5:6]):
        return False
    found = _values(model, inputs, [node.input[2]])
    return any(not np.isfinite(value.astype("f8")).all() for value in found.values())


def _as_inferred(model: onnx.ModelProto, truth: Truth, outputs: Outputs) -> bool:
    """Whether results have other types than the oracle's, and those of ONNX's inference where that knows them."""
    ours = {name: (np.shape(outputs[name]), np.asarray(outputs[name]).dtype) for name in truth.outputs}
    if all(ours[name] == (want.shape, want.dtype) for name, want in truth.outputs.items()):
        return False
    graph = _inferred(model)
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


def _inferred(model: onnx.ModelProto) -> onnx.GraphProto | None:
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except (RuntimeError, ValueError, onnx.shape_inference.InferenceError):
        return None


def _types(graph: onnx.GraphProto) -> dict[str, int]:
    found = {info.name: info.type.tensor_type.elem_type for info in (*graph.input, *graph.value_info, *graph.output)}
    return found | {tensor.name: tensor.data_type for tensor in graph.initializer}


def _shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """Shapes of the values whose extents are all known."""
    found = {}
    for info in (*graph.value_info, *graph.output):
        dims = info.type.tensor_type.shape.dim
        if info.type.tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
            found[info.name] = tuple(dim.dim_value for dim in dims)
    return found


def _converts_no_number(model: onnx.ModelProto, inputs: Outputs) -> bool:
    """Whether a node makes an integer of a float that its type does not hold: ONNX does not say which.

    Powers and logarithms of integers are such floats, too.
    """
    graph = _inferred(model)
    if graph is None:
        return False
    kinds = _types(graph)
    asked = [node for node in graph.node if node.op_type in _TO_INTEGERS and _bounds(node, kinds)]
    found = _values(model, inputs, [name for node in asked for name in node.input[:2] if name])
    for node in asked:
        given = [found[name].astype("f8") for name in node.input[:2] if name in found and found[name].dtype.kind in "fiuV"]
        if not given or (kinds.get(node.input[0]) not in _EPSILONS and node.op_type not in _OF_INTEGERS):
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


def _values(model: onnx.ModelProto, inputs: Outputs, names: list[str]) -> Outputs:
    """Values of tensors, as far as an oracle knows them."""
    weights = {t.name: t for t in model.graph.initializer}
    found = {name: inputs[name] for name in names if name in inputs}
    found |= {
        name: onnx.numpy_helper.to_array(weights[name]) for name in names if name in weights and name not in found
    }
    if missing := [name for name in names if name not in found]:
        asked = onnx.ModelProto.FromString(model.SerializeToString())
        del asked.graph.output[:]
        asked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in missing)
        found |= oracle.by_onnxruntime(asked.SerializeToString(), inputs) or oracle.by_reference(asked, inputs) or {}
    return found


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


def _agrees_when_wide(model: onnx.ModelProto, inputs: Outputs, truth: Truth, outputs: Outputs) -> bool:
    """Whether a graph of 16-bit floats has our results when it is computed in float32, as which we compute them."""
    if not ({TensorProto.FLOAT16, TensorProto.BFLOAT16} & set(_types(model.graph).values())):
        return False
    wide, given = _widened(model, inputs)
    found = oracle.by_onnxruntime(wide.SerializeToString(), given) or oracle.by_reference(wide, given)
    if found is None or found.keys() != truth.outputs.keys():
        return False
    with np.errstate(all="ignore"):
        rounded = {name: value.astype(truth.outputs[name].dtype) for name, value in found.items()}
    return not oracle.difference(rounded, outputs)


def _widened(model: onnx.ModelProto, inputs: Outputs) -> tuple[onnx.ModelProto, Outputs]:
    """With float32 for all floats of 16 bits."""
    halves = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    model = onnx.ModelProto.FromString(model.SerializeToString())

    def wide(tensor: TensorProto) -> None:
        if tensor.data_type in halves:
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype("f4"), tensor.name))

    for info in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if info.type.tensor_type.elem_type in halves:
            info.type.tensor_type.elem_type = TensorProto.FLOAT
    for tensor in model.graph.initializer:
        wide(tensor)
    for node in model.graph.node:
        for attribute in node.attribute:
            wide(attribute.t)
            if attribute.name in ("to", "dtype", "output_dtype") and attribute.i in halves:
                attribute.i = TensorProto.FLOAT
    given = {n: v.astype("f4") if v.dtype == np.float16 or narrow(v) else v for n, v in inputs.items()}
    return model, given


def _is_sensitive(model: onnx.ModelProto, inputs: Outputs, truth: Truth, outputs: Outputs) -> bool:
    """Whether values that differ in their last bits give results that differ as much as ours do, element by element.

    Inputs are moved, and results of nodes are, for a difference of equal numbers is 0 however the inputs move.
    """
    if any(np.shape(outputs[name]) != want.shape for name, want in truth.outputs.items()):
        return False
    tried = [(model, oracle.moved(inputs, by)) for by in (1e-6, -1e-6, 3e-6, -3e-6)]
    tried += [(model, oracle.scattered(inputs, 1e-6, seed)) for seed in range(8)]
    tried += [disturbed for seed in range(12) if (disturbed := _disturbed(model, inputs, seed)) is not None]
    spread = {}
    for changed, given in tried:
        again = oracle.by_onnxruntime(changed.SerializeToString(), given) if truth.by == "onnxruntime" else None
        again = again or oracle.by_reference(changed, given)
        if again is None:
            continue
        for name, value in again.items():
            want = truth.outputs[name]
            if value.shape != want.shape:
                return False
            with np.errstate(all="ignore"):
                off = np.abs(value.astype("f8") - want.astype("f8"))
            spread[name] = np.maximum(spread.get(name, 0), np.nan_to_num(off, nan=np.inf))
    for name, want in truth.outputs.items():
        if name not in spread:
            return False
        with np.errstate(all="ignore"):
            ours = np.abs(np.asarray(outputs[name]).astype("f8") - want.astype("f8"))
            if want.dtype.kind in "iub":  # a step more or less, and no multiple of it
                wrong = ours > spread[name]
            else:
                wrong = ours > 10 * spread[name] + 1e-3 * np.abs(want.astype("f8")) + 1e-6
            wrong &= ~(np.isnan(ours) & np.isinf(spread[name]))
            size = np.abs(want.astype("f8"))
            is_near_pole = (size > 1e3) & (spread[name] > size)
            wrong &= ~(is_near_pole & (np.abs(np.asarray(outputs[name]).astype("f8")) > size))
        if wrong.any():
            return False
    return True


def _disturbed(model: onnx.ModelProto, inputs: Outputs, seed: int) -> tuple[onnx.ModelProto, Outputs] | None:
    """With each float that a node makes moved by a last bit or two, of sums by four bits of the largest one; and its inputs.

    The movements are inputs of no known shape, lest a wrong shape of ONNX's or ONNX Runtime's inference refuses them. Of two
    seeds all are moved up, or all down. None where types are not known, or old opsets rule it out.
    """
    graph = _inferred(model)
    if graph is None or not any(o.domain == "" and o.version >= 7 for o in model.opset_import):
        return None
    kinds, shapes, rng = _types(graph), _shapes(graph), np.random.default_rng(seed)
    low, high = {0: (2.0, 2.0), 1: (-2.0, -2.0)}.get(seed, (-2.0, 2.0))
    changed, given = onnx.ModelProto.FromString(model.SerializeToString()), dict(inputs)
    kept = {output.name for output in changed.graph.output}
    sums = _values(model, inputs, [node.output[0] for node in graph.node if node.op_type in _SUMS])
    nodes = []
    for node in list(changed.graph.node):
        extra = []
        for i, name in enumerate(node.output):
            if kinds.get(name) in _EPSILONS and node.op_type not in ("Constant", "ConstantOfShape"):
                epsilon, numpy_type = _EPSILONS[kinds[name]], helper.tensor_dtype_to_np_dtype(kinds[name])
                bits = rng.uniform(low, high, sums[name].shape if name in sums else shapes.get(name, ()))
                steps = [("Mul", 1 + epsilon * np.where(bits < 0, np.floor(bits), np.ceil(bits)))]
                if name in sums:
                    largest = np.max(np.abs(sums[name].astype("f8")), initial=0.0, where=np.isfinite(sums[name].astype("f8")))
                    steps.append(("Add", epsilon * largest * rng.uniform(2 * low, 2 * high, sums[name].shape)))
                node.output[i] = f"{name}/0"
                for step, (kind, number) in enumerate(steps):
                    operand, last = f"{name}/by{step}", step == len(steps) - 1
                    changed.graph.input.append(helper.make_tensor_value_info(operand, kinds[name], None))
                    given[operand] = np.array(number).astype(numpy_type)
                    extra.append(helper.make_node(kind, [f"{name}/{step}", operand], [name if last else f"{name}/{step + 1}"]))
        nodes += [node, *extra]
    assert kept == {output.name for output in changed.graph.output}
    del changed.graph.node[:]
    changed.graph.node.extend(nodes)
    return changed, given
