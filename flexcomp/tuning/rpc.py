"""Measuring on a device, or on several of an RPC tracker at a time.

A thread for each device opens a session, uploads the data once, and then measures one trial after the
other; the library brings flexcomp's runtime along, so that a stock TVM server will do. A thread takes a trial only
when it has a session. If the session breaks, the trial goes back to the queue, for another device or the same one once
the tracker has it again; a trial that broke several sessions has failed. One that does not answer in time has failed
too; its thread is back when the server ends the session.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexcomp.errors import DeviceError, InputError, TuningError
from flexcomp.remote import open_direct, open_tracker, tracked_devices
from flexcomp.tuning.clock import seconds_of_call
from flexcomp.tuning.local import Measurement
from flexcomp.tuning.trial import TrialLibrary
from flexcomp.tuning.workers import one_line

_MOST_SESSIONS = 3  # that one trial may break
_SESSION_S = 600  # after which a server ends any session
_RENEW_S = _SESSION_S / 2
_RETRY_S = 0.5  # between attempts to get a session


@dataclass
class _Job:
    index: int
    library: TrialLibrary
    sessions_broken: int = 0
    started: float | None = None  # time.monotonic(), while a device works
    over: bool = False  # its outcome is known


@dataclass(frozen=True)
class Address:
    """One RPC server, or all devices that a tracker knows under a key."""

    server: str | None  # "host:port"
    tracker: str | None
    key: str  # of the server, or at the tracker
    wait_s: float  # for a device that is busy

    def __str__(self) -> str:
        return self.server or self.key

    def count(self) -> int:
        """The number of devices. Raises InputError for a wrong address, and TuningError if there is no device."""
        try:
            if self.server is not None:
                open_direct(self.server, self.key, self.wait_s)._sess.get_function("CloseRPCConnection")()
                return 1
            found = len(tracked_devices(self.tracker, self.key))
        except DeviceError as error:
            raise TuningError(str(error)) from error
        if not found:
            unknown = f'the tracker at {self.tracker} knows no device with the key "{self.key}"'
            raise TuningError(f"{unknown}: start an RPC server there")
        return found

    def open(self) -> Any:
        """A `tvm.rpc.RPCSession` with a device."""
        if self.server is not None:
            return open_direct(self.server, self.key, self.wait_s)
        return open_tracker(self.tracker).request(self.key, session_timeout=_SESSION_S, max_retry=1)


def address_of(server: str | None, tracker: str | None, key: str | None, wait_s: float) -> Address | None:
    """The devices that the arguments name; None: this machine. Raises InputError unless they name one server or key."""
    if (server, tracker, key) == (None, None, None):
        return None
    if (server is None) == (tracker is None):
        raise InputError("give either the address of an RPC server or a tracker")
    if tracker is not None and not key:
        raise InputError("a tracker and a key go together")
    return Address(server, tracker, key or "", wait_s)


class RemoteDevices:
    """The devices of an address when the tuner starts."""

    def __init__(self, address: Address, data: Path, threads: int, timeout_s: float) -> None:
        self._address, self._data = address, data
        self._threads, self._timeout_s = threads, timeout_s
        self.count = address.count()
        self._jobs: queue.Queue[_Job] = queue.Queue()
        self._outcomes: queue.Queue[tuple[_Job, Measurement]] = queue.Queue()
        self._closing = threading.Event()
        self._last_loss = "no session with any device"
        self._connected: set[int] = set()  # threads with a session
        for number in range(self.count):
            threading.Thread(target=self._serve, args=(number,), daemon=True, name=f"tuning-device-{number}").start()

    def measure(self, libraries: Sequence[TrialLibrary]) -> Iterator[tuple[int, Measurement]]:
        """Measure on all devices, in any order. Raises TuningError if none is left."""
        jobs = [_Job(index, library) for index, library in enumerate(libraries)]
        for job in jobs:
            self._jobs.put(job)
        alone_since = time.monotonic()  # no device was seen since
        while any(not job.over for job in jobs):
            try:
                job, measurement = self._outcomes.get(timeout=_RETRY_S)
            except queue.Empty:
                for job in jobs:
                    if not job.over and job.started and time.monotonic() - job.started > self._timeout_s:
                        job.over = True
                        yield job.index, self._failed(f"no answer within {self._timeout_s:g} s")
                if self._connected:
                    alone_since = time.monotonic()
                elif time.monotonic() - alone_since > self._address.wait_s:
                    raise TuningError(
                        f'no device "{self._address}" is left ({self._last_loss}); measurements until then are kept'
                    ) from None
                continue
            if job in jobs and not job.over:
                job.over = True
                yield job.index, measurement

    def close(self) -> None:
        self._closing.set()

    def _failed(self, error: str) -> Measurement:
        return Measurement(f"rpc:{self._address}", error=error)

    def _serve(self, number: int) -> None:
        while not self._closing.is_set():
            try:
                session = self._address.open()
                session.upload(str(self._data))
            except Exception as error:  # devices and networks fail in every way
                self._last_loss = one_line(error)
                time.sleep(_RETRY_S)
                continue
            self._connected.add(number)
            try:
                self._work(session)
            finally:
                self._connected.discard(number)

    def _work(self, session) -> None:
        """Measure trials until the session breaks, or is old."""
        opened = time.monotonic()
        while not self._closing.is_set() and time.monotonic() - opened < _RENEW_S:
            try:
                job = self._jobs.get(timeout=_RETRY_S)
            except queue.Empty:
                continue
            if job.over:
                continue
            job.started = time.monotonic()
            try:
                self._outcomes.put((job, Measurement(f"rpc:{self._address}", self._seconds(session, job.library))))
            except Exception as error:  # a kernel's error and a lost device arrive alike
                if _alive(session):
                    self._outcomes.put((job, self._failed(one_line(error))))
                    continue
                self._last_loss = one_line(error)
                self._return(job)
                return

    def _return(self, job: _Job) -> None:
        job.started = None
        job.sessions_broken += 1
        if job.sessions_broken >= _MOST_SESSIONS:
            self._outcomes.put((job, self._failed(f"{_MOST_SESSIONS} sessions broke: {self._last_loss}")))
        else:
            self._jobs.put(job)

    def _seconds(self, session, library: TrialLibrary) -> float:
        name = Path(library.path).name
        session.upload(library.path)
        try:
            data = str(session.get_function("tvm.rpc.server.workpath")(self._data.name))
            return seconds_of_call(session.load_module(name), data, library.calls, self._threads)
        finally:
            session.remove(name)


def _alive(session) -> bool:
    try:
        session.get_function("tvm.rpc.server.workpath")("")
    except Exception:  # after any error the session is useless
        return False
    return True
