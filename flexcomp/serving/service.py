"""What all requests of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from flexcomp.runtime import Pool

from .answers import BUSY, Refusal, ending
from .language import LanguageModel
from .limits import Room
from .logs import Log
from .metrics import Metrics
from .models import Models

_T = TypeVar("_T")
_MOST_READ = 256  # requests that wait for the thread that reads them: with more, each of them would hold memory for a refusal
_AGAIN_MS = 1e3


class Reading(asyncio.Lock):
    """Long JSON and prompts are read, and long answers written, one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0

    async def acquire(self) -> bool:
        """As of any lock."""
        self.waiting += 1
        try:
            return await super().acquire()
        finally:
            self.waiting -= 1


@dataclass
class Service:
    """Shared by all requests."""

    pool: Pool
    models: Models
    room: Room
    metrics: Metrics
    log: Log
    within_s: float  # for a body to arrive in, and for an answer to be taken
    reader: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "flexcomp-json"))  # of long JSON
    reading: Reading = field(default_factory=Reading)
    ending: bool = False  # set once: nothing more is begun
    languages: Mapping[str, LanguageModel] = field(default_factory=dict)  # decoders, by name
    crowded: Callable[[], bool] = lambda: False  # there are more connections than there may be: the server's, when it runs

    def require_open(self) -> None:
        """Raise Refusal where the server is ending."""
        if self.ending:
            raise ending()

    def require_reader(self) -> None:
        """Raise Refusal where too many requests wait to be read already."""
        if self.reading.waiting >= _MOST_READ:
            raise Refusal(BUSY, f"{self.reading.waiting} requests wait to be read already", retry_after_ms=_AGAIN_MS)

    def in_thread(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """The result of `work`, which the thread for long JSON does. For holders of `reading`."""
        return asyncio.get_running_loop().run_in_executor(self.reader, work)
