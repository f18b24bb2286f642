"""Whether results differ by rounding alone, which later operators may enlarge."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.fuzz.models import oracle
from tests.fuzz.models.facts import EPSILONS, element_types, inferred_graph, known_shapes, values_of
from tests.fuzz.models.oracle import Outputs, Truth
from tests.fuzz.models.values import narrow

_PICKS = ("ArgMax", "ArgMin", "TopK")
# Operators that add up products: their errors are as large as those of the largest sum, also where terms cancel.
_SUMS = ("Conv", "ConvTranspose", "DFT", "Einsum", "Gemm", "MatMul", "ReduceMean", "ReduceSum", "STFT")
_TYPES = ("to", "dtype", "output_dtype", "softmax_precision")  # attributes
_WINDOWS = ("BlackmanWindow", "HammingWindow", "HannWindow")


def picks_among_equals(model: onnx.ModelProto, inputs: Outputs, truth: Truth, outputs: Outputs) -> bool:
    """Whether results that differ are picks by ArgMax, ArgMin or TopK, of numbers that are equal but for a few last bits."""
    makers = {name: node for node in model.graph.node for name in node.output}
    kinds = element_types(inferred_graph(model) or model.graph)
    for name, want in truth.outputs.items():
        got = np.asarray(outputs[name])
        if not oracle.difference({name: want}, {name: got}):
            continue
        node = makers.get(name)
        if node is None or node.op_type not in _PICKS or node.input[0] not in makers or want.shape != got.shape:
            return False
        numbers = values_of(model, inputs, [node.input[0]]).get(node.input[0], np.array(np.nan)).astype("f8")
        largest = np.abs(numbers).max(initial=0.0)
        if not np.isfinite(largest) or kinds.get(node.input[0]) not in EPSILONS:
            return False
        if name != node.output[0] or node.op_type != "TopK":  # places
            given = {a.name: a.i for a in node.attribute}
            axis = given.get("axis", -1 if node.op_type == "TopK" else 0)
            if got.min() < 0 or got.max() >= numbers.shape[axis]:
                return False
            if want.ndim < numbers.ndim:
                want, got = np.expand_dims(want, axis), np.expand_dims(got, axis)
            want, got = (np.take_along_axis(numbers, places, axis) for places in (want, got))
        if (np.abs(want.astype("f8") - got.astype("f8")) > 4 * EPSILONS[kinds[node.input[0]]] * largest).any():
            return False
    return True


def cuts_windows(model: onnx.ModelProto, truth: Truth, outputs: Outputs) -> bool:
    """Whether the graph is a window of integers, and its results differ by one at most."""
    if [node.op_type in _WINDOWS for node in model.graph.node] != [True]:
        return False
    (name,) = truth.outputs
    want, got = truth.outputs[name], np.asarray(outputs[name])
    return want.dtype.kind in "iu" and want.shape == got.shape and bool((np.abs(want.astype("i8") - got.astype("i8")) <= 1).all())


def agrees_when_wide(model: onnx.ModelProto, inputs: Outputs, truth: Truth, outputs: Outputs) -> bool:
    """Whether a graph of 16-bit floats has our results when it is computed in float32, as which we compute them."""
    asked = {a.i for node in model.graph.node for a in node.attribute if a.name in _TYPES}
    if not asked.union(element_types(model.graph).values()) & {TensorProto.FLOAT16, TensorProto.BFLOAT16}:
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
            if attribute.name in _TYPES and attribute.i in halves:
                attribute.i = TensorProto.FLOAT
    given = {n: v.astype("f4") if v.dtype == np.float16 or narrow(v) else v for n, v in inputs.items()}
    return model, given


def is_sensitive(model: onnx.ModelProto, inputs: Outputs, truth: Truth, outputs: Outputs) -> bool:
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
    graph = inferred_graph(model)
    if graph is None or not any(o.domain == "" and o.version >= 7 for o in model.opset_import):
        return None
    kinds, shapes, rng = element_types(graph), known_shapes(graph), np.random.default_rng(seed)
    low, high = {0: (2.0, 2.0), 1: (-2.0, -2.0)}.get(seed, (-2.0, 2.0))
    changed, given = onnx.ModelProto.FromString(model.SerializeToString()), dict(inputs)
    kept = {output.name for output in changed.graph.output}
    sums = values_of(model, inputs, [node.output[0] for node in graph.node if node.op_type in _SUMS])
    nodes = []
    for node in list(changed.graph.node):
        extra = []
        for i, name in enumerate(node.output):
            if kinds.get(name) in EPSILONS and node.op_type not in ("Constant", "ConstantOfShape"):
                epsilon, numpy_type = EPSILONS[kinds[name]], helper.tensor_dtype_to_np_dtype(kinds[name])
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
