"""Inputs of a request, and the shape of a library that they run in: as they are, or padded to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tvm_ffi

from .padding import Axes, Padding, padding_of
from .ports import ShapeInfo, TensorInfo, as_arrays, extents_of, ports_of, shapes_of


@dataclass(frozen=True)
class Fitted:
    """Inputs as large as the shape that runs, and the outputs there and as they are cut."""

    inputs: list[Any]
    whole: tuple[TensorInfo, ...]
    cut: tuple[TensorInfo, ...]
    valid: int | None = None  # rows of padded inputs that are, for kernels that are told


class Fitting:
    """How inputs of a library find their shape, from what it says of itself."""

    def __init__(self, info: Mapping[str, Any]) -> None:
        """Raises ArtifactError for a record of padding that does not fit the library."""
        self.shapes = shapes_of(info)  # the largest first
        self.padding: Padding | None = padding_of(info, self.shapes)
        self.inputs, self.outputs = ports_of(info["inputs"]), ports_of(info["outputs"])  # -1 where shapes differ

    @property
    def open_inputs(self) -> tuple[TensorInfo, ...]:
        """Inputs as callers may give them: -1 where they choose, among the extents of shapes or up to the largest."""
        return self._open(self.inputs, {} if self.padding is None else self.padding.inputs)

    @property
    def open_outputs(self) -> tuple[TensorInfo, ...]:
        """Outputs as callers get them, in the same way."""
        return self._open(self.outputs, {} if self.padding is None else self.padding.outputs)

    @property
    def most_inputs(self) -> tuple[TensorInfo, ...]:
        """Inputs with the most elements that any shape has along each axis."""
        return _most([shape.inputs for shape in self.shapes])

    @property
    def most_outputs(self) -> tuple[TensorInfo, ...]:
        """The same of outputs."""
        return _most([shape.outputs for shape in self.shapes])

    def _open(self, ports: Sequence[TensorInfo], axes: Axes) -> tuple[TensorInfo, ...]:
        def extents(port: TensorInfo) -> tuple[int, ...]:
            names = axes.get(port.name, (None,) * len(port.shape))
            return tuple(extent if name is None else -1 for name, extent in zip(names, port.shape, strict=True))

        return tuple(replace(port, shape=extents(port)) for port in ports)

    def fitted(self, values: Sequence[Any], shape_of: Callable[..., int]) -> Fitted:
        """Inputs in the order of the library's. `shape_of` is the runtime's: the shape that has these extents, one `Shape` each.

        Raises InputError, with the axis, for extents that the library does not take.
        """
        shape, own = self._shapes_of(values, shape_of)
        given = as_arrays(own.inputs, values)
        valid = None
        if self.padding is not None:
            given = self.padding.padded(given, shape.inputs)
            valid = None if self.padding.rows is None else own.extents[self.padding.rows]
        return Fitted(given, shape.outputs, own.outputs, valid)

    def _shapes_of(self, values: Sequence[Any], shape_of: Callable[..., int]) -> tuple[ShapeInfo, ShapeInfo]:
        """The shape that takes these inputs, and their own, which is smaller if they are padded."""
        if self.padding is not None:
            by_name = {port.name: value for port, value in zip(self.inputs, values, strict=True)}
            return self.padding.fit(self.shapes, by_name)
        several = len(self.shapes) > 1
        shape = self.shapes[shape_of(*(tvm_ffi.Shape(extents_of(value)) for value in values)) if several else 0]
        return shape, shape


def _most(of_shapes: Sequence[Sequence[TensorInfo]]) -> tuple[TensorInfo, ...]:
    ports = zip(*of_shapes, strict=True)
    return tuple(replace(same[0], shape=tuple(map(max, *(port.shape for port in same), same[0].shape))) for same in ports)


def cut_to(array: np.ndarray, port: TensorInfo) -> np.ndarray:
    """The part of a whole output that belongs to inputs of their own length: a view."""
    return array[tuple(map(slice, port.shape))]
