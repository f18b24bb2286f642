"""The record of padding: which inputs may be shorter than a library's shapes, and which outputs are then cut.

The record is the metadata "pad" of a library's first program, a JSON object:

    {"values": {"ids": 0},                    what padded inputs hold after their end
     "inputs": {"ids": [null, "n"]},          the names of their axes' extents; null: never padded
     "outputs": {"y": [null, "n", null]},     the same of outputs that are cut; or how an extent follows from a name's:
                                              {"of": "n", "times": 1, "add": 1, "divisor": 2, "plus": 0}
     "rows": "n",                             kernels are told how many of these rows are valid; null: they compute all
     "least": {"n": 3}}                       the least extents that the network takes, where that is more than 1

`flexcomp.compiler.padding` makes it once it has found that padding moves no output. The runtime checks the record, pads and cuts
(`runtime_ext/src/program/padding.h`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from flexcomp.errors import ArtifactError
from flexcomp.json_text import parse

from .ports import ShapeInfo, TensorInfo

PAD = "pad"  # metadata of a program


@dataclass(frozen=True)
class Derived:
    """An extent of an output that follows from the extent n of a name: times · ⌊(n + add) / divisor⌋ + plus."""

    of: str
    times: int
    add: int
    divisor: int
    plus: int

    def __call__(self, n: int) -> int:
        return self.times * ((n + self.add) // self.divisor) + self.plus


Axes = Mapping[str, tuple[str | Derived | None, ...]]  # by tensor, for each axis the name of its extent


@dataclass(frozen=True)
class Padding:
    """What is padded with what, and what is cut."""

    values: Mapping[str, int | float]
    inputs: Mapping[str, tuple[str | None, ...]]
    outputs: Axes
    rows: str | None = None  # the extent that kernels are told
    least: Mapping[str, int] = field(default_factory=dict)  # extents by name, where more than 1

    def to_metadata(self) -> dict[str, str]:
        """For `Program.metadata`."""
        record = {key: value for key, value in asdict(self).items() if key != "least" or value}
        return {PAD: json.dumps(record, sort_keys=True)}

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
        return Padding(dict(record["values"]), inputs, outputs, record.get("rows"), dict(record.get("least", {})))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"the library's record of padding is malformed: {error}") from None


def _axes(record: Any, ports: Sequence[TensorInfo]) -> dict[str, tuple[str | None, ...]]:
    axes = {name: tuple(Derived(**of) if isinstance(of, dict) else of for of in names) for name, names in record.items()}
    ranks = {port.name: len(port.shape) for port in ports}
    if any(ranks.get(name) != len(names) for name, names in axes.items()):
        raise ValueError("a tensor has other axes")
    return axes


def _sized(ports: Sequence[TensorInfo], axes: Axes, extents: Mapping[str, int]) -> tuple[TensorInfo, ...]:
    """Ports with these extents along axes that have names."""

    def sized(port: TensorInfo) -> tuple[int, ...]:
        names = axes.get(port.name, (None,) * len(port.shape))
        extent = {of: of(extents[of.of]) if isinstance(of, Derived) else extents[of] for of in names if of is not None}
        return tuple(extent.get(of, old) for of, old in zip(names, port.shape, strict=True))

    return tuple(TensorInfo(port.name, sized(port), port.dtype) for port in ports)
