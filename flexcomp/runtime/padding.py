"""Padding: inputs of any extents up to the largest run in the next shape that holds them, and outputs are cut.

The record is the metadata "pad" of a library's first program, a JSON object:

    {"values": {"ids": 0},                    what padded inputs hold behind their end
     "inputs": {"ids": [null, "n"]},          the names of their axes' extents; null: never padded
     "outputs": {"y": [null, "n", null]},     the same of outputs that are cut
     "rows": "n"}                             kernels are told how many of these rows are valid; null: they compute all

`flexcomp.compiler.padding` makes it once it has found that padding moves no output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from flexcomp.errors import ArtifactError, InputError
from flexcomp.json_text import parse

from .ports import ShapeInfo, TensorInfo, extents_of, on_gpu

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

    def extents(self, tensors: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Of each name, from the shapes of inputs. Raises InputError for inputs that disagree, or have other axes."""
        found: dict[str, tuple[int, str]] = {}
        for name, axes in self.inputs.items():
            shape = tensors[name]
            if len(shape) != len(axes):
                raise InputError(f'input "{name}" has {len(axes)} axes; given was {list(shape)}')
            for axis, (of, extent) in enumerate(zip(axes, shape, strict=True)):
                if of is None:
                    continue
                where = f'"{name}" has {extent} elements along axis {axis}'
                if extent < 1:
                    raise InputError(f"input {where}, and at least 1 is needed")
                if of in found and found[of][0] != extent:
                    raise InputError(f"input {where}, but {found[of][1]}: both are {of}")
                found.setdefault(of, (extent, where))
        return {of: extent for of, (extent, _) in found.items()}

    def fit(self, shapes: Sequence[ShapeInfo], values: Mapping[str, Any]) -> tuple[ShapeInfo, ShapeInfo]:
        """The next shape that holds these inputs, and the one that they have. Raises InputError if none holds them."""
        given = self.extents({name: extents_of(value) for name, value in values.items()})
        known = [self.extents({port.name: port.shape for port in shape.inputs}) for shape in shapes]
        index = holding(known, given)
        if index is None:
            self._refuse(known, given)
        shape = shapes[index]
        return shape, ShapeInfo(given, _sized(shape.inputs, self.inputs, given), _sized(shape.outputs, self.outputs, given))

    def padded(self, arrays: Sequence[Any], ports: Sequence[TensorInfo]) -> list[Any]:
        """Inputs in the order of `ports`, as large as these. Raises InputError for tensors of GPUs that would have to grow."""
        result = []
        for array, port in zip(arrays, ports, strict=True):
            if tuple(array.shape) == port.shape:
                result.append(array)
                continue
            if on_gpu(array):
                raise InputError(f'input "{port.name}" lies on a GPU, and padding is for libraries that a CPU computes')
            whole = np.full(port.shape, self.values[port.name], port.array_dtype)
            whole[tuple(map(slice, array.shape))] = array
            result.append(whole)
        return result

    def _refuse(self, known: Sequence[Mapping[str, int]], given: Mapping[str, int]) -> None:
        for name, axes in self.inputs.items():
            for axis, of in enumerate(axes):
                most = max(one[of] for one in known) if of is not None else None
                if most is not None and given[of] > most:
                    words = f"along axis {axis}, and the library was built for {most} at most"
                    raise InputError(f'input "{name}" has {given[of]} elements {words}')
        there = "; ".join(map(named, known))
        raise InputError(f"no shape of the library holds {named(given)}: there are {there}")


def holding(known: Sequence[Mapping[str, int]], given: Mapping[str, int]) -> int | None:
    """The index of the next shape that holds `given`, of shapes by their extents, the largest first."""
    fitting = [index for index, one in enumerate(known) if all(one[name] >= extent for name, extent in given.items())]
    return fitting[-1] if fitting else None


def named(extents: Mapping[str, int]) -> str:
    """Extents as text."""
    return ", ".join(f"{name}={extent}" for name, extent in extents.items())


def padding_of(info: Mapping[str, Any], shapes: Sequence[ShapeInfo]) -> Padding | None:
    """How the library that says `info` of itself pads, if it does. Raises ArtifactError for a record that does not fit it."""
    text = info.get("metadata", {}).get(PAD)
    if text is None:
        return None
    try:
        return _read(parse(text), shapes)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"the library's record of padding is malformed: {error}") from None


def fits(value: Any, dtype: str) -> bool:
    """Whether an element of this type has this value, floats as near as they come."""
    if type(value) not in (int, float):
        return False
    if dtype == "bool":
        return value in (0, 1)
    kind = np.dtype("uint16" if dtype == "bfloat16" else dtype)
    if kind.kind in "iu":
        return dtype != "bfloat16" and type(value) is int and np.iinfo(kind).min <= value <= np.iinfo(kind).max
    return abs(value) <= float(np.finfo(kind).max)


def _read(record: Any, shapes: Sequence[ShapeInfo]) -> Padding:
    values, inputs, outputs = record["values"], _axes(record["inputs"]), _axes(record["outputs"])
    if not inputs or values.keys() != inputs.keys():
        raise ValueError("values are not those of its inputs")
    for shape in shapes:
        extents: dict[str, int] = {}
        _note_extents(shape.inputs, inputs, extents)
        known = set(extents)
        _note_extents(shape.outputs, outputs, extents)
        if extents.keys() != known:
            raise ValueError("outputs have names that no input has")
        # What has no name is the same in all shapes: inputs fit the shape once they are padded.
        for ports, first, axes in ((shape.inputs, shapes[0].inputs, inputs), (shape.outputs, shapes[0].outputs, outputs)):
            if _sized(ports, axes, extents) != _sized(first, axes, extents):
                raise ValueError("shapes differ along axes without a name")
    for port in shapes[0].inputs:
        if port.name in values and not fits(values[port.name], port.dtype):
            raise ValueError(f"{port.name!r} is {port.dtype}, which has no {values[port.name]!r}")
    rows = record.get("rows")
    if rows is not None and not any(rows in names for names in inputs.values()):
        raise ValueError("its rows are those of no input")
    return Padding(dict(values), inputs, outputs, rows)


def _note_extents(ports: Sequence[TensorInfo], axes: Axes, extents: dict[str, int]) -> None:
    """Add the extents of names. Raises ValueError where two axes of a name differ."""
    by_name = {port.name: port for port in ports}
    for name, names in axes.items():
        for of, extent in zip(names, by_name[name].shape, strict=True):
            if of is not None and extents.setdefault(of, extent) != extent:
                raise ValueError(f"{name!r} has {extent} elements along {of!r}")


def _axes(record: Any) -> dict[str, tuple[str | None, ...]]:
    axes = {name: tuple(names) for name, names in record.items()}
    if not all(of is None or isinstance(of, str) for names in axes.values() for of in names):
        raise ValueError("a name of an extent is no text")
    if not all(any(names) for names in axes.values()):
        raise ValueError("a tensor has no axis with a name")
    return axes


def _sized(ports: Sequence[TensorInfo], axes: Axes, extents: Mapping[str, int]) -> tuple[TensorInfo, ...]:
    """Ports with these extents along axes that have names."""

    def sized(port: TensorInfo) -> tuple[int, ...]:
        names = axes.get(port.name, (None,) * len(port.shape))
        return tuple(old if of is None else extents[of] for of, old in zip(names, port.shape, strict=True))

    return tuple(TensorInfo(port.name, sized(port), port.dtype) for port in ports)
