"""Processes that tests run in: one that crashes or hangs is seen, and replaced."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from tests.conformance.verdict import Outcome, Verdict

# What tests need, imported once for all processes: that takes longer than most tests.
_IMPORTED = ["flexcomp.compiler.builder", "tests.joint", "tests.conformance.verdict"]
LIMIT_S = 120.0  # a test takes a tenth of a second; machines that run tests are busy

_Test = TypeVar("_Test")


def run(
    tests: Iterable[_Test], judge: Callable[[_Test], Any], jobs: int, limit_s: float = LIMIT_S
) -> Iterator[tuple[_Test, Any]]:
    """Let `judge` run tests in `jobs` processes; results come in the order in which they end.

    A test is whatever `judge` takes. The result is its answer, or a Verdict for a process that crashed or hung.
    """
    remaining = iter(tests)
    workers = [_Worker(judge) for _ in range(jobs)]
    try:
        while True:
            for worker in workers:
                if worker.case is None and (case := next(remaining, None)) is not None:
                    worker.give(case, limit_s)
            busy = {worker.pipe: worker for worker in workers if worker.case is not None}
            if not busy:
                return
            left = min(worker.deadline for worker in busy.values()) - time.monotonic()
            ready = wait(list(busy), timeout=max(left, 0))
            for pipe, worker in busy.items():
                if pipe in ready or worker.deadline <= time.monotonic():
                    yield worker.take(pipe in ready)
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """A process that runs one test at a time."""

    def __init__(self, judge: Callable[[Any], Any]):
        self.judge = judge
        self.case: Any = None
        self.deadline = 0.0
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_IMPORTED)
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.judge), daemon=True)
        self.process.start()
        theirs.close()  # so that the end of the process is the end of the pipe

    def give(self, case: Any, limit_s: float) -> None:
        self.pipe.send(case)
        self.case, self.deadline = case, time.monotonic() + limit_s

    def take(self, ready: bool) -> tuple[Any, Any]:
        case, self.case = self.case, None
        if ready:
            try:
                return case, self.pipe.recv()
            except (EOFError, ConnectionError):
                self.process.join()
                reason = f"the process ended with code {self.process.exitcode}"
        else:
            reason = "the time ran out"
        self.stop()
        self._start()
        return case, Verdict(Outcome.CRASHED, reason)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: Connection, judge: Callable[[Any], Any]) -> None:
    """Answer tests with verdicts. What libraries print is not of interest."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, sys.stdout.fileno())
    os.dup2(silent, sys.stderr.fileno())
    while True:
        try:
            case = pipe.recv()
        except EOFError:
            return
        pipe.send(judge(case))
