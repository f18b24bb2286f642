"""All connections of a server: how many there may be, for how long each may wait, and the bytes of their heads.

A connection that waits for its client costs memory and a file, and nobody has said yet who the client is. So there is one bound
for all of them together, and where one more comes the connection that has waited for longest is closed.
"""

from __future__ import annotations

import asyncio
import resource
from collections import OrderedDict
from enum import Enum
from typing import Protocol

from .memory import give_back_freed_memory

MOST = 512  # that are open at once
SPARE = 64  # more, where all others are at work: for answers about health, and 503
MOST_HEADS_NBYTES = 1 << 20  # of all requests together, complete or not
MOST_UNSENT_NBYTES = 1 << 21  # of all answers together that clients do not take, without those that requests have room for
_OTHER_FILES = 96  # of the process: its own, and of each model a few
_MANY = 64  # connections that leave memory worth giving back


class Wait(Enum):
    """The event that a connection waits for."""

    REQUEST = 0  # the first byte of one
    HEAD = 1  # the rest of one, or of a body that nobody wants
    TAKEN = 2  # that the client takes its answer


class Waiting(Protocol):
    """A connection, as far as this file needs it."""

    wait: Wait | None
    head_nbytes: int

    def end(self) -> None: ...
    def abort(self) -> None: ...


class Connections:
    """Those of one server, which are told to end; and the requests in progress on them."""

    def __init__(self, most: int = MOST, idle_s: float = 30.0, head_s: float = 10.0, taken_s: float = 30.0) -> None:
        self.tasks: set[asyncio.Task] = set()
        self.ending = False
        self._most = most
        self._open: set[Waiting] = set()
        self._limits = {Wait.REQUEST: idle_s, Wait.HEAD: head_s, Wait.TAKEN: taken_s}
        self._waiting: dict[Wait, OrderedDict[Waiting, float]] = {wait: OrderedDict() for wait in Wait}  # since when
        self._heads_nbytes = 0
        self._unsent: OrderedDict[Waiting, int] = OrderedDict()  # bytes
        self._unsent_nbytes = 0
        self._peak = 0  # how many there were since memory was given back
        self._sweeping: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def crowded(self) -> bool:
        """Whether there are more than there may be, and all of them at work."""
        return len(self._open) > self._most

    def came(self, connection: Waiting) -> None:
        """One more, which waits for a request. In its place another may be closed, or itself."""
        if len(self._open) >= self._most and not self._close_oldest(Wait.REQUEST, Wait.HEAD):
            self._close_oldest(Wait.TAKEN)
        self._open.add(connection)
        self._peak = max(self._peak, len(self._open))
        if len(self._open) > self._most + SPARE or self.ending:
            self._drop(connection)
            return
        self.waits(connection, Wait.REQUEST)
        if self._sweeping is None:
            self._sweep()

    def went(self, connection: Waiting) -> None:
        """The connection is closed."""
        self.works(connection)
        self.release_head(connection)
        self._open.discard(connection)

    def waits(self, connection: Waiting, wait: Wait) -> None:
        """From now on, for this."""
        self.works(connection)
        connection.wait = wait
        self._waiting[wait][connection] = asyncio.get_running_loop().time()

    def works(self, connection: Waiting) -> None:
        """The connection does not wait for its client any more."""
        if connection.wait is not None:
            del self._waiting[connection.wait][connection]
            connection.wait = None
            self.release_unsent(connection)

    def hold_head(self, connection: Waiting, nbytes: int) -> None:
        """So many bytes more of a head came. Others that are not complete may be closed, or itself."""
        connection.head_nbytes += nbytes
        self._heads_nbytes += nbytes
        while self._heads_nbytes > MOST_HEADS_NBYTES and self._close_oldest(Wait.HEAD):
            pass

    def release_head(self, connection: Waiting) -> None:
        """Its request is answered."""
        self._heads_nbytes -= connection.head_nbytes
        connection.head_nbytes = 0

    def hold_unsent(self, connection: Waiting, nbytes: int) -> None:
        """So many bytes of its answer wait for the client. Others that wait for theirs may be closed, or itself."""
        self._unsent[connection] = nbytes
        self._unsent_nbytes += nbytes
        while self._unsent_nbytes > MOST_UNSENT_NBYTES:
            self._drop(next(iter(self._unsent)))

    def release_unsent(self, connection: Waiting) -> None:
        """The client took its answer."""
        self._unsent_nbytes -= self._unsent.pop(connection, 0)

    async def end(self, within_s: float) -> None:
        """Close those that wait, and the others after their answers; unanswered requests are then cancelled."""
        self.ending = True
        for connection in list(self._open):
            connection.end()
        if not await self._gone(within_s):
            for task in self.tasks:
                task.cancel()
            await self._gone(1.0)  # time to say so
        for connection in list(self._open):
            self._drop(connection)
        if self._sweeping is not None:
            self._sweeping.cancel()

    async def _gone(self, within_s: float) -> bool:
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        while (self._open or self.tasks) and loop.time() < until:
            await asyncio.sleep(0.01)
        return not (self._open or self.tasks)

    def _close_oldest(self, *waits: Wait) -> bool:
        """That has waited for one of these for longest; False if none does."""
        oldest = [(since, connection) for wait in waits for connection, since in _first(self._waiting[wait])]
        if oldest:
            self._drop(min(oldest, key=lambda one: one[0])[1])
        return bool(oldest)

    def _drop(self, connection: Waiting) -> None:
        self.went(connection)
        connection.abort()

    def _sweep(self) -> None:
        """Close connections that have waited for too long, and give back memory that a crowd has left."""
        loop = asyncio.get_running_loop()
        for wait, limit_s in self._limits.items():
            while any(loop.time() - since > limit_s for _, since in _first(self._waiting[wait])):
                self._close_oldest(wait)
        if self._peak > _MANY and len(self._open) < self._peak // 4:
            self._peak = len(self._open)
            give_back_freed_memory()
        self._sweeping = loop.call_later(min(1.0, *self._limits.values()) / 2, self._sweep) if self._open else None


def _first(waiting: OrderedDict[Waiting, float]) -> list[tuple[Waiting, float]]:
    """The one that came first, if there is one."""
    for one in waiting.items():
        return [one]
    return []


def affordable(backlog: int) -> int:
    """How many connections the process has files for, MOST at the most. Raises the process's limit of files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST + SPARE + backlog + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return max(8, min(MOST, soft - SPARE - _OTHER_FILES))
    return MOST
