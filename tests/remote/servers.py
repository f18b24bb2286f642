"""RPC servers and trackers for tests, on this machine and under an emulator."""

from __future__ import annotations

import fcntl
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tvm.rpc.tracker import Tracker

from flexcomp.remote import tracked_devices
from flexcomp.remote.server import SERVER

COMPILER, EMULATOR, SYSROOT = "aarch64-linux-gnu-g++", "qemu-aarch64", "/usr/aarch64-linux-gnu"
KEY = "board"
_START_S = 240.0

emulated = pytest.mark.skipif(
    shutil.which(COMPILER) is None or shutil.which(EMULATOR) is None,
    reason=f"needs {COMPILER} and {EMULATOR}: apt-get install g++-aarch64-linux-gnu qemu-user",
)


@contextmanager
def running_tracker(port: int | None = None) -> Iterator[str]:
    """The address of a tracker, on any port or the one given."""
    with _alone():
        tracker = Tracker(host="127.0.0.1", port=port or 9190, port_end=port + 1 if port else 9890, silent=True)
    try:
        yield f"127.0.0.1:{tracker.port}"
    finally:
        tracker.terminate()


@contextmanager
def python_servers(tracker: str, count: int = 1, key: str = KEY) -> Iterator[list[subprocess.Popen]]:
    """TVM's own servers, each with its child processes in a group of its own."""
    command = [sys.executable, "-m", "tvm.exec.rpc_server", "--host", "127.0.0.1", "--tracker", tracker, "--key", key]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    running = []
    try:
        for _ in range(count):
            known = len(tracked_devices(tracker, key))
            with _alone():
                running.append(subprocess.Popen(command, **quiet, start_new_session=True))
                wait_until_registered(tracker, key, known + 1)
        yield running
    finally:
        for server in running:
            kill(server)
            server.wait()


@contextmanager
def own_server(folder: Path, *options: str, prefix: Sequence[str] = ()) -> Iterator[tuple[subprocess.Popen, str]]:
    """Our server from its package in `folder`, on any free port, and its address."""
    command = [*prefix, f"./{SERVER}", "--host", "127.0.0.1", "--port", "0", *options]
    with open(folder / "errors", "w") as errors:
        server = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
    try:
        first = _first_line(server)
        assert first.startswith("listening on "), (first, (folder / "errors").read_text())
        yield server, first.removeprefix("listening on ").strip()
    finally:
        server.terminate()  # it removes its sessions' files
        with suppress(subprocess.TimeoutExpired):
            server.wait(10)
        kill(server)
        server.wait()
        server.stdout.close()


@contextmanager
def _alone() -> Iterator[None]:
    """TVM's trackers and servers that start at once both bind the first free port, and one of them dies.

    So they start one after the other, in whatever process of this user's tests.
    """
    with open(Path(tempfile.gettempdir()) / f"flexcomp-tests-{os.getuid()}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def wait_until_registered(tracker: str, key: str, count: int) -> None:
    deadline = time.monotonic() + _START_S
    while (known := len(tracked_devices(tracker, key))) < count:
        assert time.monotonic() < deadline, f"only {known} RPC servers came up"
        time.sleep(0.2)


def kill(server: subprocess.Popen) -> None:
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)


def _first_line(server: subprocess.Popen) -> str:
    """The first line of output; the others are read and forgotten, so that the server never waits for a reader."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        with suppress(ValueError):  # closed in the end
            for line in iter(server.stdout.readline, ""):
                lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True).start()
    return lines.get(timeout=_START_S)
