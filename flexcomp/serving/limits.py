"""How much of a request is read, and how much of all requests and answers is held: larger ones are refused before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio
import numpy as np
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from flexcomp.units import human_bytes

from .answers import BAD, BUSY, ENDING, LATE_BODY, TOO_LARGE, UNSUPPORTED, Refusal, error_answer
from .auth import OPEN_PATHS
from .connection import INTO

_AGAIN_MS = 1e3
_DIGITS = 18  # of a length that anybody could mean
_UNHURRIED_S, _LEAST_RATE = 5.0, 1 << 16  # a body may come more slowly for so long; bytes in a second


class Crowd:
    """Lets requests through to `app` unless the server is `crowded`: then those about its health only."""

    def __init__(self, app: ASGIApp, crowded: Callable[[], bool]) -> None:
        self._app = app
        self._crowded = crowded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS and self._crowded():
            refusal = Refusal(
                ENDING, "too many connections are open", retry_after_ms=_AGAIN_MS, headers={"Connection": "close"}
            )
            await error_answer(refusal, scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)


class Room:
    """The bytes that requests may occupy, all together: bodies, objects made of bodies, and answers until they are sent."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.changing = threading.Lock()  # of `used`
        self.used = 0
        self.shares = 0  # requests that may hold some

    @contextmanager
    def share(self) -> Iterator[Share]:
        """A share that grows as is asked, and is given back at the end."""
        share = Share(self)
        self.shares += 1
        try:
            yield share
        finally:
            self.shares -= 1
            share.hold(0)


class Share:
    """One request's part of a room."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.nbytes = 0

    def hold(self, nbytes: int, what: str = "a body") -> None:
        """Hold `nbytes` in all, for `what`. Raises Refusal where that is too much, or others hold the rest."""
        room = self._room
        if nbytes > room.nbytes:
            raise Refusal(
                TOO_LARGE, f"{what} takes {human_bytes(nbytes)}, more than the {human_bytes(room.nbytes)} of memory for requests"
            )
        with room.changing:
            others = room.used - self.nbytes
            if others + nbytes > room.nbytes:
                raise Refusal(
                    BUSY,
                    f"{what} of {human_bytes(nbytes)} beside {human_bytes(others)} of other requests is more than "
                    f"the {human_bytes(room.nbytes)} that the server holds at once",
                    retry_after_ms=_AGAIN_MS,
                )
            room.used += nbytes - self.nbytes
            self.nbytes = nbytes


async def read_body(scope: Scope, receive: Receive, share: Share, most_nbytes: int, within_s: float) -> bytearray | memoryview:
    """The body, whose bytes count in `share`. Raises Refusal, starlette's ClientDisconnect.

    A length that is above `most_nbytes` is refused before anything is read, a body without a length when that large. A body has
    to arrive in `within_s` seconds, and not much slower than _LEAST_RATE: announced bytes are not available to others.
    """
    headers = Headers(scope=scope)
    if (coding := headers.get("content-encoding", "identity").strip().lower()) not in ("identity", ""):
        raise Refusal(
            UNSUPPORTED, f"a body in {coding[:40]!r} is not supported: send it as it is", headers={"Accept-Encoding": "identity"}
        )
    declared = _length(headers)
    if declared is not None:
        _bound(declared, most_nbytes)
        share.hold(declared)
    read_into = scope["state"].get(INTO, lambda where: None)
    # Which, unlike bytes, arrays may share; one whose length is known is not filled with zeros before.
    body = memoryview(np.empty(declared, "u1")) if declared else bytearray()
    nbytes, more = 0, True
    began = anyio.current_time()
    try:
        with anyio.CancelScope() as reading:
            while more:
                allowed_s = min(within_s, _UNHURRIED_S + nbytes / _LEAST_RATE)
                reading.deadline = began + allowed_s
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                chunk, more = message.get("body", b""), message.get("more_body", False)
                nbytes += message.get("placed", 0)
                end = nbytes + len(chunk)
                if end > share.nbytes:
                    _bound(end, most_nbytes)
                    share.hold(end)
                body[nbytes:end] = chunk
                nbytes = end
                if more and nbytes < len(body):
                    read_into(memoryview(body)[nbytes:])
    finally:
        read_into(None)
    if reading.cancelled_caught:
        words = f"of the body, {nbytes} bytes arrived in {allowed_s:g} seconds"
        raise Refusal(LATE_BODY, words, headers={"Connection": "close"})
    return body


async def until_gone(receive: Receive) -> None:
    """Until the client has closed the connection: after its body, nothing else comes."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _length(headers: Headers) -> int | None:
    text = headers.get("content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS):
        raise Refusal(BAD if len(text) <= _DIGITS else TOO_LARGE, f"Content-Length is {text[:40]!r}")
    return int(text)


def _bound(nbytes: int, most_nbytes: int) -> None:
    if nbytes > most_nbytes:
        raise Refusal(TOO_LARGE, f"a body of {nbytes} bytes is more than the {most_nbytes} that this request may have")
