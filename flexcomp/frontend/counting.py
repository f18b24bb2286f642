"""Indices that are computed from a number, such as the positions of tokens: recognised as counting integers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from flexcomp.frontend.domains import DEFAULT
from flexcomp.frontend.quantised.writer import Writer

_INTEGERS = (TensorProto.INT32, TensorProto.INT64)
_VIEWS = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
_LARGEST = 1 << 22  # elements of a constant that is looked at


@dataclass(frozen=True)
class Count:
    """A number (an element of a tensor, plus an offset), alone or followed by the next numbers along one axis."""

    start: str  # "" is 0
    offset: int
    axis: int | None  # of more than one index
    shape: tuple[int, ...]

    def follows(self, axis: int) -> bool:
        """Whether the indices count along an axis, if there is more than one index."""
        return self.axis == axis if self.shape[axis] > 1 else self.axis is None

    def is_every(self, axis: int, extent: int) -> bool:
        """Whether the indices are all indices of an axis in their order."""
        return not self.start and not self.offset and self.shape[axis] == extent and self.follows(axis)


class Counting(Writer):
    """Nodes in place of others, for indices that count."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        self.makers = {name: node for node in self.graph.node for name in node.output if name}

    def count(self, name: str) -> Count | None:
        """The count that a tensor of integers holds, if the integers count."""
        if name not in self.types or self.types[name][0] not in _INTEGERS:
            return None
        shape = self.types[name][1]
        if name in self.constants:
            return _of_constant(self.value(name)) if math.prod(shape) <= _LARGEST else None
        found = self._made(self.makers.get(name), shape)
        return Count(name, 0, None, shape) if found is None and math.prod(shape) == 1 else found

    def _made(self, node: onnx.NodeProto | None, shape: tuple[int, ...]) -> Count | None:
        if node is None or node.domain not in DEFAULT:
            return None
        if node.op_type == "Add":
            return _sum(self.count(node.input[0]), self.count(node.input[1]), shape)
        if node.op_type not in ("Cast", "Expand", "Identity", *_VIEWS):
            return None
        given = self.count(node.input[0])
        if given is None or node.op_type in ("Cast", "Identity"):
            return given
        if node.op_type in _VIEWS:
            return _viewed(given, shape)
        return Count(given.start, given.offset, _aligned(given, shape), shape)


def _of_constant(value: np.ndarray) -> Count | None:
    if not value.size:
        return None
    first = int(value.reshape(-1)[0])
    if (value == first).all():
        return Count("", first, None, value.shape)
    for axis, extent in enumerate(value.shape):
        steps = np.arange(extent).reshape([-1 if i == axis else 1 for i in range(value.ndim)])
        if extent > 1 and (value == first + steps).all():
            return Count("", first, axis, value.shape)
    return None


def _sum(a: Count | None, b: Count | None, shape: tuple[int, ...]) -> Count | None:
    if a is None or b is None or (a.start and b.start) or (a.axis is not None and b.axis is not None):
        return None
    axis = _aligned(b if a.axis is None else a, shape)
    return Count(a.start or b.start, a.offset + b.offset, axis, shape)


def _aligned(given: Count, shape: tuple[int, ...]) -> int | None:
    """The axis along which a count runs after a broadcast to a shape."""
    return None if given.axis is None else given.axis + len(shape) - len(given.shape)


def _viewed(given: Count, shape: tuple[int, ...]) -> Count | None:
    if given.axis is None:
        return Count(given.start, given.offset, None, shape)
    before, extent = math.prod(given.shape[: given.axis]), given.shape[given.axis]
    axes = [i for i, n in enumerate(shape) if n == extent and math.prod(shape[:i]) == before]
    return Count(given.start, given.offset, axes[0], shape) if axes else None
