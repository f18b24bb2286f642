"""`build(pad=…)`: a library for lengths between its shapes, once the build has found that padding moves no output.

The network is built for this machine in float32, in the shapes that the library has and at some lengths between them. Outputs on
random inputs of a length, padded to a shape and cut, are compared with those of the network at that length. Each network is
compiled once: a shape's own outputs are what those of larger shapes are compared with.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flexcomp.errors import FlexcompError, InputError
from flexcomp.frontend import Imported
from flexcomp.network import PaddedRows
from flexcomp.program import Program, TensorType, ValueArg
from flexcomp.report import Progress
from flexcomp.runtime import Padding, Session

from .artifact import Artifact
from .output_extents import Extents, axes_of_outputs, named, require_cut
from .shapes import DeclaredShape, ports_of_network
from .weight_trial import difference, is_float, tells

_log = logging.getLogger(__name__)
MOST_MOVED = 1e-5  # of the largest element of an output
_SEED = 0

Load = Callable[[Extents], Imported]
# For this machine; and how many kernels leave out padded rows.
Compile = Callable[[Imported, PaddedRows | None, Padding | None], tuple[Artifact, int]]


def checked_pad(pad: Any, input_shapes: Any, shapes: Any) -> dict[str, int | float] | None:
    """What inputs are padded with, by name; None is no padding. Names of axes are those of `input_shapes`.

    Raises InputError for anything but numbers of inputs whose extents have names, all of them.
    """
    if pad is None:
        return None
    if not isinstance(pad, Mapping) or not pad:
        raise InputError(f'pad must be a dict of numbers by input, such as {{"ids": 0}}, not {pad!r}')
    if shapes is None:
        raise InputError('pad is for libraries of shapes: give input_shapes={"ids": (1, "n")} and shapes={"n": [16, 64]}, too')
    axes = axes_of_inputs(input_shapes)
    for name in pad:
        if name not in axes:
            there = ", ".join(f'"{one}"' for one in axes)
            raise InputError(f"pad: {name!r} is no input with a name among its extents; there is {there}")
    for name, names in axes.items():
        if name not in pad:
            axis, of = next((axis, of) for axis, of in enumerate(names) if of is not None)
            way_out = f'say what its padding holds, pad={{…, "{name}": 0}}'
            raise InputError(f'pad: axis {axis} of "{name}" is {of}, too, and there is no value for it: {way_out}')
    return {name: _number(name, value) for name, value in pad.items()}


def axes_of_inputs(input_shapes: Mapping[str, Sequence[int | str]]) -> dict[str, tuple[str | None, ...]]:
    """Of inputs that have names among their extents, these."""
    axes = {name: tuple(one if isinstance(one, str) else None for one in shape) for name, shape in input_shapes.items()}
    return {name: names for name, names in axes.items() if any(names)}


def _number(name: str, value: Any) -> int | float:
    if isinstance(value, np.generic):
        value = value.item()
    if type(value) is bool:
        return int(value)
    if type(value) not in (int, float) or not abs(value) < float("inf"):
        raise InputError(f"pad[{name!r}] must be a finite number, not {value!r}")
    return value


def tried_padding(
    values: Mapping[str, int | float],
    input_shapes: Mapping[str, Sequence[int | str]],
    declared: Sequence[DeclaredShape],
    networks: Sequence[Imported],
    load: Load,
    compiled: Compile,
    report: Progress,
) -> tuple[Padding, Mapping[int, int]]:
    """How a library of these shapes, the largest first, pads; and by shape how many kernels must leave out padded rows.

    Raises InputError with the name of an output that padding moves.
    """
    known = [shape.extents for shape in declared]
    ready: dict[tuple[int, ...], Imported] = {}  # networks that were loaded to find the least
    least = {name: _least(known, name, load, ready) for name in known[0]}
    trials = trials_of(known, least)
    between = [extents for trial in trials for extents in trial.new]
    if not between:
        which = ", which is the least" * any(extent > 1 for extent in least.values())
        raise InputError(f"pad: no length lies between the shapes, {'; '.join(map(named, known))}{which}: leave pad out")
    _require_values(values, ports_of_network(networks[0]))
    seen = [(one, ports_of_network(network)) for one, network in zip(known, networks, strict=True)]

    def ports_at(extents: Extents) -> Mapping[str, TensorType]:
        found = next((ports for one, ports in seen if one == extents), None)
        if found is None:
            found = ports_of_network(ready.get(_key(extents)) or _loaded(load, extents))
            seen.append((extents, found))
        return found

    for extents in between:
        others = [one for one, _ in seen]
        if _told_apart([*others, extents]) > _told_apart(others):
            ports_at(extents)
    outputs = axes_of_outputs(networks[0].output_names, seen, ports_at)
    least = {name: extent for name, extent in least.items() if extent > 1}
    padding = Padding(values, axes_of_inputs(input_shapes), outputs, rows_of(input_shapes), least)
    refusal: InputError | None = None  # of an inference of all rows
    zeros: tuple[str, str] | None = None  # the output that they move, and when
    silent: str | None = None  # an output that shows nothing at some length
    over: dict[int, int] = {}
    exact: dict[tuple[int, ...], _Exact] = {}
    done, total = 0, sum(len(trial.lengths) for trial in trials)
    for trial in trials:
        for extents in trial.new:
            own, _ = compiled(ready.pop(_key(extents), None) or _loaded(load, extents), None, None)
            with own.session() as session:
                exact[_key(extents)] = _exact(own.program, padding, session)
        padded = padded_rows(input_shapes, padding.rows, declared[trial.shape])
        artifact, over[trial.shape] = compiled(networks[trial.shape], padded, padding)
        with artifact.session() as session:
            larger = session.shapes[0]
            if trial.serves:
                exact[_key(known[trial.shape])] = _exact(artifact.program, padding, session)
            for extents in trial.lengths:
                report("padding", done, total)
                done += 1
                smaller = exact[_key(extents)]
                require_cut(padding, extents, smaller.shapes)
                if unseen := _unseen(smaller.outputs):
                    silent = unseen
                    continue
                what = f"{named(extents)} is padded to {named(known[trial.shape])}"
                found = []
                for given in smaller.inputs:
                    whole = session.run(*(_whole(given[port.name], port.shape, values.get(port.name)) for port in larger.inputs))
                    found.append({name: _cut(whole[name], shape) for name, shape in smaller.shapes.items()})
                refusal = refusal or _refusal(smaller.outputs, found, what)
                if padding.rows is not None:
                    moved = _which_moves(smaller.outputs, [session.run(given) for given in smaller.inputs])
                    if moved:
                        zeros, padding = (moved, what), replace(padding, rows=None)
                if refusal is not None and padding.rows is None:
                    raise refusal
    if silent is not None:
        raise InputError(
            f'pad: random inputs make the output "{silent}" 0, or no numbers, so nothing shows whether padding moves it: '
            "declare the shapes that you need, without pad"
        )
    if zeros is not None:
        _log.warning('pad: each inference computes all rows of its shape: with zeros in padded rows "%s" moves when %s', *zeros)
    report("padding", total, total)
    return padding, over if refusal is not None else {}


def rows_of(input_shapes: Mapping[str, Sequence[int | str]]) -> str | None:
    """The name of the rows of inputs: the only one that there is, on their first axis with more than one element."""
    axes = axes_of_inputs(input_shapes)
    every = {of for names in axes.values() for of in names if of is not None}
    return every.pop() if len(every) == 1 and _in_rows(input_shapes) else None


def lengths_served(declared: Sequence[DeclaredShape], rows: str) -> list[tuple[int, int]]:
    """The rows of each shape, and the fewest that inputs have that are padded to it."""
    extents = sorted({shape.extents[rows] for shape in declared})
    return [(extent, below + 1) for below, extent in zip([0, *extents], extents, strict=False)]


def padded_rows(
    input_shapes: Mapping[str, Sequence[int | str]], rows: str | None, shape: DeclaredShape, over: int | None = None
) -> PaddedRows | None:
    """What kernels for a shape are told; None if nothing."""
    return None if rows is None else PaddedRows(shape.extents[rows], _in_rows(input_shapes), over)


def _in_rows(input_shapes: Mapping[str, Sequence[int | str]]) -> frozenset[str]:
    """The inputs whose first axis with more than one element has a name."""
    firsts = {name: next((one for one in shape if one != 1), None) for name, shape in input_shapes.items()}
    return frozenset(name for name, first in firsts.items() if isinstance(first, str))


@dataclass(frozen=True)
class Trial:
    """What is tried of a shape."""

    shape: int  # its index
    new: Sequence[Extents]  # lengths for which a network is compiled
    lengths: Sequence[Extents]  # those that are padded to the shape: of these, of shapes and of networks compiled before
    serves: bool = False  # larger shapes are compared with this one


def trials_of(known: Sequence[Extents], least_of: Extents | None = None) -> list[Trial]:
    """What to try of shapes, the smallest first, with as few networks as show it: padding of all names, padding of each one
    alone, and a random length.

    `known` are the largest first. Lengths are those of smaller shapes or of their trials, where there are some; else new ones,
    with as much padding as the shape may see, of `least_of` or more (None: 1). The largest shape has a random length of its own,
    which no smaller one holds.
    """
    rng = np.random.default_rng(_SEED)
    least_of = least_of or dict.fromkeys(known[0], 1)
    found: list[Trial] = []
    drawn: list[Extents] = []  # at random
    there: list[Extents] = []  # whose networks are compiled
    for index in reversed(range(len(known))):
        one = known[index]
        below = {name: [other[name] for other in known if other[name] < extent] for name, extent in one.items()}
        least = {name: max(extents, default=least_of[name] - 1) + 1 for name, extents in below.items()}
        new: dict[tuple[int, ...], Extents] = {}
        lengths: dict[tuple[int, ...], Extents] = {}

        def add(extents: Extents, one: Extents = one, new: dict = new, lengths: dict = lengths) -> None:
            if extents == one:  # nothing lies between
                return
            if extents not in there and extents not in known:
                there.append(extents)
                new[_key(extents)] = extents
            lengths[_key(extents)] = extents

        for padded in (list(one), *([name] for name in one if len(one) > 1)):
            narrower = [each for each in there if _pads(each, one) == padded]
            add(max(narrower, key=_key, default=one | {name: least[name] for name in padded}))
        random = [each for each in drawn if _pads(each, one)]
        if index and random:
            add(random[-1])
        else:
            own = {name: int(rng.integers(least[name], extent + 1)) for name, extent in one.items()}
            own = least if own == one else own
            if own != one:
                drawn.append(own)
            add(own)
        there.append(one)
        found.append(Trial(index, [*new.values()], [*lengths.values()]))
    used = {_key(extents) for trial in found for extents in trial.lengths}
    return [replace(trial, serves=_key(known[trial.shape]) in used) for trial in found]


def _key(extents: Extents) -> tuple[int, ...]:
    return tuple(extents.values())


def _pads(given: Extents, to: Extents) -> list[str]:
    """The names that are padded where inputs are `given`; none if the shape does not hold them."""
    return [name for name in to if given[name] < to[name]] if all(given[name] <= to[name] for name in to) else []


def holding(known: Sequence[Extents], given: Extents) -> int | None:
    """The index of the next shape that holds `given`, of shapes by their extents, the largest first."""
    fitting = [index for index, one in enumerate(known) if all(one[name] >= extent for name, extent in given.items())]
    return fitting[-1] if fitting else None


def _least(known: Sequence[Extents], name: str, load: Load, ready: dict[tuple[int, ...], Imported]) -> int:
    """The least extent of a name for which there is a network, with the least of other names that shapes have, whose outputs have
    elements; 1 mostly.
    """
    smallest = {other: min(one[other] for one in known) for other in known[0]}
    low, high = 0, smallest[name]  # there is a network for the latter
    middle, found = 1, {}
    while high - low > 1:
        at = {**smallest, name: middle}
        try:
            network = load(at)
        except FlexcompError:
            network = None
        if network is None or any(0 in port.shape for port in ports_of_network(network).values()):
            low = middle
        else:
            found, high = {_key(at): network}, middle
        middle = (low + high) // 2
    ready |= found
    return high


def _loaded(load: Load, extents: Extents) -> Imported:
    try:
        return load(extents)
    except FlexcompError as error:
        raise InputError(f"pad: there is no network for {named(extents)}, {error}: leave pad out") from error


def _require_values(values: Mapping[str, int | float], ports: Mapping[str, TensorType]) -> None:
    for name, value in values.items():
        if not _fits(value, ports[name].dtype):
            raise InputError(f"pad: {name!r} is {ports[name].dtype}, and no padding of that type is {value!r}")


def _fits(value: int | float, dtype: str) -> bool:
    """Whether an element of this type has this value, floats as near as they come."""
    if dtype == "bool":
        return value in (0, 1)
    kind = np.dtype("uint16" if dtype == "bfloat16" else dtype)
    if kind.kind in "iu":
        return dtype != "bfloat16" and type(value) is int and np.iinfo(kind).min <= value <= np.iinfo(kind).max
    return abs(value) <= float(np.finfo(kind).max)


def _told_apart(seen: Sequence[Extents]) -> int:
    """How many names these extents tell from each other, and from extents that are always the same."""
    columns = {tuple(extents[name] for extents in seen) for name in seen[0]}
    return sum(len(set(column)) > 1 for column in columns)


@dataclass(frozen=True)
class _Exact:
    """A network without padding."""

    shapes: Mapping[str, tuple[int, ...]]  # of outputs
    inputs: Sequence[Mapping[str, np.ndarray]]
    outputs: Sequence[Mapping[str, np.ndarray]]


def _exact(program: Program, padding: Padding, session: Session) -> _Exact:
    """Its outputs for random inputs of all rows that there are."""
    own, inputs = session.shapes[0], list(_drawn(program, padding))
    outputs = [session.run(*(given[port.name] for port in own.inputs)) for given in inputs]
    return _Exact({port.name: port.shape for port in own.outputs}, inputs, outputs)


def _drawn(program: Program, padding: Padding) -> Iterator[dict[str, np.ndarray]]:
    """Random inputs: on both sides of what padding holds, above it, and below it, for reductions that the next inputs would
    hide. Whole numbers are such that padding does not hold, or, in the first inputs, any: but the first along a padded axis is
    no padding, for inputs that are padding from their beginning on have no meaning, as a mask of nothing.
    """
    rng = np.random.default_rng(_SEED)
    for side in (0, 1, -1):
        drawn = {}
        for index, port in enumerate(program.inputs):
            kind = np.dtype("uint16" if port.type.dtype == "bfloat16" else port.type.dtype)
            value = padding.values.get(port.name)
            if kind.kind == "f":
                array = rng.standard_normal(port.type.shape)
                drawn[port.name] = (value + side * np.abs(array) if side and value is not None else array).astype(kind)
                continue
            low, high = (0, 1) if kind.kind == "b" else _bounds(program, index)
            choices = [one for one in range(low, min(high, low + 255) + 1) if one != value]
            array = rng.choice(np.array(choices or [low]), port.type.shape)
            if not side and value is not None and low <= value <= high:
                holes = rng.random(port.type.shape) < 0.25
                for axis, of in enumerate(padding.inputs[port.name]):
                    if of is not None:
                        np.moveaxis(holes, axis, 0)[0] = False
                array[holes] = value
            drawn[port.name] = array.astype(kind)
        yield drawn


def _bounds(program: Program, index: int) -> tuple[int, int]:
    """Of the whole numbers of an input, those that its layers take; without a word of theirs 0 and 1."""
    value = program.inputs[index].value
    args = [arg for layer in program.layers for arg in layer.args if isinstance(arg, ValueArg) and arg.value == value]
    said = [bound for arg in args for bound in arg.bounds]
    if not said:
        return 0, 1
    low = max(0, *(one for one, _ in said))
    return low, max(low, min(one for _, one in said) - 1)


def _whole(array: np.ndarray, shape: tuple[int, ...], value: float | None) -> np.ndarray:
    """An input as large as a shape: kernels compute all rows."""
    if array.shape == shape:
        return array
    whole = np.full(shape, value, array.dtype)
    whole[tuple(map(slice, array.shape))] = array
    return whole


def _cut(whole: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return whole[tuple(map(slice, shape))]


def _unseen(wanted: Sequence[Mapping[str, Any]]) -> str | None:
    """An output that shows nothing."""
    return next((name for name in wanted[0] if not any(tells(each[name]) for each in wanted)), None)


def _refusal(wanted: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]], what: str) -> InputError | None:
    """What says which output moves; None if none does."""
    for name in wanted[0]:
        moved = [_moved(padded[name], each[name]) for padded, each in zip(found, wanted, strict=True)]
        if max(moved) > MOST_MOVED:
            return InputError(
                f'pad: the output "{name}" moves by {max(moved):.1e} of its largest element when {what}: declare the shapes '
                "that you need, without pad, or give the network a mask as an input that is padded, too"
            )
    return None


def _which_moves(wanted: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]) -> str | None:
    """The first output that is another one."""
    pairs = list(zip(found, wanted, strict=True))
    return next((name for name in wanted[0] if max(_moved(one[name], each[name]) for one, each in pairs) > MOST_MOVED), None)


def _moved(found: np.ndarray, wanted: np.ndarray) -> float:
    """By how much of the largest number; what is no number stays none."""
    if found.shape != wanted.shape:
        return float("inf")
    if not is_float(wanted):
        return difference(found, wanted)
    numbers = np.isfinite(wanted.astype(np.float64))
    if not np.array_equal(found[~numbers], wanted[~numbers], equal_nan=True):
        return float("inf")
    return difference(found[numbers], wanted[numbers])
