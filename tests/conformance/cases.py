"""ONNX's node tests, made from the installed onnx package."""

from __future__ import annotations

import functools
import re
import warnings
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tests.conformance.parameters import parameters_of

_TRAINING = ("ai.onnx.training", "ai.onnx.preview.training")
_EXPANDED = re.compile(r"_expanded(_ver\d+)?$")
_TYPE_NAMES = {number: name.lower() for name, number in TensorProto.DataType.items()}
_COUNTED = ("float", "double", "float16", "bfloat16", "bool", "int16", "int32", "int64", "uint16", "uint32", "uint64")


@dataclass(frozen=True)
class Case:
    """One node test: a model, its inputs, and the outputs that ONNX's specification gives."""

    name: str
    operator: str  # "Conv", or "ai.onnx.ml.Binarizer"; that of the test, also where the model is the function's body
    model: bytes  # parameters are initialisers
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]  # where the test is counted, or its types are narrow
    rtol: float
    atol: float
    type: str  # element type of the first input, or of the first output
    outside: str  # why it is not counted; empty if it is


@functools.cache
def cases() -> tuple[Case, ...]:
    """All of them, in the order of operators. The random ones are the same in every process."""
    # collecting is importing, and it must come after the seed: the tests draw their inputs while they are imported
    from onnx.backend.test.case.node import collect_testcases

    state = np.random.get_state()
    np.random.seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of divisions by zero that tests mean
        collected = {case.name: case for case in collect_testcases(None)}
    np.random.set_state(state)
    made = [_case(test, collected[_EXPANDED.sub("", name)]) for name, test in collected.items()]
    return tuple(sorted(made, key=lambda case: (case.operator.lower(), case.name)))


def _case(test, base) -> Case:
    """`base` is the test of the operator itself where `test` has the operator's function body in its place."""
    (node,) = base.model.graph.node
    types = _types(test.model.graph)
    outside = _outside(node.domain, types)
    model = onnx.ModelProto()
    model.CopyFrom(test.model)
    ((given, expected),) = test.data_sets
    tensors = zip(model.graph.input, given, strict=True)
    inputs = {i.name: _array(value) for i, value in tensors if i.type.HasField("tensor_type")}
    outputs = {}
    if not outside or outside.startswith("type"):
        outputs = {o.name: _array(value) for o, value in zip(model.graph.output, expected, strict=True)}
    opset = next((o.version for o in base.model.opset_import if o.domain == node.domain), 1)
    for name in sorted(inputs.keys() & parameters_of(node, opset)):
        model.graph.initializer.append(numpy_helper.from_array(inputs.pop(name), name))
    names = {tensor.name for tensor in model.graph.initializer}
    kept = [i for i in model.graph.input if i.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.ir_version = max(model.ir_version, 4)  # earlier ones list initialisers as inputs
    return Case(
        test.name, ".".join(filter(None, (node.domain, node.op_type))), model.SerializeToString(), inputs, outputs,
        test.rtol, test.atol, types[0] if types else "", outside,
    )  # fmt: skip


def _types(graph: onnx.GraphProto) -> list[str]:
    """Element types of inputs and outputs, the kind of what is no tensor."""
    return [
        _TYPE_NAMES[info.type.tensor_type.elem_type]
        if info.type.HasField("tensor_type")
        else info.type.WhichOneof("value").removesuffix("_type")
        for info in (*graph.input, *graph.output)
    ]


def _outside(domain: str, types: list[str]) -> str:
    if domain in _TRAINING:
        return "training"
    for kind in ("sequence", "optional", "map", "string"):
        if kind in types:
            return f"{kind}s"
    narrow = next((t for t in types if t not in _COUNTED), None)
    return f"type {narrow}" if narrow else ""


def _array(value) -> np.ndarray:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)
