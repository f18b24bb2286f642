"""Calls of Python programs, each in a process forked from one that has imported the compiler (tests/forked.py)."""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from tests.forked import SOCKET, Process

_ROOT = Path(__file__).parents[2]
_COMMAND = _ROOT / "tests" / "docs" / "forked"  # the folder of `flexcomp` for shells


def call(*args: str | Path) -> subprocess.CompletedProcess[str]:
    """`flexcomp ARGS…` with the working directory and the environment that this process has at that moment."""
    return run("-m", "flexcomp", *args)


def run(*args: str | Path, **options) -> subprocess.CompletedProcess[str]:
    """`python ARGS…`, where these begin with `-m MODULE` or `-c TEXT`; options are those of `start`."""
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        status = start(*args, stdout=out, stderr=err, **options).wait()
        for file in (out, err):  # whose places the program has moved
            file.seek(0)
        return subprocess.CompletedProcess(list(map(str, args)), status, out.read().decode(), err.read().decode())


def start(
    *args: str | Path, stdout: IO | int, stderr: IO | int, cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None, start_new_session: bool = False,
) -> Process:  # fmt: skip
    """Begin `python ARGS…` without input; options are those of subprocess.Popen."""
    with open(os.devnull) as nothing:
        stdio = tuple(one if isinstance(one, int) else one.fileno() for one in (nothing, stdout, stderr))
        environment = dict(os.environ if env is None else env) | {SOCKET: _server()}
        return Process(_server(), list(map(str, args)), stdio, str(cwd or os.getcwd()), environment, start_new_session)


def environment_of_shells() -> dict[str, str]:
    """In which `flexcomp` is called as by `call`."""
    return {**os.environ, "PATH": f"{_COMMAND}{os.pathsep}{os.environ['PATH']}", SOCKET: _server()}


@functools.cache
def _server() -> str:
    """The socket of this process's server, which ends with it."""
    folder = tempfile.TemporaryDirectory(prefix="flexcomp-tests-")
    path = f"{folder.name}/socket"
    command = [sys.executable, "-m", "tests.forked", path]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT)
    assert server.stdout.readline() == b"ready\n"

    def end() -> None:
        server.stdin.close()
        server.wait()
        folder.cleanup()

    atexit.register(end)
    return path
