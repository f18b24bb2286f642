"""Inputs to calibrate with: given ones, or seeded random ones."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from flexcomp.errors import InputError
from flexcomp.program import Port

Inputs = Mapping[str, np.ndarray]
Given = Inputs | Sequence[Inputs] | str | os.PathLike[str] | None
_SEED, _COUNT = 0, 2


def read_inputs(given: Given) -> list[Inputs] | None:
    """One set of inputs by name, several, or a file that numpy.savez wrote, as sets; None for random ones.

    Raises InputError for anything else.
    """
    if given is None:
        return None
    if isinstance(given, str | os.PathLike):
        given = _read(Path(given))
    sets = [given] if isinstance(given, Mapping) else list(given) if isinstance(given, Iterable) else []
    if not sets or not all(isinstance(one, Mapping) for one in sets):
        raise InputError("calibration inputs are a dict of arrays by input name, several of them, or a .npz file")
    return sets


def inputs_of(sets: Sequence[Inputs] | None, ports: Sequence[Port]) -> list[Inputs]:
    """Inputs for a network: arrays of a set may have one axis more than the inputs, in front, and are then so many sets.

    Raises InputError if they do not fit the network. Element types are looked at by the session that they are given to.
    """
    if sets is None:
        rng = np.random.default_rng(_SEED)
        return [{port.name: _random(rng, port) for port in ports} for _ in range(_COUNT)]
    return [each for one in sets for each in _separate(one, ports)]


def fits(one: Inputs, ports: Sequence[Port]) -> bool:
    """Whether `inputs_of` takes this set."""
    try:
        _separate(one, ports)
    except InputError:
        return False
    return True


def _random(rng: np.random.Generator, port: Port) -> np.ndarray:
    kind = port.type.dtype
    if "float" in kind:
        return rng.standard_normal(port.type.shape, dtype=np.float32).astype(kind)
    return rng.integers(0, 2, port.type.shape).astype(kind)


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        file = np.load(path, allow_pickle=False)
        inputs = None
        if isinstance(file, np.lib.npyio.NpzFile):
            with file:
                inputs = dict(file)
    except OSError as error:
        raise InputError(f"cannot read calibration inputs from {path}: {error.strerror or error}") from None
    except (ValueError, EOFError, BadZipFile):  # whose words are about unpickling
        raise InputError(f"{path} is no .npz file of numbers, or it is damaged: write it with numpy.savez") from None
    if inputs is None:
        raise InputError(f"{path} holds one array, not inputs by name: write it with numpy.savez")
    return inputs


def _separate(one: Inputs, ports: Sequence[Port]) -> list[Inputs]:
    names = {port.name for port in ports}
    if set(one) != names:
        found, wanted = (", ".join(sorted(map(repr, some))) for some in (one, names))
        raise InputError(f"calibration inputs are called {found}; the network's {wanted}")
    arrays = {name: np.asarray(array) for name, array in one.items()}
    counts = set()
    for port in ports:
        found, wanted = arrays[port.name].shape, port.type.shape
        if found == wanted:
            counts.add(None)
        elif found[1:] == wanted and found[0]:
            counts.add(found[0])
        else:
            raise InputError(
                f"calibration input {port.name!r} has shape {found}: the network takes {wanted}, or several of these"
            )
    if len(counts) > 1:
        raise InputError("calibration inputs are not equally many of every name")
    (count,) = counts or {None}
    sets = [arrays] if count is None else [{name: array[i] for name, array in arrays.items()} for i in range(count)]
    return [{name: np.ascontiguousarray(array) for name, array in each.items()} for each in sets]
