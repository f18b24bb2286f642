"""Options of a session: one checked object for `load`, pools and devices behind RPC."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

from flexcomp.arguments import checked_flag
from flexcomp.errors import InputError
from flexcomp.renamed import renamed

from .ports import listed

_NATIVE = {"work_stealing": "help"}  # names of the runtime, where they differ
Cpus = int | str | Iterable[int]  # 3, "4-7" or (4, 5)

_hooks: ContextVar[Mapping[str, Any]] = ContextVar("hooks", default={})  # noqa: B039, nobody changes it


@contextmanager
def hooked(**hooks: Any) -> Iterator[None]:
    """Sessions that this thread opens meanwhile have further options of the runtime, which are for tests."""
    before = _hooks.set(hooks)
    try:
        yield
    finally:
        _hooks.reset(before)


@dataclass(frozen=True)
class LoadOptions:
    """How a session reads weights and places threads; see `load`."""

    verify: bool = False
    direct: bool = True
    read_bandwidth: float | None = None  # bytes per second; None: as fast as the storage
    compute_cpus: Cpus | None = None
    loader_cpu: Cpus | None = None
    affinity: bool = True
    work_stealing: bool = True
    trace: bool = False

    def __post_init__(self) -> None:
        for name in ("verify", "direct", "affinity", "work_stealing", "trace"):
            checked_flag(getattr(self, name), name)
        rate = self.read_bandwidth
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, Real) or not 0 <= rate < math.inf):
            raise InputError(f"read_bandwidth must be a number of bytes per second, not {rate!r}")
        object.__setattr__(self, "read_bandwidth", None if rate is None else float(rate))
        for name in ("compute_cpus", "loader_cpu"):
            object.__setattr__(self, name, _cpus(getattr(self, name), name))

    def to_json(self, **more: Any) -> str:
        """The text that the runtime reads, with the further options `more`."""
        given = {field.name: getattr(self, field.name) for field in fields(self) if getattr(self, field.name) != field.default}
        changed = {_NATIVE.get(name, name): value for name, value in given.items()}
        return json.dumps({**changed, **more, **_hooks.get()})


def options_of(given: Mapping[str, Any]) -> LoadOptions:
    """The options that a caller gave by name. Raises InputError for others than `load` has, and for wrong values."""
    known = [field.name for field in fields(LoadOptions)]
    if unknown := [name for name in given if name not in (*known, "help")]:
        raise InputError(f"load has no option {listed(unknown)}; there are {listed(known)}")
    return _made(**given)


@renamed(help="work_stealing")
def _made(**given: Any) -> LoadOptions:
    return LoadOptions(**given)


def _cpus(given: Any, name: str) -> Any:
    """Cores in the form of JSON."""
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, Integral) and not isinstance(given, bool):
        return int(given)
    if isinstance(given, Iterable) and not isinstance(given, bytes):
        cpus = list(given)
        if all(isinstance(cpu, Integral) and not isinstance(cpu, bool) for cpu in cpus):
            return [int(cpu) for cpu in cpus]
    raise InputError(f'{name} must be a core, several, or a list such as "4-7", not {given!r}')
