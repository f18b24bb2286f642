"""Budgets that follow the system: a control group's limit, memory pressure, or a function of the caller's."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from flexcomp.errors import BudgetError, InputError

PRESSURE = Path("/proc/pressure/memory")
CGROUPS = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60  # version 1 writes a number just below 2^63 for none
MARGIN = 1.05  # a budget grows only if this much more than its need is allowed
_log = logging.getLogger(__name__)


class Watched(Protocol):
    """The session as a watch uses it; a `flexcomp.Session` is one."""

    ladder: Sequence[Any]  # ascending; each has its `budget_bytes`
    closed: bool

    @property
    def budget(self) -> int:
        """The one in use, in bytes."""
        ...

    def set_budget(self, budget: int) -> Any:
        """Use the largest plan within `budget` bytes. Raises BudgetError."""
        ...

    def resident_arena(self) -> int:
        """Bytes of the arena that are in memory."""
        ...


class Source(Protocol):
    """Where the allowed bytes come from."""

    def allowed(self, session: Watched) -> int | None:
        """Bytes that the network may take now; None: no change."""
        ...


class ControlGroup:
    """The limit of a memory control group, version 1 or 2, less other memory of the group.

    `folder` is the group's; its ancestors' limits count too, up to `root`. From `memory.high` on the system slows a group
    down and takes memory away: that is a limit, too. Page cache that can be dropped counts as free.
    """

    _FILES = (  # limits, usage, name of the droppable page cache in memory.stat
        (("memory.max", "memory.high"), "memory.current", "inactive_file"),
        (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
    )

    def __init__(self, folder: str | Path, root: Path = CGROUPS) -> None:
        folder = Path(folder)
        inside = [parent for parent in folder.parents if parent != root and root in parent.parents]
        self._groups = []
        for group in (folder, *inside):
            self._groups += [(group, *files) for files in self._FILES if (group / files[0][0]).is_file()]
        if not self._groups:
            raise InputError(
                f"{folder} is no memory control group: it has neither memory.max nor memory.limit_in_bytes"
            )

    @classmethod
    def own(cls, table: Path = Path("/proc/self/cgroup"), root: Path = CGROUPS) -> ControlGroup:
        """The group of this process. Raises InputError where there is none with a limit."""
        found = None
        for line in table.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                found = root / "memory" / path.lstrip("/")
            elif not controllers and found is None:
                found = root / path.lstrip("/")
        if found is None:
            raise InputError("this process is in no memory control group")
        return cls(found, root)

    def allowed(self, session: Watched) -> int:
        """The tightest of the limits."""
        # Only the arena's resident part is in the usage: counting all would make room that is not there. The arena is read
        # first: pages touched meanwhile then count as somebody else's, not as free.
        arena = session.resident_arena()
        return min(self._left(*group, arena) for group in self._groups)

    def _left(self, group: Path, limit_names: Sequence[str], usage_name: str, droppable: str, arena: int) -> int:
        limits = [(group / name).read_text().strip() for name in limit_names if (group / name).is_file()]
        limit = min(int(text) if text != "max" else _NO_LIMIT for text in limits)
        if limit >= _NO_LIMIT:
            return _NO_LIMIT
        others = 0
        if (group / usage_name).is_file():
            stat = group / "memory.stat"
            table = dict(line.split()[:2] for line in stat.read_text().splitlines()) if stat.is_file() else {}
            used = int((group / usage_name).read_text()) - int(table.get(droppable, 0))
            others = max(0, used - arena)
        return limit - others


class Pressure:
    """Memory pressure of the whole system (PSI): one budget down while tasks wait for memory, up while none does.

    `high` and `low` are percentages of the last ten seconds in which some task waited.
    """

    def __init__(self, path: str | Path = PRESSURE, high: float = 10.0, low: float = 1.0) -> None:
        self.path, self.high, self.low = Path(path), high, low
        if not self.path.is_file():
            raise InputError(f"this system does not report memory pressure: there is no {path}")

    def allowed(self, session: Watched) -> int | None:
        """The neighbouring budget in the direction in which the pressure points."""
        waiting = self._waiting()
        budgets, now = [rung.budget_bytes for rung in session.ladder], session.budget
        if waiting >= self.high:
            return max((budget for budget in budgets if budget < now), default=now)
        if waiting <= self.low:
            return int(min((budget for budget in budgets if budget > now), default=now) * MARGIN) + 1
        return None

    def _waiting(self) -> float:
        for line in self.path.read_text().splitlines():
            kind, *fields = line.split()
            values = dict(field.split("=") for field in fields)
            if kind == "some":
                return float(values["avg10"])
        raise InputError(f"{self.path} does not look like pressure information")


class Callback:
    """The result of a function: bytes, or None for no change."""

    def __init__(self, function: Callable[[], int | None]) -> None:
        self.function = function

    def allowed(self, session: Watched) -> int | None:
        """The function's result."""
        return self.function()


class Hysteresis:
    """Down at once; up only after a larger budget has fitted with a margin for a while."""

    def __init__(self, budgets: Sequence[int], patience_s: float) -> None:
        self.budgets, self.patience_s = sorted(budgets), patience_s
        self._fits_since: float | None = None

    def next(self, now_used: int, allowed: int, at_s: float) -> int:
        """The budget to use from now on."""
        fits = max((budget for budget in self.budgets if budget <= allowed), default=self.budgets[0])
        if fits < now_used:
            self._fits_since = None
            return fits
        roomy = max((budget for budget in self.budgets if budget * MARGIN <= allowed), default=now_used)
        if roomy <= now_used:
            self._fits_since = None
            return now_used
        if self._fits_since is None:
            self._fits_since = at_s
        return roomy if at_s - self._fits_since >= self.patience_s else now_used

    def start_again(self) -> None:
        """Let whatever fits have to fit for a while once more."""
        self._fits_since = None


@dataclass(frozen=True)
class _Budget:
    budget_bytes: int


class _Bounded:
    """A watched session with a bound on its budget."""

    def __init__(self, watched: Watched, most: int) -> None:
        self._watched, self._most = watched, _Budget(most)

    @property
    def ladder(self) -> Sequence[Any]:
        return (*(rung for rung in self._watched.ladder if rung.budget_bytes < self._most.budget_bytes), self._most)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._watched, name)


class Watch:
    """A thread that sets a session's budget. Made by `Session.watch`; stopped by `stop` or at the end of `with`."""

    def __init__(self, session: Watched, source: Source, interval_s: float, patience_s: float, most: int | None = None) -> None:
        self._session, self._source, self._interval_s = session if most is None else _Bounded(session, most), source, interval_s
        self._hysteresis = Hysteresis([], patience_s)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._main, name="flexcomp-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Leave the budget unchanged from now on. Stopping twice is harmless."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _main(self) -> None:
        complained = False
        while not self._stopped.is_set():
            try:
                self._follow()
                complained = False
            except BaseException as error:  # a function may raise anything, SystemExit too, and may do better the next time
                if self._session.closed:
                    return
                if not complained:
                    _log.warning("the budget stays as it is: %s", str(error) or type(error).__name__)
                complained = True
            self._stopped.wait(self._interval_s)

    def _follow(self) -> None:
        allowed = self._source.allowed(self._session)
        if allowed is None:
            return
        self._hysteresis.budgets = sorted(rung.budget_bytes for rung in self._session.ladder)  # a pool's models change
        if not self._hysteresis.budgets:
            return
        used = self._session.budget
        if (chosen := self._hysteresis.next(used, allowed, time.monotonic())) == used:
            return
        try:
            self._session.set_budget(chosen)
        except BudgetError:
            self._hysteresis.start_again()  # not at once: trying may cost the arena's contents
            raise
        _log.info("%s bytes are allowed: the budget is now %s bytes", allowed, chosen)


def source_of(source: str | Path | Callable[[], int | None] | Source) -> Source:
    """The argument of `Session.watch` as a source. Raises InputError."""
    if hasattr(source, "allowed"):
        return source
    if callable(source):
        return Callback(source)
    if source == "cgroup":
        return ControlGroup.own()
    if source == "pressure":
        return Pressure()
    if isinstance(source, str | Path) and Path(source).is_dir():
        return ControlGroup(source)
    raise InputError(f'watch follows "cgroup", "pressure", a control group\'s folder, or a function, not {source!r}')
