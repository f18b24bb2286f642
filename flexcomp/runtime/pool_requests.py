"""Requests of a pool whose answers are waited for elsewhere, as futures."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm_ffi

from flexcomp.errors import RefusedError

from .library import function, translated
from .ports import TensorInfo, named_outputs

_log = logging.getLogger(__name__)


class PoolFuture(Future):
    """The outputs of a request, by name; `await` works, too. `cancel` takes it out of the queue if it has not begun."""

    def __init__(self, cancel: Callable[[], bool]) -> None:
        super().__init__()
        self._take_out = cancel
        self.wait_ms: float | None = None  # in the queue, of a request that was run

    def cancel(self) -> bool:
        """Whether the request is not run."""
        if not self.cancelled() and self._take_out() and super().cancel():
            self.set_running_or_notify_cancel()  # for whoever waits for several futures
        return self.cancelled()

    def __await__(self) -> Generator[Any, None, dict[str, np.ndarray]]:
        return asyncio.wrap_future(self).__await__()


@dataclass(frozen=True)
class _Begun:
    """A request that is to be collected."""

    future: PoolFuture
    outputs: tuple[TensorInfo, ...]
    results: list[np.ndarray]


class Collector:
    """Gives futures their outputs, in a thread that ends when the pool is closed. It does not keep the pool itself."""

    def __init__(self, pool: tvm_ffi.Module) -> None:
        self._wait, self._cancel, self._collect = (function(pool, name) for name in ("wait", "cancel", "collect"))
        self._begun: dict[int, _Begun] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def begin(
        self, submit: Callable[[], dict[str, Any]], outputs: tuple[TensorInfo, ...], results: list[np.ndarray]
    ) -> PoolFuture:
        """The future of the request that `submit` makes."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._main, name="flexcomp-pool", daemon=True)
                thread.start()
                self._thread = thread
            submitted = submit()  # not before the lock is taken: it could be done at once
            number = submitted["id"]
            begun = _Begun(PoolFuture(lambda: self._take_out(number)), outputs, results)
            if not submitted["done"]:
                self._begun[number] = begun
        if submitted["done"]:  # nobody else collects it
            begun.future.set_running_or_notify_cancel()
            self._give(number, begun)
        return begun.future

    def finish(self, number: int) -> dict[str, Any]:
        """What the runtime says of a request when it is done. Raises what it raised."""
        with translated():
            answer = self._wait(number)
        return accepted(json.loads(answer))

    def join(self) -> None:
        """Wait for the thread, once the pool is closed."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _take_out(self, number: int) -> bool:
        with translated():
            taken = bool(self._cancel(number))
        if taken:
            with self._lock:
                self._begun.pop(number, None)
        return taken

    def _main(self) -> None:
        while number := self._collect():
            with self._lock:
                begun = self._begun.pop(number)
            if not begun.future.set_running_or_notify_cancel():
                continue
            try:
                self._give(number, begun)
            except BaseException:  # of a callback: nobody else's future is to suffer
                _log.exception("a callback of a request failed")

    def _give(self, number: int, begun: _Begun) -> None:
        try:
            begun.future.wait_ms = self.finish(number)["wait_ms"]
            outputs = named_outputs(begun.outputs, begun.results)
        except Exception as error:
            begun.future.set_exception(error)
        else:
            begun.future.set_result(outputs)


def accepted(answer: dict[str, Any]) -> dict[str, Any]:
    """What the runtime answers, unless it refuses the request. Raises RefusedError."""
    if refused := answer.get("refused"):
        raise RefusedError(refused["message"], refused["reason"], refused["retry_after_s"])
    return answer
