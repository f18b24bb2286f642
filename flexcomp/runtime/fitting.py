"""Inputs of a request as a library takes them: in one of its shapes, or of any length where it pads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi

from .padding import Axes, Padding, padding_of
from .ports import ShapeInfo, TensorInfo, as_arrays, extents_of, ports_of, shapes_of


@dataclass(frozen=True)
class Fitted:
    """The inputs, and the outputs that come of them: the runtime pads and cuts."""

    inputs: list[Any]
    outputs: tuple[TensorInfo, ...]


class Fitting:
    """Which inputs a library takes, from what it says of itself."""

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
        """The inputs, and what comes of them. `shape_of` is the runtime's: the shape that takes these extents, one `Shape` each.

        Raises InputError, with the axis, for extents that the library does not take.
        """
        chosen = 0
        if len(self.shapes) > 1 or self.padding is not None:
            chosen = shape_of(*(tvm_ffi.Shape(extents_of(value)) for value in values))
        own: ShapeInfo = self.shapes[chosen]
        if self.padding is not None:
            given = {port.name: extents_of(value) for port, value in zip(self.inputs, values, strict=True)}
            own = self.padding.cut(own, given)
        return Fitted(as_arrays(own.inputs, values), own.outputs)


def _most(of_shapes: Sequence[Sequence[TensorInfo]]) -> tuple[TensorInfo, ...]:
    ports = zip(*of_shapes, strict=True)
    return tuple(replace(same[0], shape=tuple(map(max, *(port.shape for port in same), same[0].shape))) for same in ports)
