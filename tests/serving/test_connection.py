"""What a connection bounds before any application sees it, and how answers are waited for."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
import zlib
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import pytest
import uvloop

from flexcomp.serving.connection import INTO, MOST_BESIDE_NBYTES, MOST_HEADERS, SENT, Server
from flexcomp.serving.connections import Connections
from flexcomp.serving.exchange import Exchange
from flexcomp.serving.limits import Room, read_body
from flexcomp.serving.logs import Log
from tests.serving.servers import answer_on, status_of

_IDLE_S = 1
_LARGE = 64 << 20


class Application:
    """Says how many headers and bytes it was given, as a number; `/large` is answered with much."""

    def __init__(self) -> None:
        self.begun = 0
        self.unsent = 0

    async def __call__(self, scope, receive, send) -> None:
        self.begun += 1
        if scope["path"] == "/into":
            with Room(1 << 24).share() as share:
                body = await read_body(scope, receive, share, 1 << 24, 10)
            await self._answer(scope, send, b"%d %d" % (len(body), zlib.crc32(body)))
            return
        if scope["path"] == "/half":
            declared = int(dict(scope["headers"])[b"content-length"])
            body = bytearray(declared - len((await receive())["body"]))
            scope["state"][INTO](memoryview(body))
            placed = (await receive())["placed"]
            scope["state"][INTO](None)
            await self._answer(scope, send, b"half" if 0 < placed < len(body) else b"%d" % placed)
            return
        nbytes, message = 0, {"more_body": True}
        while message["more_body"]:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            nbytes += len(message["body"])
        if scope["path"] == "/slow":
            await asyncio.sleep(0.3)
        text = b"a" * _LARGE if scope["path"] == "/large" else b"%d %d" % (len(scope["headers"]), nbytes)
        await self._answer(scope, send, text)

    async def _answer(self, scope, send, text: bytes) -> None:
        sent = scope["state"][SENT]()
        await send(
            {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]}
        )
        self.unsent += 1
        await send({"type": "http.response.body", "body": text})
        await sent(0.5)
        self.unsent -= 1


@pytest.fixture(scope="module")
def application():
    return Application()


@pytest.fixture(scope="module")
def address(application):
    listening = socket.create_server(("127.0.0.1", 0))
    ends = threading.Event()

    async def serve() -> None:
        connections = Connections(idle_s=_IDLE_S, head_s=_IDLE_S, taken_s=_IDLE_S)
        await asyncio.get_running_loop().create_server(Server(application, connections, Log()).connect, sock=listening)
        while not ends.is_set():
            await asyncio.sleep(0.01)
        await connections.end(10)

    thread = threading.Thread(target=lambda: uvloop.run(serve()))
    thread.start()
    yield listening.getsockname()
    ends.set()
    thread.join(30)


@pytest.fixture
def connection(address):
    with socket.create_connection(address, timeout=20) as connected:
        yield connected


def said(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


def ends(connection: socket.socket) -> bool:
    """Whether nothing else comes."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_head_may_be_so_long_and_no_longer(address):
    for spare, status in ((1000, 200), (-100, 431)):
        with socket.create_connection(address, timeout=20) as connection:
            long = b"a" * (MOST_BESIDE_NBYTES - spare)
            connection.sendall(b"GET / HTTP/1.1\r\nX-Long: " + long)
            if status == 200:
                connection.sendall(b"\r\n\r\n")
            assert status_of(answer_on(connection)) == status


def test_a_head_has_so_many_headers(address):
    for count in (MOST_HEADERS, MOST_HEADERS + 1):
        with socket.create_connection(address, timeout=20) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\n" + b"a:\r\n" * count + b"\r\n")
            answer = answer_on(connection)
            if count == MOST_HEADERS:
                assert said(answer) == b"%d 0" % MOST_HEADERS
            else:
                assert status_of(answer) == 431 and b"More than 128 headers" in answer and ends(connection)


@pytest.mark.parametrize("begin", [b"", b"GET / HTTP/1.1\r\nHost:", b"\r\n\r\n"])
def test_a_head_that_does_not_come_is_not_waited_for(connection, begin):
    began = time.monotonic()
    connection.sendall(begin)
    while not ends(connection):
        pass
    assert 0.5 * _IDLE_S < time.monotonic() - began < 10 * _IDLE_S


def test_of_requests_in_advance_none_is_begun(connection, application):
    before = application.begun
    connection.sendall(b"POST /slow HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc" + b"GET /x HTTP/1.1\r\n\r\n" * 10_000)
    answer = answer_on(connection)
    assert status_of(answer) == 200 and said(answer) == b"1 3" and b"connection: close" in answer and ends(connection)
    assert application.begun == before + 1


def test_nonsense_in_advance_does_not_harm_the_answer_before_it(connection):
    connection.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
    time.sleep(0.1)
    connection.sendall(b"\0" * 100_000)
    assert status_of(answer_on(connection)) == 200 and ends(connection)


def test_one_after_the_other_is_answered(connection):
    for _ in range(3):
        connection.sendall(b"POST / HTTP/1.1\r\nContent-Length: 200000\r\n\r\n" + b"a" * 200_000)
        assert said(answer_on(connection)) == b"1 200000"


def test_a_body_arrives_whole_wherever_it_is_read_to(connection):
    for size, piece in ((0, 1), (1, 1), (70_000, 999), (600_000, 65_536), (5_000_000, 1_000_001)):
        body = random.Random(size).randbytes(size)
        connection.sendall(b"POST /into HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size)
        for begin in range(0, size, piece):
            connection.sendall(body[begin : begin + piece])
        assert said(answer_on(connection)) == b"%d %d" % (size, zlib.crc32(body))


def test_one_that_nobody_wants_any_more_is_read_to_its_end(connection):
    for _ in range(3):
        connection.sendall(b"POST /half HTTP/1.1\r\nContent-Length: 3000000\r\n\r\n" + b"a" * 500_000)
        time.sleep(0.1)
        connection.sendall(b"a" * 500_000)
        assert said(answer_on(connection)) == b"half"
        connection.sendall(b"a" * 2_000_000 + b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert said(answer_on(connection)) == b"1 0"


def test_trailers_are_no_headers(connection):
    connection.sendall(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Late: a\r\nTimeout: b\r\n\r\n")
    assert said(answer_on(connection)) == b"1 3"
    connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert said(answer_on(connection)) == b"1 0"


@pytest.mark.parametrize("frame", [b"1;x=", b"0\r\nX-Late: "])
def test_what_stands_between_chunks_comes_to_an_end(connection, frame):
    connection.sendall(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + frame)
    with suppress(ConnectionResetError, BrokenPipeError):
        connection.sendall(b"a" * (2 * MOST_BESIDE_NBYTES))  # of what came with the head not all counts
    assert status_of(answer_on(connection)) == 400 and ends(connection)


def test_nothing_else_is_spoken(connection):
    connection.sendall(b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nwhatever")
    answer = answer_on(connection)
    assert status_of(answer) == 200 and b"connection: close" in answer and ends(connection)


def test_a_head_goes_with_what_follows_it():
    writes = []
    carrier = SimpleNamespace(
        write=writes.append, resume_reading=lambda: None, answered=lambda: None, drained=partial(asyncio.sleep, 0)
    )

    async def application(scope, receive, send) -> None:
        assert (await receive())["body"] == b"abc"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]})
        await send({"type": "http.response.body", "body": b"body", "more_body": True})
        await send({"type": "http.response.body", "body": b"more"})

    exchange = Exchange(carrier, "GET", keep_alive=True, expects=True, log=Log())
    exchange.came(b"abc", more=False)
    asyncio.run(exchange.run(application, {}))
    (asked,), (head, body), (more,) = writes
    assert asked.startswith(b"HTTP/1.1 100 ") and head.startswith(b"HTTP/1.1 200 ") and (body, more) == (b"body", b"more")


def test_a_head_without_a_body_is_sent(connection):
    connection.sendall(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert connection.recv(1 << 16).endswith(b"content-length: 3\r\n\r\n")
    connection.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    assert said(answer_on(connection)) == b"1 0"


def test_another_version_of_http(connection):
    connection.sendall(b"GET / HTTP/0.9\r\n\r\n")
    assert status_of(answer_on(connection)) == 400 and ends(connection)


def test_an_answer_that_is_not_taken_is_given_up(address, application):
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        until = time.monotonic() + 10
        while application.unsent == 0 and time.monotonic() < until:
            time.sleep(0.01)
        assert application.unsent == 1
        while application.unsent and time.monotonic() < until:
            time.sleep(0.01)
        assert application.unsent == 0


def test_one_that_is_taken_in_time_is_whole(connection):
    connection.sendall(b"GET /large HTTP/1.1\r\n\r\n")
    nbytes = 0
    while nbytes < _LARGE:
        received = len(connection.recv(1 << 20))
        assert received > 0
        nbytes += received
