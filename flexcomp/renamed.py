"""Old names of public options: each works for one more version, with a warning.

    @renamed(device="profile", wait_s=Renamed("wait_ms", milliseconds))
    def connect(*, profile=None, wait_ms=30_000): ...

Commands read their table from `OPTIONS`; `flexcomp-run` has one of its own (`runtime_ext/runner/arguments.cc`). Attributes are
renamed in their class (`flexcomp/deprecated.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from numbers import Real
from typing import Any, ParamSpec, TypeVar

from flexcomp.deprecated import warn
from flexcomp.errors import InputError

_P = ParamSpec("_P")
_T = TypeVar("_T")


def milliseconds(seconds: Any) -> Any:
    """A time in seconds in milliseconds; anything else unchanged, for the check of the new option to refuse."""
    return seconds * 1e3 if isinstance(seconds, Real) and not isinstance(seconds, bool) else seconds


@dataclass(frozen=True)
class Renamed:
    """The new name of an option, and its value for an old one."""

    name: str
    convert: Callable[[Any], Any] = lambda value: value


def renamed(**olds: str | Renamed) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Let a function take keywords under old names. Raises InputError where a call gives both names."""
    table = {old: Renamed(new) if isinstance(new, str) else new for old, new in olds.items()}

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

        @wraps(function)
        def call(*args: _P.args, **given: _P.kwargs) -> _T:
            for old in table.keys() & given.keys():
                new = table[old]
                if new.name in given:
                    raise InputError(f"{name} takes {new.name} or {old}, the old name, not both")
                warn(f"{name}({old}=…)", f"{new.name}=…")
                given[new.name] = new.convert(given.pop(old))
            return function(*args, **given)

        return call

    return decorate


# Options of commands, by the command's words.
_RPC_WAIT = {"--rpc-wait": Renamed("--rpc-wait-ms", milliseconds)}
OPTIONS: dict[str, dict[str, Renamed]] = {
    "build": {"--device": Renamed("--profile")},
    "tune": {"--timeout": Renamed("--timeout-ms", milliseconds)},
    "share": {"--strategy": Renamed("--sharing")},
    "plan": {"-o": Renamed("--picture"), "--output": Renamed("--picture")},
    "serve": {
        "--strategy": Renamed("--sharing"),
        "--deadline": Renamed("--deadline-ms"),
        "--body-timeout": Renamed("--body-timeout-ms", milliseconds),
        "--grace": Renamed("--grace-ms", milliseconds),
    },
    "bench": {"--kernels": Renamed("MODEL")},  # an argument: the word before it goes
    **{f"remote {command}": _RPC_WAIT for command in ("run", "measure", "profile")},
}
