"""Weights that lie in files of their own, read from no file that the model has no right to name.

A name is relative to the folder of the model's path as given, not to a link's target: in Hugging Face's cache the model and its
weights are links side by side. Links are followed to files in that folder, or in the `blobs` next to the `snapshots` that it
lies in. A file is opened once, and the check is of the opened file, whatever becomes of the path in the meantime.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx.external_data_helper import ExternalDataInfo, uses_external_data

from flexcomp.deferred import Array
from flexcomp.frontend.domains import DEFAULT, all_nodes
from flexcomp.frontend.file_bytes import FileBytes

_MOST_OPEN = 128  # files of a model, of the 1,024 that a process may have open; tensors in others are read at once


def external_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of a model whose values lie in a file: weights, and those of nodes, branches and functions."""
    nodes = [node for part in (model.graph, *model.functions) for node in all_nodes(part)]
    graphs = [model.graph]
    tensors = []
    for node in nodes:
        for attribute in node.attribute:
            graphs += [attribute.g, *attribute.graphs]
            sparse = [attribute.sparse_tensor, *attribute.sparse_tensors]
            tensors += [attribute.t, *attribute.tensors, *(part for s in sparse for part in (s.values, s.indices))]
    for graph in graphs:
        tensors += [*graph.initializer, *(part for s in graph.sparse_initializer for part in (s.values, s.indices))]
    return (tensor for tensor in tensors if uses_external_data(tensor))


class ExternalFiles:
    """The files of a model that lies in `folder`: each is opened once."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = str(folder)
        self._files: dict[str, FileBytes] = {}

    def bytes(self, tensor: onnx.TensorProto) -> Array:
        """uint8: the bytes of a tensor that lie in a file. Raises OSError or ValueError, with a message that names it."""
        info = ExternalDataInfo(tensor)
        file = self._files.get(info.location) or FileBytes(_open(self._folder, info.location), info.location)
        begin, wanted = info.offset or 0, _nbytes(tensor)
        nbytes = info.length or wanted or max(file.size - begin, 0)
        if wanted is not None and nbytes != wanted:
            raise ValueError(f"{info.location!r}: {tensor.name!r} has {nbytes} bytes, and its shape needs {wanted}")
        if begin + nbytes > file.size:
            raise ValueError(f"{info.location!r}: {tensor.name!r} ends at byte {begin + nbytes} of a file of {file.size}")
        if len(self._files) >= _MOST_OPEN and info.location not in self._files:
            return file.read(begin, nbytes)
        self._files[info.location] = file
        return file.bytes(begin, nbytes)


def constants_as_weights(graph: onnx.GraphProto) -> None:
    """Turn the graph's Constant nodes whose values lie in files into initialisers: they may be large. Changes `graph`."""
    kept = []
    for node in graph.node:
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        if node.op_type != "Constant" or node.domain not in DEFAULT or value is None or not uses_external_data(value):
            kept.append(node)
            continue
        weight = graph.initializer.add()
        weight.CopyFrom(value)
        weight.name = node.output[0]
    if len(kept) < len(graph.node):
        del graph.node[:]
        graph.node.extend(kept)


def hold(tensor: onnx.TensorProto, data: Array) -> None:
    """Put a tensor's bytes into it. Changes `tensor`."""
    tensor.raw_data = np.asarray(data).tobytes()
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]


def locations(model: onnx.ModelProto) -> set[str]:
    """The names of the files that hold tensors of the model."""
    return {ExternalDataInfo(tensor).location for tensor in external_tensors(model)}


def _open(folder: str, location: str) -> int:
    """A descriptor of a regular file in one of the folders that a model may read."""
    if not location or "\0" in location or os.path.isabs(location) or ".." in Path(location).parts:
        raise ValueError(f"{location!r} is not the name of a file in the model's folder")
    path = os.path.join(folder, location)
    # Not to wait for a pipe's writer, and not to run what opening a device does.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError(f"{path} is not a regular file")
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _require_allowed(file, folder, path)
    except BaseException:
        os.close(file)
        raise
    return file


def _require_allowed(file: int, folder: str, path: str) -> None:
    opened = os.fstat(file)
    if not stat.S_ISREG(opened.st_mode):
        raise ValueError(f"{path} is not a regular file")
    if opened.st_nlink > 1:
        raise ValueError(f"{path} has several hard links, and other names of it may lie anywhere: copy it")
    found = os.readlink(f"/proc/self/fd/{file}")
    if not any(os.path.commonpath([root, found]) == root for root in _roots(folder)):
        raise ValueError(f"{path} leads out of the model's folder, to {found}: copy it there")


def _roots(folder: str) -> list[str]:
    real = Path(os.path.realpath(folder))
    blobs = [parent.parent / "blobs" for parent in (real, *real.parents) if parent.name == "snapshots"]
    return [str(real), *map(str, blobs[:1])]


def _nbytes(tensor: onnx.TensorProto) -> int | None:
    """What the tensor's shape needs; None for elements that are no whole bytes."""
    if tensor.data_type in (onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED):
        raise ValueError(f"{tensor.name!r} is of a type that no file can hold")
    if onnx.TensorProto.DataType.Name(tensor.data_type).endswith(("INT4", "INT2", "E2M1")):
        return None
    return math.prod(tensor.dims) * np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)).itemsize
