"""One request and its answer, as an ASGI application sees them."""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from time import time
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Scope

from .answers import FAULT, Refusal, ending, error_answer
from .logs import Log

_STATUS_LINES = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n".encode() for one in HTTPStatus}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Carrier(Protocol):
    """The connection as an exchange uses it."""

    def write(self, parts: list[bytes]) -> None: ...
    def resume_reading(self) -> None: ...
    async def drained(self) -> None: ...
    def answered(self) -> None: ...
    def abort(self) -> None: ...


class Exchange:
    """From the head of a request to the end of its answer."""

    def __init__(self, carrier: Carrier, method: str, keep_alive: bool, expects: bool, log: Log) -> None:
        self.keep_alive = keep_alive
        self.complete = False  # the answer is
        self._carrier = carrier
        self._is_head = method == "HEAD"
        self._expects = expects  # to be asked for the body
        self._log = log
        self._event = asyncio.Event()  # there is something to receive
        self._gone = False  # the client is
        self._body = bytearray()  # read, but not received yet by the application
        self._placed_nbytes = 0  # the same, of bytes read in place
        self._more_body = True
        self._head: bytes | None = None  # of the answer, until something follows: two packets would wake the client twice
        self._started = False

    @property
    def is_received(self) -> bool:
        """Whether the whole body came."""
        return not self._more_body

    @property
    def is_started(self) -> bool:
        """Whether some of the answer is there."""
        return self._started

    @property
    def held_nbytes(self) -> int:
        """Of the body, received by nobody yet."""
        return len(self._body)

    def came(self, data: memoryview | bytes, more: bool) -> None:
        """Some of the body; the last of it, unless there is `more`."""
        if not self.complete:
            self._body += data
            self._more_body = more
            self._event.set()

    def placed(self, nbytes: int) -> None:
        """Some of the body was read in place."""
        self._placed_nbytes += nbytes

    def say(self) -> None:
        """Wake the application, if waiting for more."""
        self._event.set()

    def lost(self) -> None:
        """The client has gone."""
        self._gone = True
        self._event.set()

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        """Have the request answered, by the application or with a fault."""
        fault = Refusal(FAULT, "the server failed; its log says why")
        try:
            await app(scope, self.receive, self.send)
        except asyncio.CancelledError:  # there is no more time
            fault = ending()
        except Exception:
            self._log.exception("the application failed", path=scope["path"][:200])
        if not (self._started or self._gone):
            self.keep_alive = False
            await error_answer(fault)(scope, self.receive, self.send)
        elif not (self.complete or self._gone):
            self._carrier.abort()

    async def receive(self) -> Message:
        """The next part of the body. `placed` counts the bytes read in place (`Connection.read_into`)."""
        if self._expects:
            self._expects = False
            self._carrier.write([_CONTINUE])
        if not self._gone and not self.complete:
            self._carrier.resume_reading()
            await self._event.wait()
            self._event.clear()
        if self._gone or self.complete:
            return {"type": "http.disconnect"}
        body, self._body = self._body, bytearray()
        placed, self._placed_nbytes = self._placed_nbytes, 0
        return {"type": "http.request", "body": body, "more_body": self._more_body, "placed": placed}

    async def send(self, message: Message) -> None:
        """A part of the answer. One without a length ends with the connection."""
        if self._gone or self.complete:
            return
        if message["type"] == "http.response.start":
            self._expects, self._started = False, True
            self._head = self._head_of(message["status"], message["headers"])
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        parts = [part for part in (self._head, b"" if self._is_head else body) if part]
        self._head = None
        if parts:
            self._carrier.write(parts)
        if more:
            await self._carrier.drained()
        else:
            self.complete = True
            self._event.set()
            self._carrier.answered()

    def _head_of(self, status: int, headers: Any) -> bytes:
        names = {name.lower(): value for name, value in headers}
        if b"content-length" not in names or names.get(b"connection", b"").lower() == b"close":
            self.keep_alive = False
        return answer_head(status, headers, self.keep_alive)


def answer_head(status: int, headers: Any, keep_alive: bool) -> bytes:
    """The head of an answer."""
    lines = [b"%b: %b\r\n" % (name, value) for name, value in headers if name.lower() != b"connection"]
    closing = b"" if keep_alive else b"connection: close\r\n"
    return b"".join([_STATUS_LINES[status], _date(int(time())), *lines, closing, b"\r\n"])


@lru_cache(1)
def _date(now: int) -> bytes:
    return f"date: {formatdate(now, usegmt=True)}\r\n".encode()
