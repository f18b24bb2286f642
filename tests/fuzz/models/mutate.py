"""Graphs that are mutated: ONNX's node tests with other extents, types, attributes and constants, and operators after them."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.conformance.cases import Case, cases
from tests.fuzz.models import values
from tests.fuzz.models.draw import extend
from tests.fuzz.models.graph import Graph, Tensor, is_safe

_ODD_INTEGERS = [0, 0, 1, 1, 2, 3, -1, -2, 5, 7, 100, 2**31 - 1, -(2**31), 2**63 - 1]
_ODD_WORDS = [
    "", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", "constant", "edge", "reflect", "wrap", "nearest", "linear", "cubic",
    "zeros", "border", "none", "add", "mul", "max", "min", "forward", "reverse", "bidirectional", "other",
]  # fmt: skip


def all_cases(kept: Path) -> tuple[Case, ...]:
    """ONNX's node tests. Making them takes 20 seconds: they are kept in a file."""
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(".part")
        part.write_bytes(pickle.dumps([vars(case) for case in cases()]))  # without the name of a class, which may move
        part.replace(kept)
    return tuple(Case(**fields) for fields in pickle.loads(kept.read_bytes()))


def mutate(rng: random.Random, case: Case) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A changed copy of a node test, and its inputs."""
    model = onnx.load_model_from_string(case.model)
    inputs = {name: np.asarray(value) for name, value in case.inputs.items()}
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        change = rng.choice([_extent, _extent, _extent, _attribute, _attribute, _constant, _type, _values, _turn, _leave_out])
        inputs = change(rng, model, inputs)
    for info in model.graph.output:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    for info in model.graph.input:
        if info.name in inputs and info.type.HasField("tensor_type"):
            _declare(info, inputs[info.name].shape)
    del model.graph.value_info[:]
    if rng.random() < 0.4:
        _extend(rng, model, inputs)
    return model, inputs


def _declare(info: onnx.ValueInfoProto, shape: tuple[int, ...]) -> None:
    tensor = info.type.tensor_type
    tensor.ClearField("shape")
    tensor.shape.SetInParent()
    for extent in shape:
        tensor.shape.dim.add().dim_value = extent


def _extend(rng: random.Random, model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> None:
    """Operators after the result."""
    opset = next((o.version for o in model.opset_import if o.domain == ""), None)
    if opset is None or not is_safe(model.graph):
        return
    try:
        found = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except (RuntimeError, ValueError, onnx.shape_inference.InferenceError):
        return
    graph = Graph(opset)
    ends = []
    for info in found.output:
        tensor = info.type.tensor_type
        if not info.type.HasField("tensor_type") or not all(d.HasField("dim_value") for d in tensor.shape.dim):
            return
        ends.append(Tensor(info.name, tensor.elem_type, tuple(d.dim_value for d in tensor.shape.dim)))
    extend(rng, graph, ends, rng.choice([1, 1, 2, 3]))
    names = {name: f"more_{name}" for name in (*graph.kinds, *(o for node in graph.nodes for o in node.output))}
    more = graph.model().graph
    for node in more.node:
        node.name = f"more_{node.name}"
        for field in (node.input, node.output):
            renamed = [names.get(name, name) for name in field]
            del field[:]
            field.extend(renamed)
    for item in (*more.input, *more.initializer, *more.output):
        item.name = names.get(item.name, item.name)
    inputs.update({names[name]: value for name, value in graph.inputs.items()})
    model.graph.node.extend(more.node)
    model.graph.input.extend(more.input)
    model.graph.initializer.extend(more.initializer)
    del model.graph.output[:]
    model.graph.output.extend(more.output)


def _extent(rng, model, inputs):
    """One extent, wherever it is found, becomes another."""
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    extents = sorted({e for array in (*inputs.values(), *weights.values()) for e in array.shape})
    if not extents:
        return inputs
    old, new = rng.choice(extents), values.extent(rng)
    everywhere = rng.random() < 0.8

    def changed(array: np.ndarray) -> np.ndarray:
        for axis, extent in enumerate(array.shape):
            if extent == old and (everywhere or rng.random() < 0.5):
                array = np.take(array, [i % max(old, 1) for i in range(new if old else 0)], axis)
        return array

    also_numbers = rng.random() < 0.5
    for tensor in model.graph.initializer:
        array = changed(weights[tensor.name])
        if also_numbers and array.dtype == np.int64 and array.ndim == 1:
            array = np.where(array == old, new, array)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return {name: changed(array) for name, array in inputs.items()}


def _attribute(rng, model, inputs):
    given = [a for node in model.graph.node for a in node.attribute]
    if not given:
        return inputs
    attribute = rng.choice(given)
    kinds = onnx.AttributeProto
    if attribute.type == kinds.INT:
        attribute.i = rng.choice([*_ODD_INTEGERS, max(min(attribute.i, 2**62), -(2**62)) + rng.choice([1, -1])])
    elif attribute.type == kinds.INTS and attribute.ints:
        at = rng.randrange(len(attribute.ints))
        action = rng.randrange(6)
        if action == 0:
            del attribute.ints[at]
        elif action == 1:
            attribute.ints.append(rng.choice([0, 1, 2]))
        elif action == 2:
            rng.shuffle(shuffled := list(attribute.ints))
            attribute.ints[:] = shuffled
        else:
            attribute.ints[at] = rng.choice(_ODD_INTEGERS[:10] if action < 5 else _ODD_INTEGERS)
    elif attribute.type == kinds.FLOAT:
        attribute.f = rng.choice([0.0, 1.0, -1.0, 0.5, 1e-5, 1e30, float("inf"), float("nan"), -0.0])
    elif attribute.type == kinds.STRING:
        attribute.s = rng.choice(_ODD_WORDS).encode()
    return inputs


def _constant(rng, model, inputs):
    """A number of an initialiser of integers becomes another."""
    chosen = [t for t in model.graph.initializer if t.data_type in (TensorProto.INT64, TensorProto.INT32)]
    if not chosen:
        return _attribute(rng, model, inputs)
    tensor = rng.choice(chosen)
    array = numpy_helper.to_array(tensor).copy()
    if array.size:
        flat = array.reshape(-1)
        at = rng.randrange(array.size)
        bounds = np.iinfo(array.dtype)
        number = int(flat[at]) + rng.choice([1, -1]) if rng.random() < 0.5 else rng.choice(_ODD_INTEGERS)
        flat[at] = min(max(number, bounds.min), bounds.max)
    if rng.random() < 0.15 and array.ndim == 1:
        array = np.concatenate([array, array[:1]]) if rng.random() < 0.5 else array[:-1]
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return inputs


def _type(rng, model, inputs):
    """All floats, or all integers, become others."""
    floats = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
    integers = {TensorProto.INT64, TensorProto.INT32, TensorProto.UINT8, TensorProto.INT8, TensorProto.INT16, TensorProto.UINT32}
    group = rng.choice([floats, floats, integers])
    new = rng.choice(sorted(group))
    numpy_type = helper.tensor_dtype_to_np_dtype(new)
    result = dict(inputs)
    with np.errstate(all="ignore"):
        for info in (*model.graph.input, *model.graph.output):
            if info.type.tensor_type.elem_type in group:
                info.type.tensor_type.elem_type = new
                if info.name in result:
                    result[info.name] = result[info.name].astype(numpy_type)
        for tensor in model.graph.initializer:
            if tensor.data_type in group and (group is floats or tensor.dims != [1]):
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(numpy_type), tensor.name))
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i in group:
                attribute.i = new
    return result


def _values(rng, model, inputs):
    if not inputs:
        return inputs
    name = rng.choice(sorted(inputs))
    kind = next(i.type.tensor_type.elem_type for i in model.graph.input if i.name == name)
    if kind == TensorProto.STRING or inputs[name].dtype.kind == "O" or kind == 0:
        return inputs
    return inputs | {name: values.tensor(rng, kind, inputs[name].shape)}


def _turn(rng, model, inputs):
    """An input becomes an initialiser, or the other way round."""
    if inputs and rng.random() < 0.8:
        name = rng.choice(sorted(inputs))
        if inputs[name].dtype.kind == "O":
            return inputs
        kept = [i for i in model.graph.input if i.name != name]
        del model.graph.input[:]
        model.graph.input.extend(kept)
        model.graph.initializer.append(numpy_helper.from_array(inputs[name], name))
        return {n: v for n, v in inputs.items() if n != name}
    if model.graph.initializer:
        at = rng.randrange(len(model.graph.initializer))
        tensor = onnx.TensorProto.FromString(model.graph.initializer[at].SerializeToString())
        del model.graph.initializer[at]
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
        return inputs | {tensor.name: numpy_helper.to_array(tensor)}
    return inputs


def _leave_out(rng, model, inputs):
    """An input of a node is left out, or an attribute."""
    node = rng.choice(list(model.graph.node))
    if rng.random() < 0.5 and node.attribute:
        del node.attribute[rng.randrange(len(node.attribute))]
    elif len(node.input) > 1:
        at = rng.randrange(1, len(node.input))
        if at == len(node.input) - 1:
            del node.input[at]
        else:
            node.input[at] = ""
    return inputs
