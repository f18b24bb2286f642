"""The record of padding: which inputs may be shorter than a library's shapes, and which outputs are then cut.

The record is the metadata "pad" of a library's first program, a JSON object:

    {"values": {"ids": 0},                    what padded inputs hold after their end
     "inputs": {"ids": [null, "n"]},          the names of their axes' extents; null: never padded
     "outputs": {"y": [null, "n", null]},     the same of outputs that are cut
     "rows": "n"}                             kernels are told how many of these rows are valid; null: they compute all

`flexcomp.compiler.padding` makes it once it has found that padding moves no output. The runtime checks the record, pads and cuts
(`runtime_ext/src/program/padding.h`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flexcomp.errors import ArtifactError
from flexcomp.json_text import parse

from .ports import ShapeInfo, TensorInfo

PAD = "pad"  # metadata of a program
Axes = Mapping[str, tuple[str | None, ...]]  # by tensor, for each axis the name of its extent


@dataclass(frozen=True)
class Padding:
    """What is padded with what, and what is cut."""

    values: Mapping[str, int | float]
    inputs: Axes
    outputs: Axes
    rows: str | None = None  # the extent that kernels are told

    def to_metadata(self) -> dict[str, str]:
        """For `Program.metadata`."""
        return {PAD: json.dumps(asdict(self), sort_keys=True)}

    def cut(self, shape: ShapeInfo, given: Mapping[str, tuple[int, ...]]) -> ShapeInfo:
        """A shape with the extents that inputs have, by their names, along axes that are padded or cut."""
        pairs = (zip(axes, given[name], strict=True) for name, axes in self.inputs.items())
        extents = {of: extent for one in pairs for of, extent in one if of is not None}
        return ShapeInfo(extents, _sized(shape.inputs, self.inputs, extents), _sized(shape.outputs, self.outputs, extents))


def padding_of(info: Mapping[str, Any], shapes: Sequence[ShapeInfo]) -> Padding | None:
    """How the library that says `info` of itself pads, if it does. Raises ArtifactError for a record that does not fit it."""
    text = info.get("metadata", {}).get(PAD)
    if text is None:
        return None
    try:
        record = parse(text)
        inputs, outputs = _axes(record["inputs"], shapes[0].inputs), _axes(record["outputs"], shapes[0].outputs)
        return Padding(dict(record["values"]), inputs, outputs, record.get("rows"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"the library's record of padding is malformed: {error}") from None


def _axes(record: Any, ports: Sequence[TensorInfo]) -> dict[str, tuple[str | None, ...]]:
    axes = {name: tuple(names) for name, names in record.items()}
    ranks = {port.name: len(port.shape) for port in ports}
    if any(ranks.get(name) != len(names) for name, names in axes.items()):
        raise ValueError("a tensor has other axes")
    return axes


def _sized(ports: Sequence[TensorInfo], axes: Axes, extents: Mapping[str, int]) -> tuple[TensorInfo, ...]:
    """Ports with these extents along axes that have names."""

    def sized(port: TensorInfo) -> tuple[int, ...]:
        names = axes.get(port.name, (None,) * len(port.shape))
        return tuple(old if of is None else extents[of] for of, old in zip(names, port.shape, strict=True))

    return tuple(TensorInfo(port.name, sized(port), port.dtype) for port in ports)
