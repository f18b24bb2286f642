"""Clients that nobody knows yet: heads that are never complete, and connections that ask nothing.

    python -m tests.serving.crowd a.so --heads 5000 --idle 2000

serves the library with a token, opens that many, and says by how much the server's resident memory grew, and how long health took
to be answered meanwhile. The exit status is 1 above 8 MiB, or a second.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.serving.servers import Server

TOKEN = "s" * 32
MOST_NBYTES = 8 << 20
_HEAD = b"GET / HTTP/1.1\r\n" + b"".join(b"h%d: %s\r\n" % (index, b"a" * 500) for index in range(120))
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


def crowd(server: Server, heads: int, idle: int) -> Seen:
    """Open so many connections of each kind, mixed, and keep them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, heads + idle + 256)), hard))
    for _ in range(20):
        healthy_after_s(server)
    before = resident_nbytes(server)
    grew, slowest = 0, 0.0
    total, begun = heads + idle, 0
    with ExitStack() as held:
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
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return Seen(grew, resident_nbytes(server) - before, slowest)


def main() -> None:
    from tests.serving.servers import Server

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=Path)
    parser.add_argument("--budget", default="200MB")
    parser.add_argument("--heads", type=int, default=5000)
    parser.add_argument("--idle", type=int, default=2000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder) / "token"
        token.write_text(TOKEN)
        with Server(asked.library, "--budget", asked.budget, "--token-file", token, token=TOKEN) as server:
            print(f"idle: {resident_nbytes(server) / 2**20:.1f} MiB")
            seen = crowd(server, asked.heads, asked.idle)
    print(
        f"{asked.heads} heads of {len(_HEAD) / 1000:.0f} kB that are not complete, {asked.idle} idle connections: "
        f"{seen.grew_nbytes / 2**20:.2f} MiB more, {seen.left_nbytes / 2**20:.2f} when they have gone; "
        f"health after {1e3 * seen.slowest_s:.0f} ms at most"
    )
    sys.exit(seen.grew_nbytes > MOST_NBYTES or seen.slowest_s > 1)


if __name__ == "__main__":
    main()
