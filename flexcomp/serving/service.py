"""What all requests of a server share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from flexcomp.runtime import Pool

from .answers import ending
from .language import LanguageModel
from .limits import Room
from .logs import Log
from .metrics import Metrics
from .models import Models

_T = TypeVar("_T")


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
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)  # which is read and written one by one
    ending: bool = False  # set once: nothing more is begun
    languages: Mapping[str, LanguageModel] = field(default_factory=dict)  # decoders, by name
    crowded: Callable[[], bool] = lambda: False  # there are more connections than there may be: the server's, when it runs

    def require_open(self) -> None:
        """Raise Refusal where the server is ending."""
        if self.ending:
            raise ending()

    def in_thread(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """The result of `work`, which the thread for long JSON does. For holders of `reading`."""
        return asyncio.get_running_loop().run_in_executor(self.reader, work)
