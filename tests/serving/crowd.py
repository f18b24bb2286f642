"""Crowds: heads that are never complete, connections that ask nothing, and clients that ask and hardly read the answers.

    python -m tests.serving.crowd a.so --heads 5000 --idle 2000
    python -m tests.serving.crowd a.so --heads 0 --idle 0 --readers 3000
    python -m tests.serving.crowd chat/model.so --heads 0 --idle 0 --readers 3000       # of streams, if it is a decoder

serves the library with a token, opens that many, and says by how much the server's resident memory grew, and how long health took
to be answered meanwhile. The exit status is 1 above 8 MiB, or a second.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.serving.servers import Server

HOST = "127.0.0.1"
TOKEN = "s" * 32
MOST_NBYTES = 8 << 20
_HEAD = b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: %s\r\n" % (index, b"a" * 500) for index in range(120))
_LONG = f"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
_STREAM = b'{"model": "chat", "prompt": "the cat", "max_tokens": 1000, "temperature": 0, "stream": true}'
_CHAT = (
    f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {len(_STREAM)}\r\n\r\n"
).encode() + _STREAM
_ROUNDS = 3  # in which each reader asks, and every other takes one byte
_HEALTH = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"


@dataclass(frozen=True)
class Seen:
    """What a crowd did to a server."""

    grew_nbytes: int  # at most, over the idle process
    left_nbytes: int  # the same, when all had gone
    slowest_s: float  # until health was answered


def processes(server: Server) -> list[int]:
    """The one that was started, and the one that serves, for which it waits."""
    parent = server.process.pid
    return [parent, *map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())]


def resident_nbytes(server: Server) -> int:
    """Of the process that serves."""
    return 4096 * int(Path(f"/proc/{processes(server)[-1]}/statm").read_text().split()[1])


def healthy_after_s(server: Server) -> float:
    """Until it says so on a new connection."""
    began = time.monotonic()
    with server.connection() as connection:
        connection.sendall(_HEALTH)
        answer = connection.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 200 "), answer
    return time.monotonic() - began


@contextmanager
def _files(count: int) -> Iterator[None]:
    """Let this process have so many more files open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, count + 256)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def crowd(server: Server, heads: int, idle: int) -> Seen:
    """Open so many connections of each kind, mixed, and keep them."""
    for _ in range(20):
        healthy_after_s(server)
    before = resident_nbytes(server)
    grew, slowest = 0, 0.0
    total, begun = heads + idle, 0
    with _files(total), ExitStack() as held:
        for number in range(total):
            connection = held.enter_context(server.connection())
            connection.setblocking(False)
            if begun * total <= number * heads and begun < heads:
                begun += 1
                with suppress(BlockingIOError, ConnectionError):
                    connection.send(_HEAD)
            if number % 100 == 99:
                slowest = max(slowest, healthy_after_s(server))
                grew = max(grew, resident_nbytes(server) - before)
    time.sleep(1.5)
    healthy_after_s(server)
    return Seen(grew, resident_nbytes(server) - before, slowest)


def unread(server: Server, readers: int, request: bytes = _LONG) -> Seen:
    """So many clients, each of which asks again and again for an answer that its system has no room for."""
    for _ in range(20):
        healthy_after_s(server)
        assert server.client.get("/openapi.json").status_code == 200
    for number in range(10 if request is _CHAT else 0):  # more conversations than there are caches for, which the budget holds
        body = {"model": "chat", "prompt": "cat " * (number + 1), "max_tokens": 1000, "temperature": 0}
        assert server.client.post("/v1/completions", json=body).status_code == 200
    before = resident_nbytes(server)
    grew, slowest = 0, 0.0
    with _files(readers), ExitStack() as held:
        there: list[socket.socket] = []
        for turn in range(_ROUNDS):
            for number in range(readers):
                if turn == 0:
                    there.append(held.enter_context(_reader(server)))
                with suppress(BlockingIOError, ConnectionError):
                    there[number].send(request)
                    if number % 2:
                        there[number].recv(1)
                if number % 100 == 99:
                    slowest = max(slowest, healthy_after_s(server))
                    grew = max(grew, resident_nbytes(server) - before)
    time.sleep(1.5)
    healthy_after_s(server)
    return Seen(grew, resident_nbytes(server) - before, slowest)


def burst(server: Server, readers: int) -> int:
    """The server's largest memory over the idle process, bytes, where so many clients ask at once and take nothing."""
    for _ in range(20):
        assert server.client.get("/openapi.json").status_code == 200
    process, before = processes(server)[-1], resident_nbytes(server)
    with _files(readers), ExitStack() as held:
        there = [held.enter_context(_reader(server)) for _ in range(readers)]
        healthy_after_s(server)
        Path(f"/proc/{process}/clear_refs").write_text("5")  # the peak begins anew
        os.kill(process, signal.SIGSTOP)
        for one in there:
            one.send(_LONG)
        os.kill(process, signal.SIGCONT)
        healthy_after_s(server)
        (peak,) = (line.split()[1] for line in Path(f"/proc/{process}/status").read_text().splitlines() if "VmHWM" in line)
    return 1024 * int(peak) - before


def _reader(server: Server) -> socket.socket:
    """A connection of a client whose system takes little at a time."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 100)  # the sender's buffer is small as well
    one.connect((HOST, server.port))
    one.setblocking(False)
    return one


def main() -> None:
    from flexcomp.serving import is_decoder
    from tests.serving.servers import Server

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=Path)
    parser.add_argument("--budget", default="200MB")
    parser.add_argument("--heads", type=int, default=5000)
    parser.add_argument("--idle", type=int, default=2000)
    parser.add_argument("--readers", type=int, default=0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder) / "token"
        token.write_text(TOKEN)
        decodes = is_decoder(asked.library)
        name = "chat" if decodes else asked.library.stem
        command = (f"{name}={asked.library}", "--budget", asked.budget, "--token-file", token)
        with Server(*command, token=TOKEN, is_forked=False) as server:
            print(f"idle: {resident_nbytes(server) / 2**20:.1f} MiB")
            crowds = {}
            if asked.heads or asked.idle:
                words = f"{asked.heads} heads of {len(_HEAD) / 1000:.0f} kB that are not complete, {asked.idle} idle connections"
                crowds[words] = crowd(server, asked.heads, asked.idle)
            if asked.readers:
                crowds[f"{asked.readers} clients that hardly read"] = unread(server, asked.readers, _CHAT if decodes else _LONG)
    for words, seen in crowds.items():
        print(
            f"{words}: {seen.grew_nbytes / 2**20:.2f} MiB more, {seen.left_nbytes / 2**20:.2f} when they have gone; "
            f"health after {1e3 * seen.slowest_s:.0f} ms at most"
        )
    sys.exit(any(seen.grew_nbytes > MOST_NBYTES or seen.slowest_s > 1 for seen in crowds.values()))


if __name__ == "__main__":
    main()
