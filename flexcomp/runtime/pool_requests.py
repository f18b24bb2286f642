"""Requests of a pool whose answers are waited for elsewhere, as futures.

A signal's handler may raise between any two instructions here, and memory may end in any of them. So nothing is locked: the
runtime keeps a request, done or not, until told to forget it; an interrupted caller forgets its request.
"""

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

from flexcomp.errors import ExecutionError, RefusedError

from .library import function, translated
from .ports import TensorInfo, named_outputs

_log = logging.getLogger(__name__)
_GONE, _DONE = 0, 2  # the runtime's answers to a request, as in runtime_ext/pool/pool_module.cc


class ModelGoneError(Exception):
    """There is no model of this number in the pool any more."""


class PoolFuture(Future):
    """The outputs of a request, by name; `await` works, too. `cancel` ends the request, also while it runs."""

    def __init__(self, take_out: Callable[[], bool]) -> None:
        super().__init__()
        self._take_out = take_out
        self.wait_ms: float | None = None  # in the queue, of a request that was run

    def cancel(self) -> bool:
        """Whether nobody gets the outputs."""
        return (not self.done() and self._take_out() and super().cancel()) or self.cancelled()

    def note_cancelled(self) -> None:
        """Tell waiters for several futures. By the collector, once."""
        super().cancel()  # if only in the runtime so far
        self.set_running_or_notify_cancel()

    def __await__(self) -> Generator[Any, None, dict[str, np.ndarray]]:
        return asyncio.wrap_future(self).__await__()


@dataclass(frozen=True)
class _Begun:
    """A request that is to be collected."""

    future: PoolFuture
    outputs: tuple[TensorInfo, ...]
    results: list[np.ndarray]


class Collector:
    """Gives futures their outputs, in a thread that ends when the pool is closed. The pool itself is not kept alive."""

    def __init__(self, pool: tvm_ffi.Module) -> None:
        names = ("ticket", "wait", "cancel", "forget", "collect")
        self._ticket, self._wait, self._cancel, self._forget, self._collect = (function(pool, name) for name in names)
        self._begun: dict[int, _Begun] = {}
        self._thread = threading.Thread(target=self._main, name="flexcomp-pool", daemon=True)

    def start(self) -> None:
        """Begin to collect. Raises ExecutionError where the system refuses a thread."""
        try:
            self._thread.start()
        except RuntimeError as error:
            raise ExecutionError(f"the system refuses a thread: {error}") from None

    def begin(
        self, submit: Callable[[int], int | str], outputs: tuple[TensorInfo, ...], results: list[np.ndarray]
    ) -> PoolFuture:
        """The future of the request that `submit` makes of a ticket. Raises RefusedError, ModelGoneError."""
        ticket = self._ticket()
        begun = _Begun(PoolFuture(lambda: self._take_out(ticket)), outputs, results)
        try:
            self._begun[ticket] = begun  # first: the request could be done at once
            if accepted(submit(ticket)) == _DONE:  # nobody else collects this one
                self._deliver(ticket)
        except BaseException:
            self._drop(ticket)
            raise
        return begun.future

    def join(self) -> None:
        """Wait for the thread, once the pool is closed."""
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _take_out(self, ticket: int) -> bool:
        with translated():
            return bool(self._cancel(ticket))

    def _drop(self, ticket: int) -> None:
        self._begun.pop(ticket, None)
        self._forget(ticket)

    def _main(self) -> None:
        while True:
            try:
                if not (ticket := self._collect()):
                    return
                self._deliver(ticket)
            except BaseException:  # of a callback, or no memory: nobody else's future is to suffer
                _log.exception("a callback of a request failed")

    def _deliver(self, ticket: int) -> None:
        begun = self._begun.get(ticket)
        try:
            if begun is not None:
                self._give(ticket, begun)
        except BaseException as error:
            if not begun.future.done():  # not even its error could be told
                begun.future.set_exception(error)
            raise
        finally:
            self._drop(ticket)

    def _give(self, ticket: int, begun: _Begun) -> None:
        future = begun.future
        try:
            with translated():
                future.wait_ms = accepted(self._wait(ticket))
            outputs = None if future.wait_ms is None else named_outputs(begun.outputs, begun.results)
        except Exception as error:
            future.set_exception(error)
            return
        if outputs is None:
            future.note_cancelled()
        else:
            future.set_result(outputs)


def accepted(answer: float | str | None) -> float | None:
    """The runtime's answer, unless that is a refusal. Raises RefusedError, ModelGoneError."""
    if isinstance(answer, str):
        refused = json.loads(answer)
        raise RefusedError(refused["message"], refused["reason"], 1e3 * refused["retry_after_s"])
    if answer == _GONE and isinstance(answer, int):
        raise ModelGoneError
    return answer
