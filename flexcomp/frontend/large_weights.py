"""Large weights are no part of the ONNX model that is checked, simplified and imported.

These steps serialise the model and copy its weights again and again: half of the time of GPT-2's import, and several times its
weights in memory. The steps fold shapes and other small constants only, so inputs of the same type replace large weights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.external_data_helper import uses_external_data

from flexcomp.deferred import Array, Deferred, held
from flexcomp.frontend.domains import all_nodes
from flexcomp.frontend.external_data import ExternalFiles, hold
from flexcomp.frontend.quantised.four_bits import WIDENED, widened

_LEAST_ELEMENTS = 1 << 18
_LEAST_IN_BLOCKS = 1 << 12  # of which a decoder has hundreds
_TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
_INTEGERS = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
# Operators whose weights have a scale for each block, and the inputs that hold integers, scales and zero points.
_IN_BLOCKS = {"DequantizeLinear": (0, 1, 2), "GatherBlockQuantized": (0, 2, 3), "MatMulNBits": (1, 2, 3)}
LEAST_NBYTES = _LEAST_ELEMENTS // 2  # in a file: what has fewer bytes may well be copied once


def copy_without_large(source: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[int, np.ndarray]]:
    """A copy of a model without raw data of large weights, and these data by the positions of initialisers."""
    model, raw, large = onnx.ModelProto(), {}, _Large(source.graph)
    _copy(source, model, "graph")
    if source.HasField("graph"):
        model.graph.SetInParent()
        _copy(source.graph, model.graph, "initializer")
    for position, tensor in enumerate(source.graph.initializer):
        copy = model.graph.initializer.add()
        if tensor in large and tensor.HasField("raw_data"):
            _copy(tensor, copy, "raw_data")
            raw[position] = np.frombuffer(tensor.raw_data, np.uint8)
        else:
            copy.CopyFrom(tensor)
    return model, raw


def set_aside(graph: onnx.GraphProto, raw: Mapping[int, Array], files: ExternalFiles) -> dict[str, Array]:
    """Replace large initialisers by inputs at the end of the graph, and return their values, which are not read yet.

    `raw`: data that the initialisers lack, by position. `files`: of external data. Invalid tensors stay in place, whole.
    Weights in blocks of 4 bits that are only dequantised become ones of 8. Raises the errors of reading external data.
    """
    names = Counter(tensor.name for tensor in graph.initializer)
    found = _Large(graph)
    listed = {info.name for info in graph.input}  # old files list initialisers as inputs as well
    large: dict[str, Array] = {}
    small = []
    for position, tensor in enumerate(graph.initializer):
        data = raw.get(position)
        array = None
        if tensor.name and names[tensor.name] == 1 and tensor in found:
            if data is None and uses_external_data(tensor):
                data = files.bytes(tensor)
            array = _array(tensor, data)
        if array is not None:
            large[tensor.name] = array if isinstance(array, Deferred) else held(array)
            if tensor.name not in listed:
                graph.input.append(_input(tensor.name, array))
            continue
        if data is not None:
            hold(tensor, data)
        small.append(tensor)
    del graph.initializer[:]
    graph.initializer.extend(small)
    return large


def set_aside_since(graph: onnx.GraphProto, begin: int, deferred: Mapping[str, Deferred], large: dict[str, Array]) -> None:
    """The same for `deferred` constants and initialisers from position `begin` on, made by a definition; they join `large`."""
    large.update(deferred)
    graph.input.extend(_input(name, array) for name, array in deferred.items())
    made = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in graph.initializer[begin:]]
    for tensor in made:
        if math.prod(tensor.dims) >= _LEAST_IN_BLOCKS and tensor.data_type in (*_TYPES, *_INTEGERS):
            large[tensor.name] = numpy_helper.to_array(tensor)
            graph.input.append(_input(tensor.name, large[tensor.name]))
    del graph.initializer[begin:]
    graph.initializer.extend(tensor for tensor in made if tensor.name not in large)


def leave_out_unread(graph: onnx.GraphProto, large: dict[str, Array]) -> None:
    """Large weights that nothing reads any more are gone: onnxslim compares each input with each tensor."""
    read = names_read(graph)
    kept = [info for info in graph.input if info.name in read or info.name not in large]
    del graph.input[:]
    graph.input.extend(kept)
    for name in large.keys() - read:
        del large[name]


def names_read(graph: onnx.GraphProto) -> set[str]:
    """All names that nodes and outputs of a graph read, inner graphs included."""
    names = {output.name for output in graph.output}
    for node in graph.node:
        names.update(node.input)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                names |= names_read(inner)
    return names


class _Large:
    """Which initialisers of a graph are large weights: floats, and integers that have a scale for each block."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._read_as: dict[str, set[str]] = {}  # by tensor the operators that read it in blocks; none is another reader
        for node in all_nodes(graph):
            has_blocks = node.op_type != "DequantizeLinear" or any(a.name == "block_size" and a.i > 0 for a in node.attribute)
            places = _IN_BLOCKS.get(node.op_type, ()) if has_blocks else ()
            for i, name in enumerate(node.input):
                self._read_as.setdefault(name, set()).add(node.op_type if i in places else "")

    def __contains__(self, tensor: onnx.TensorProto) -> bool:
        readers: Collection[str] = self._read_as.get(tensor.name, {""})
        in_blocks = "" not in readers
        if min(tensor.dims, default=0) <= 0 or math.prod(tensor.dims) < (_LEAST_IN_BLOCKS if in_blocks else _LEAST_ELEMENTS):
            return False
        if tensor.data_type in WIDENED:
            return readers == {"DequantizeLinear"}
        return tensor.data_type in _TYPES or (in_blocks and tensor.data_type in _INTEGERS)


def _array(tensor: onnx.TensorProto, data: Array | None) -> Array | None:
    """The value of a tensor, or None if its data do not fit its type."""
    wide = WIDENED.get(tensor.data_type)
    if data is None:
        try:
            array = numpy_helper.to_array(tensor)
        except (TypeError, ValueError):
            return None
        return array if wide is None else array.astype(wide)
    count = math.prod(tensor.dims)
    if wide is not None:
        return widened(data, count, wide).reshape(tensor.dims) if data.nbytes == -(-count // 2) else None
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    return data.view(dtype).reshape(tensor.dims) if data.nbytes == count * dtype.itemsize else None


def _input(name: str, array: Array) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


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
