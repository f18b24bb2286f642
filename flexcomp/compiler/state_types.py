"""`build(state_type=…)`: in which element type states lie in memory."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import tvm

from flexcomp.device import CompileTarget
from flexcomp.errors import InputError
from flexcomp.frontend import Imported, node_of
from flexcomp.passes import StateSlot
from flexcomp.passes.ir import dtype, num_inputs
from flexcomp.passes.narrow_states import Reader

from .known import STATE_TYPES
from .shapes import DeclaredShape

_EVERY = "*"
_WILD = "*?["
_log = logging.getLogger(__name__)


def checked_state_types(given: Any) -> dict[str, str]:
    """Types by patterns of states' inputs; a type alone is for all. Raises InputError for anything else."""
    wish = {} if given is None else dict(given) if isinstance(given, Mapping) else {_EVERY: given}
    for pattern, kind in wish.items():
        if not isinstance(pattern, str) or not isinstance(kind, str) or kind not in STATE_TYPES:
            where = "" if pattern == _EVERY else f"[{pattern!r}]"
            raise InputError(f"state_type{where} must be one of {', '.join(STATE_TYPES)}, not {kind!r}")
    return wish


def require_alike(mods: Sequence[tvm.IRModule], networks: Sequence[Imported], shapes: Sequence[DeclaredShape]) -> None:
    """Raise InputError where a state has another type in one of several shapes."""
    types = ([dtype(param) for param in mod["main"].params[: num_inputs(mod["main"])]] for mod in mods)
    for name, *given in zip(networks[0].input_names, *types, strict=True):
        for kind, at in zip(given, shapes, strict=True):
            if kind != given[0]:
                raise InputError(
                    f'state_type: the state "{name}" is {given[0]} for {shapes[0]}, and {kind} for {at}, where more than '
                    f"attention reads it: leave it out, state_type={{…, {name!r}: 'float32'}}"
                )


class StateTypes:
    """The wish for the states of a network, and what became of it.

    `state` are inputs by output. A state that the network has in float16 stays so where the target widens it.
    """

    def __init__(self, wish: Mapping[str, str], imported: Imported, state: Mapping[str, str], target: CompileTarget) -> None:
        self._wish, self._imported = dict(wish), imported
        self._names: dict[int, str] = {}
        self._reasons: dict[str, str] = {}
        if target.gpu and set(wish.values()) - {"float32"}:
            raise InputError(f"state_type: a GPU computes ({target}), whose kernels read states in float32: leave it out")
        if "float16" in wish.values() and not target.converts_float16:
            raise InputError(f"state_type='float16': the target cannot widen float16 (x86 needs F16C): {target}")
        if wish and not state:
            raise InputError("state_type is for states, and the network has none: name its caches by state=, or leave it out")
        for pattern in wish:
            if not any(fnmatchcase(read, pattern) for read in state.values()):
                raise InputError(f"state_type: no state is called {pattern!r}; there are {', '.join(state.values())}")
        self.slots: list[StateSlot] = []
        params = imported.mod["main"].params
        for made, read in state.items():
            at, wanted = imported.input_names.index(read), self._of(read)
            own = dtype(params[at])
            if made == read:
                if wanted not in ("float32", own):
                    self.slots.append(StateSlot(at, None, wanted))
                    self._names[at] = read
                continue
            kind = wanted if wanted != "float32" else own
            if kind in STATE_TYPES[1:] and not target.gpu and (kind != "float16" or target.converts_float16):
                self.slots.append(StateSlot(at, imported.output_names.index(made), kind))
                self._names[at] = read

    def refused(self, slot: StateSlot, reader: Reader) -> None:
        """Note that a state stays as it is."""
        if isinstance(reader, int):
            output = self._imported.output_names[reader]
            named = self._imported.output_nodes.get(output)
            node = f"output {output!r}" if named is None else f"node {named!r}"
        else:
            node = node_of(reader or "")
        self._reasons[self._names[slot.read]] = f"is read by {node}" if node else "is no cache that attention alone reads"

    def require_granted(self) -> None:
        """Warn of states that stay as they are; InputError for one that is asked for by its name."""
        refused = {name: reason for name, reason in self._reasons.items() if self._of(name) != "float32"}
        for name, reason in refused.items():
            pattern = next(one for one in reversed(self._wish) if fnmatchcase(name, one))
            if not any(sign in pattern for sign in _WILD):
                raise InputError(
                    f"state_type: {name!r} {reason}, and cannot be {self._of(name)}: only caches of keys and values that nothing "
                    "but attention reads can; leave it out"
                )
        if refused:
            listed = "; ".join(f"{name!r} {reason}" for name, reason in refused.items())
            _log.warning("state_type: these states keep their type: %s", listed)

    def _of(self, name: str) -> str:
        """The type that is asked for; the last pattern counts."""
        return next((kind for pattern, kind in reversed(self._wish.items()) if fnmatchcase(name, pattern)), "float32")
