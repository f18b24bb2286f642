"""`build(shapes=…)`: the shapes that one library holds, of inputs whose extents have names."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from flexcomp.arguments import checked_number, checked_shapes
from flexcomp.errors import InputError
from flexcomp.frontend import Imported
from flexcomp.passes.ir import dtype, num_inputs, shape
from flexcomp.program import TensorType

MOST_SHAPES = 16  # of a library: each has plans of its own


@dataclass(frozen=True)
class DeclaredShape:
    """Extents by name, and the shapes of inputs that follow from these."""

    extents: Mapping[str, int]
    inputs: Mapping[str, tuple[int, ...]]

    def __str__(self) -> str:
        return ", ".join(f"{name}={extent}" for name, extent in self.extents.items())


def declared_shapes(input_shapes: Any, shapes: Any) -> tuple[DeclaredShape, ...]:
    """The shapes of a build, the one with the largest inputs first: one without names, if no extent has a name.

    `input_shapes` are numbers or names, by input. `shapes` are the extents of each name, of which every combination is a shape,
    or a list of those combinations that occur. Raises InputError for names in one of the two only, and for more than MOST_SHAPES.
    """
    named = _names(input_shapes)
    if shapes is None:
        if named:
            name, where = next(iter(named.items()))
            way_out = f'shapes={{"{name}": [16, 64]}}'
            raise InputError(f'input_shapes[{where!r}] has an extent "{name}": say what that may be, {way_out}')
        return (DeclaredShape({}, checked_shapes(input_shapes, "input_shapes")),)
    combinations = _combinations(shapes)
    names = list(combinations[0])
    for name in names:
        if name not in named:
            having = ", ".join(f'"{one}"' for one in named) or "no names"
            way_out = f'{{"ids": (1, "{name}")}}'
            raise InputError(f'shapes has extents for "{name}", but input_shapes has {having}: name an axis, as in {way_out}')
    for name, where in named.items():
        if name not in names:
            missing = f'but shapes has none for it: add "{name}": [16, 64]'
            raise InputError(f'input_shapes[{where!r}] has an extent "{name}", {missing}')
    found = [shape_with(input_shapes, extents) for extents in combinations]
    return tuple(sorted(found, key=lambda one: (-_elements(one), tuple(-extent for extent in one.extents.values()))))


def _names(input_shapes: Any) -> dict[str, str]:
    """The names among extents, and an input that has them."""
    if not isinstance(input_shapes, Mapping):
        return {}
    shapes = [(where, shape) for where, shape in input_shapes.items() if isinstance(shape, list | tuple)]
    return {one: where for where, shape in shapes for one in shape if isinstance(one, str)}


def _combinations(shapes: Any) -> list[dict[str, int]]:
    """Extents by name of each shape."""
    if isinstance(shapes, Mapping) and shapes:
        lists = {name: _extents(name, given) for name, given in shapes.items()}
        count = math.prod(map(len, lists.values()))
        _require_few(count, " × ".join(f"{len(one)} of {name}" for name, one in lists.items()))
        return [dict(zip(lists, one, strict=True)) for one in itertools.product(*lists.values())]
    if isinstance(shapes, list | tuple) and shapes and all(isinstance(one, Mapping) and one for one in shapes):
        _require_few(len(shapes), "so long is the list")
        found = [{name: _extent(name, extent) for name, extent in sorted(one.items())} for one in shapes]
        for one in found:
            if list(one) != list(found[0]):
                raise InputError(f"shapes: {found[0]} and {one} have other names: every shape gives an extent to each name")
            if found.count(one) > 1:
                raise InputError(f"shapes: {one} is there twice")
        return found
    raise InputError(
        'shapes must be a dict such as {"n": [16, 64]}, or a list of those that occur, [{"h": 480, "w": 640}], '
        f"not {shapes!r}"
    )


def _extents(name: Any, given: Any) -> list[int]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable) or not (given := list(given)):
        raise InputError(f"shapes[{name!r}] must be a list of extents such as [16, 64], not {given!r}")
    extents = [_extent(name, one) for one in given]
    for one in extents:
        if extents.count(one) > 1:
            raise InputError(f"shapes[{name!r}] has {one} twice")
    return extents


def _extent(name: Any, given: Any) -> int:
    if not isinstance(name, str) or not name:
        raise InputError(f"a name of an extent is a text such as \"n\", not {name!r}")
    return checked_number(given, f"an extent of shapes[{name!r}]", least=1)


def _require_few(count: int, why: str) -> None:
    if count > MOST_SHAPES:
        raise InputError(
            f"shapes are {count} ({why}), and a library holds {MOST_SHAPES} at most: give fewer extents, or a list of the "
            'combinations that occur, shapes=[{"h": 480, "w": 640}, …]'
        )


def shape_with(input_shapes: Any, extents: Mapping[str, int]) -> DeclaredShape:
    """The shape whose names have these extents."""
    def extent(given: Any) -> Any:
        return extents[given] if isinstance(given, str) else given

    fixed = {
        name: tuple(map(extent, shape)) if isinstance(shape, list | tuple) else shape for name, shape in input_shapes.items()
    }
    return DeclaredShape(dict(extents), checked_shapes(fixed, "input_shapes"))


def _elements(shape: DeclaredShape) -> int:
    return sum(math.prod(extents) for extents in shape.inputs.values())


def require_common(networks: Sequence[Imported], declared: Sequence[DeclaredShape], state: Mapping[str, str]) -> None:
    """Raise InputError where networks of several shapes differ in more than the extents of inputs and outputs."""
    first, said = ports_of_network(networks[0]), declared[0]
    for network, at in zip(networks[1:], declared[1:], strict=True):
        other = ports_of_network(network)
        if list(first) != list(other):
            raise InputError(f"shapes: inputs and outputs are {', '.join(first)} for {said}, but {', '.join(other)} for {at}")
        for name, one in first.items():
            differ = f'"{name}" is {one} for {said}, but {other[name]} for {at}'
            if one.dtype != other[name].dtype or len(one.shape) != len(other[name].shape):
                raise InputError(f"shapes: {differ}: only extents may differ")
            if name in {*state, *state.values()} and one != other[name]:
                raise InputError(f"shapes: the state {differ}: a state has one shape")


def ports_of_network(network: Imported) -> dict[str, TensorType]:
    """Its inputs and outputs."""
    main = network.mod["main"]
    body = main.body.body
    returned = list(body.fields) if isinstance(body, relax.Tuple) else [body]
    inputs = zip(network.input_names, main.params[: num_inputs(main)], strict=True)
    outputs = zip(network.output_names, returned, strict=True)
    return {name: TensorType(shape(one), dtype(one)) for name, one in (*inputs, *outputs)}
