"""Large weights are no part of the ONNX model that is checked, simplified and imported.

These steps serialise the model and copy its weights again and again: half of the time of GPT-2's import, and several times its
weights in memory. The steps fold shapes and other small constants only, so inputs of the same type replace large weights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.external_data_helper import uses_external_data

from flexcomp.frontend.domains import all_nodes
from flexcomp.frontend.external_data import hold, read_external

_LEAST_ELEMENTS = 1 << 18
_TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_READ_AS_VALUES = ("GatherBlockQuantized", "MatMulNBits")
LEAST_NBYTES = 2 * _LEAST_ELEMENTS  # in a file: nothing large has fewer bytes


def copy_without_large(source: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[int, np.ndarray]]:
    """A copy of a model without raw data of large weights, and these data by the positions of initialisers."""
    model, raw = onnx.ModelProto(), {}
    _copy(source, model, "graph")
    if source.HasField("graph"):
        model.graph.SetInParent()
        _copy(source.graph, model.graph, "initializer")
    for position, tensor in enumerate(source.graph.initializer):
        copy = model.graph.initializer.add()
        if _is_large(tensor) and tensor.HasField("raw_data"):
            _copy(tensor, copy, "raw_data")
            raw[position] = np.frombuffer(tensor.raw_data, np.uint8)
        else:
            copy.CopyFrom(tensor)
    return model, raw


def set_aside(graph: onnx.GraphProto, raw: Mapping[int, np.ndarray], folder: str) -> dict[str, np.ndarray]:
    """Replace large initialisers by inputs at the end of the graph, and return their values.

    `raw`: data that the initialisers lack, by position. `folder`: of external data. Invalid tensors stay in place, whole, and
    scales of blocks, which definitions of operators read. Raises the errors of reading external data.
    """
    names = Counter(tensor.name for tensor in graph.initializer)
    names.update(name for node in all_nodes(graph) if node.op_type in _READ_AS_VALUES for name in node.input)
    listed = {info.name for info in graph.input}  # old files list initialisers as inputs as well
    large: dict[str, np.ndarray] = {}
    small = []
    for position, tensor in enumerate(graph.initializer):
        data = raw.get(position)
        array = None
        if tensor.name and names[tensor.name] == 1 and _is_large(tensor):
            if data is None and uses_external_data(tensor):
                data = read_external(tensor, folder)
            array = _array(tensor, data)
        if array is not None:
            large[tensor.name] = array
            if tensor.name not in listed:
                graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
            continue
        if data is not None:
            hold(tensor, data)
        small.append(tensor)
    del graph.initializer[:]
    graph.initializer.extend(small)
    return large


def names_read(graph: onnx.GraphProto) -> set[str]:
    """All names that nodes and outputs of a graph read, inner graphs included."""
    names = {output.name for output in graph.output}
    for node in graph.node:
        names.update(node.input)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                names |= names_read(inner)
    return names


def _is_large(tensor: onnx.TensorProto) -> bool:
    return tensor.data_type in _TYPES and min(tensor.dims, default=0) > 0 and math.prod(tensor.dims) >= _LEAST_ELEMENTS


def _array(tensor: onnx.TensorProto, data: np.ndarray | None) -> np.ndarray | None:
    """The value of a tensor, or None if its data do not fit its type."""
    if data is None:
        try:
            return numpy_helper.to_array(tensor)
        except (TypeError, ValueError):
            return None
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    return data.view(dtype).reshape(tensor.dims) if data.nbytes == math.prod(tensor.dims) * dtype.itemsize else None


def _copy(source, target, without: str) -> None:
    """All fields of a protobuf message but one."""
    for field, value in source.ListFields():
        if field.name == without:
            continue
        if hasattr(value, "extend"):
            getattr(target, field.name).extend(value)
        elif field.message_type is not None:
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)
