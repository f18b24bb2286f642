"""Python programs, each in a process of its own, forked from one that has imported the compiler: importing takes longer than
most of what they do.

`python -m tests.forked SOCKET` is that process. Each connection is one program: arguments, folder and environment come with
the descriptors 0 to 2; its process number goes back, then its exit status.
`python -S tests/forked.py call ARGS` is `python ARGS` for a shell, run in the process that FLEXCOMP_TESTS_FORKED names.
"""

from __future__ import annotations

import json
import os
import socket
import sys

SOCKET = "FLEXCOMP_TESTS_FORKED"
_MOST = 1 << 20  # bytes of a request
# Typer imports its adapters when a command begins.
_IMPORTED = ("flexcomp.cli.app", "flexcomp.compiler.builder", "typer._adapters", "rich.emoji", "zoneinfo", *(
    f"flexcomp.serving.{name}" for name in ("app", "server", "metrics", "logs")
))  # fmt: skip


class Process:
    """A program that runs; after its end `returncode` is its status, negative after a signal."""

    def __init__(
        self, server: str, args: list[str], stdio: tuple[int, int, int], folder: str, environment: dict[str, str],
        new_session: bool = False,
    ) -> None:  # fmt: skip
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST)
        self._connection.connect(server)
        request = json.dumps([args, folder, environment, new_session])
        socket.send_fds(self._connection, [request.encode()], list(stdio))
        self.returncode: int | None = None
        self.pid = int(self._connection.recv(64))

    def poll(self) -> int | None:
        """`returncode`, None while it runs."""
        try:
            return self.wait(0)
        except (BlockingIOError, TimeoutError):
            return None

    def wait(self, timeout: float | None = None) -> int:
        """`returncode` after its end. Raises TimeoutError."""
        if self.returncode is None:
            self._connection.settimeout(timeout)
            self.returncode = int(self._connection.recv(64))
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def _serve(path: str) -> None:
    """Until the end of stdin."""
    import gc
    import select
    from importlib import import_module

    for name in _IMPORTED:
        import_module(name)
    _make_commands_once()
    gc.freeze()  # what is not looked at is not copied
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(16)
    os.write(1, b"ready\n")
    running = set()
    while True:
        ready, _, _ = select.select([listener, 0], [], [])
        if 0 in ready:
            return None
        connection, _ = listener.accept()
        child = os.fork()
        if child == 0:
            listener.close()
            return _answer(connection)
        connection.close()
        running.add(child)
        running -= {other for other in running if os.waitpid(other, os.WNOHANG)[0]}


def _make_commands_once() -> None:
    """Typer makes all commands of their signatures at each start, for most of the time of a short one."""
    import functools

    import typer.main

    from flexcomp.cli.app import app

    typer.main.get_command = functools.cache(typer.main.get_command)
    typer.main.get_command(app)


def _answer(connection: socket.socket) -> None:
    """Returns in the process of the program, when that has ended."""
    message, descriptors, _, _ = socket.recv_fds(connection, _MOST, 3)
    args, folder, environment, new_session = json.loads(message)
    child = os.fork()
    if child == 0:
        connection.close()
        if new_session:
            os.setsid()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        return _become(*args)
    for descriptor in descriptors:
        os.close(descriptor)
    try:
        connection.send(str(child).encode())
        _, status = os.waitpid(child, 0)
        connection.send(str(os.waitstatus_to_exitcode(status)).encode())
    finally:
        os._exit(0)


def _become(kind: str, what: str, *args: str) -> None:
    """As `python -m MODULE ARGS` or `python -c TEXT ARGS`, but for what the interpreter tears down in its end, all that was
    imported: that takes longer than most programs."""
    import atexit
    import threading

    sys.argv = [what if kind == "-m" else kind, *args]
    status = 0
    try:
        if kind == "-m":
            import runpy

            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as ended:
        if ended.code is not None and not isinstance(ended.code, int):
            raise
        status = ended.code or 0
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status & 0xFF)


if __name__ == "__main__":
    if sys.argv[1] == "call":
        status = Process(os.environ[SOCKET], sys.argv[2:], (0, 1, 2), os.getcwd(), dict(os.environ)).wait()
        sys.exit(128 - status if status < 0 else status)
    _serve(sys.argv[1])
