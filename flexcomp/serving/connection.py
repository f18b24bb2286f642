"""One connection of HTTP/1.1, with bounds for all bytes of a client outside of bodies.

A head is parsed, by httptools, when complete: until then its bytes count (`connections.py`). A body whose length
is known goes from the system to the application's memory. The parser sees chunks only; between two of them there are so
many bytes and no more, and trailers are left out. Of requests that are sent before the one in progress is answered none is begun:
the connection is closed after the answer, and clients ask again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import unquote

import anyio
import httptools
from starlette.types import ASGIApp, Scope

from .answers import BAD, TOO_LONG_A_HEAD
from .connections import Connections, Wait
from .exchange import Exchange, answer_head
from .logs import Log

MOST_BESIDE_NBYTES = 1 << 16  # in a row outside of the body: request line and headers, trailers, the frames of chunks
MOST_HEADERS = 128  # of a request: each takes more memory than its bytes
SENT = "flexcomp.sent"  # in the state of a request's scope: `Connection.holding`
INTO = "flexcomp.into"  # in the same: `Connection.read_into`
_END = b"\r\n\r\n"  # of a head
_VERSIONS = ("1.0", "1.1")
_READ_NBYTES = 1 << 18  # at a time
_HEAD_NBYTES = 1 << 13  # the same while a head is awaited: body bytes read with a head are copied
_HELD_NBYTES = 1 << 16  # of a body that nobody receives; reading stops there
_SAID_AFTER_S = 0.25  # of a body read in place: the application is not woken for each part


class _Refused(Exception):
    """Raised through the parser: the bytes after this are not looked at."""


class Server:
    """Shared by all connections of a server."""

    def __init__(self, app: ASGIApp, connections: Connections, log: Log) -> None:
        self.app = app
        self.connections = connections
        self.log = log
        self.buffer = bytearray(_READ_NBYTES)  # connections read into this, one after the other
        self.view = memoryview(self.buffer)

    def connect(self) -> Connection:
        """A new one: the factory of an event loop's server."""
        return Connection(self)


class Connection(asyncio.BufferedProtocol):
    """Reads requests, one after the other, and writes answers."""

    def __init__(self, server: Server) -> None:
        self.wait: Wait | None = None
        self.head_nbytes = 0  # of the request whose head is coming or which is in progress, as `Connections` counts them
        self._server = server
        self._transport: Any = None
        self._exchange: Exchange | None = None  # in progress
        self._head: bytearray | None = None  # the part received so far
        self._left_nbytes = 0  # of a body whose length is known
        self._into: memoryview | None = None  # where these are wanted
        self._chunks: httptools.HttpRequestParser | None = None  # of a body without a length
        self._beside_nbytes = 0  # of these, since the last byte of the body
        self._saying: asyncio.TimerHandle | None = None  # will tell the application of bytes received
        self._paused = False  # nothing is read
        self._full: asyncio.Future | None = None  # done when the system has taken all that was written
        self._unsent_nbytes = 0  # of answers: a write's memory is free when the system has taken all of the write
        self._is_held = False  # the application has room for the answer, and waits until that is sent
        self._last = False  # no request is taken any more

    # ------------------------------------------------------------------------------------ called by the event loop

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(0)  # so that `_full` says whether the system has taken all
        self._server.connections.came(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._last = True
        self._server.connections.went(self)
        self._hush()
        if self._exchange is not None:
            self._exchange.lost()
        self._exchange = self._into = self._chunks = self._head = None
        self.resume_writing()

    def pause_writing(self) -> None:
        self._full = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        self._unsent_nbytes = 0
        if self._full is not None:
            self._full.set_result(None)
            self._full = None
            if self.wait is Wait.TAKEN:
                self._go_on()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Memory for the next bytes received."""
        if self._into is not None:
            return self._into
        in_body = self._left_nbytes or self._chunks is not None
        return self._server.view if in_body else self._server.view[:_HEAD_NBYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """So much came."""
        if self._into is not None:
            self._place(nbytes)
            return
        begin = 0
        if self._left_nbytes:
            begin = self._take_body(0, nbytes)
        elif self._chunks is not None:
            self._take_chunks(self._server.view[:nbytes])
            return
        if begin < nbytes and not self._last:
            if self._exchange is not None:
                self._close_after_the_answer()
            else:
                self._take_head(begin, nbytes)

    # ---------------------------------------------------------------------------------------------------- requests

    def _take_head(self, begin: int, end: int) -> None:
        """Of the buffer, these bytes: a head, or a part of it, and perhaps bytes after the head."""
        buffer = self._server.buffer
        if self._head is None:
            while begin < end and buffer[begin] in b"\r\n":  # which may stand before a request
                begin += 1
            if begin == end:
                return
            if not buffer[begin : begin + 1].isalpha():  # no method of any: not worth waiting for more
                self._refuse(BAD, "Invalid HTTP request received.")
                return
            at = buffer.find(_END, begin, end)
            if at >= 0:
                self._server.connections.hold_head(self, at + len(_END) - begin)
                self._begin(self._server.view[begin : at + len(_END)], at + len(_END), end)
                return
            self._server.connections.waits(self, Wait.HEAD)
            self._head = bytearray()
        known = len(self._head)
        self._head += self._server.view[begin:end]
        at = self._head.find(_END, max(0, known - len(_END) + 1))
        nbytes = len(self._head) if at < 0 else at + len(_END)
        self._server.connections.hold_head(self, nbytes - known)
        if self._last:  # closed, for the sake of others
            return
        if nbytes > MOST_BESIDE_NBYTES:
            self._refuse(TOO_LONG_A_HEAD, f"More than {MOST_BESIDE_NBYTES} bytes of headers.")
        elif at >= 0:
            head, self._head = self._head, None
            self._begin(memoryview(head)[:nbytes], begin + nbytes - known, end)

    def _begin(self, head: memoryview, begin: int, end: int) -> None:
        """Begin the request with this head; these bytes of the buffer follow the head."""
        if self._last:
            return
        self._url, self._headers, self._is_complete = b"", [], False
        parser = httptools.HttpRequestParser(self)
        keep_alive = True
        try:
            try:
                parser.feed_data(head)
            except httptools.HttpParserUpgrade:  # to nothing that is known here
                keep_alive, self._is_complete = False, True
            version = parser.get_http_version()
            scope = self._scope(parser.get_method().decode("ascii"), version)
            lengths = [int(value) for name, value in self._headers if name == b"content-length"]
            if version not in _VERSIONS:
                raise ValueError("another version of HTTP")
        except (httptools.HttpParserError, ValueError):
            if not self._last:
                self._refuse(BAD, "Invalid HTTP request received.")
            return
        expects = any(name == b"expect" and value.lower() == b"100-continue" for name, value in self._headers)
        keep_alive = keep_alive and version != "1.0" and parser.should_keep_alive() and not self._server.connections.ending
        exchange = Exchange(self, scope["method"], keep_alive, expects and begin == end, self._server.log)
        scope["state"] = {SENT: partial(self.holding, exchange), INTO: partial(self.read_into, exchange)}
        self._exchange, self._is_held = exchange, False
        self._server.connections.works(self)
        if self._is_complete:
            exchange.came(b"", False)
        elif lengths:
            self._left_nbytes = lengths[0]
        else:
            self._chunks, self._beside_nbytes = parser, 0
        self._start(exchange, scope)
        if begin < end and self._left_nbytes:
            begin = self._take_body(begin, end)
        elif begin < end and self._chunks is not None:
            self._take_chunks(self._server.view[begin:end])
            begin = end
        if begin < end and not self._last:
            self._close_after_the_answer()
        elif self._left_nbytes:
            self._pause_reading()  # until the application says where the rest is wanted

    def _scope(self, method: str, version: str) -> Scope:
        url = httptools.parse_url(self._url)
        path = (url.path or b"").decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "server": self._transport.get_extra_info("sockname")[:2],
            "client": self._transport.get_extra_info("peername")[:2],
            "scheme": "http",
            "root_path": "",
            "method": method,
            "path": unquote(path) if "%" in path else path,
            "raw_path": url.path or b"",
            "query_string": url.query or b"",
            "headers": self._headers,
        }

    def _start(self, exchange: Exchange, scope: Scope) -> None:
        tasks = self._server.connections.tasks
        task = asyncio.get_running_loop().create_task(exchange.run(self._server.app, scope))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    # ------------------------------------------------------------------------------------------------------ bodies

    def _take_body(self, begin: int, end: int) -> int:
        """Of a body with a length, these bytes of the buffer; where they end."""
        taken = min(end - begin, self._left_nbytes)
        self._left_nbytes -= taken
        self._came(self._server.view[begin : begin + taken], self._left_nbytes > 0)
        return begin + taken

    def _place(self, nbytes: int) -> None:
        """So many bytes were read in place."""
        self._left_nbytes -= nbytes
        self._exchange.placed(nbytes)
        if self._left_nbytes:
            self._into = self._into[nbytes:]
            if self._saying is None:
                self._saying = asyncio.get_running_loop().call_later(_SAID_AFTER_S, self._say)
        else:
            self._into = None
            self._came(b"", False)

    def read_into(self, exchange: Exchange, where: memoryview | None) -> None:
        """Put the rest of a request's body there, if of this length, and all else was received; None: the rest is not wanted."""
        if exchange is not self._exchange:
            return
        if where is None:
            self._into = None
        elif self._left_nbytes and not exchange.held_nbytes and len(where) == self._left_nbytes:
            self._into = where

    def _came(self, data: memoryview | bytes, more: bool) -> None:
        """Some of a body; the last, unless there is `more`."""
        if not more:
            self._hush()
        if self._exchange is None:  # which is answered
            if not more:
                self._go_on()
            return
        self._exchange.came(data, more)
        if more and self._exchange.held_nbytes > _HELD_NBYTES:
            self._pause_reading()

    def _take_chunks(self, data: memoryview) -> None:
        """As the parser finds them, no more bytes at a time than may be no body."""
        try:
            for begin in range(0, len(data), MOST_BESIDE_NBYTES):
                part = data[begin : begin + MOST_BESIDE_NBYTES]
                self._beside_nbytes += len(part)
                if self._chunks is None:  # after the last chunk
                    self._close_after_the_answer()
                    return
                self._chunks.feed_data(part)
                if self._beside_nbytes > MOST_BESIDE_NBYTES:
                    self._refuse(BAD, f"More than {MOST_BESIDE_NBYTES} bytes between two chunks.")
                    return
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self._last:
                self._refuse(BAD, "Invalid HTTP request received.")

    def _say(self) -> None:
        self._saying = None
        if self._exchange is not None:
            self._exchange.say()

    def _hush(self) -> None:
        if self._saying is not None:
            self._saying.cancel()
            self._saying = None

    # ---------------------------------------------------------------------------------- called by the parser

    def on_message_begin(self) -> None:
        if self._is_complete:  # another request
            self._close_after_the_answer()
            raise _Refused

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._chunks is not None:  # a trailer
            return
        if len(self._headers) == MOST_HEADERS:
            self._refuse(TOO_LONG_A_HEAD, f"More than {MOST_HEADERS} headers.")
            raise _Refused
        self._headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self._beside_nbytes = max(0, self._beside_nbytes - len(body))
        self._came(body, True)

    def on_chunk_complete(self) -> None:
        self._beside_nbytes = 0

    def on_message_complete(self) -> None:
        self._is_complete = True
        if self._chunks is not None:
            self._chunks, self._beside_nbytes = None, 0
            self._came(b"", False)

    # ----------------------------------------------------------------------------------------------------- answers

    def write(self, parts: list[bytes]) -> None:
        """Send these."""
        if len(parts) == 1:
            self._transport.write(parts[0])
        else:
            self._transport.writelines(parts)
        if self._full is not None:
            self._unsent_nbytes += sum(map(len, parts))

    async def drained(self) -> None:
        """Until the system has all that was written, or the client has lost the connection."""
        if self._full is not None:
            await asyncio.shield(self._full)

    def holding(self, exchange: Exchange) -> Callable[[float], Awaitable[None]]:
        """Told before the answer that the application has room for all of it, until the returned function has waited."""
        self._is_held |= exchange is self._exchange
        return self._sent

    async def _sent(self, within_s: float) -> None:
        """Until the system has the answer; a client that is slower than that loses the connection."""
        if self._full is None:
            return
        with anyio.move_on_after(within_s) as waiting:  # `asyncio.wait_for` loses cancels before Python 3.12
            await self.drained()
        if waiting.cancelled_caught:
            self.abort()

    def answered(self) -> None:
        """The exchange in progress is complete: the next may begin, when all of this one has come and gone."""
        keep_alive = self._exchange.keep_alive
        self._exchange = self._into = None
        self._hush()
        self._server.connections.release_head(self)
        self._last = self._last or not keep_alive
        self._go_on()

    def _go_on(self) -> None:
        """Wait for the next bytes to read or write."""
        connections = self._server.connections
        unsent_nbytes = 0 if self._full is None or self._is_held else self._unsent_nbytes
        if self._full is not None:
            connections.waits(self, Wait.TAKEN)
            if not self._last:
                self._pause_reading()
        elif self._last:
            connections.waits(self, Wait.TAKEN)
        else:
            connections.waits(self, Wait.HEAD if self._left_nbytes or self._chunks is not None else Wait.REQUEST)
            self.resume_reading()
        if self._last:
            self._transport.close()
        if unsent_nbytes:
            connections.hold_unsent(self, unsent_nbytes)  # at once: many requests may be answered before anything else is done

    def _close_after_the_answer(self) -> None:
        self._last = True
        if self._exchange is not None:
            self._exchange.keep_alive = False
        else:
            self._go_on()

    def _refuse(self, status: int, words: str) -> None:
        """An answer of the connection's own, and the end; after the answer to a request that is complete."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None and exchange.is_received:
            self._exchange = exchange
            self._close_after_the_answer()
            return
        self._last = True
        if exchange is None or not exchange.is_started:
            text = json.dumps({"error": words}).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(text))]
            self.write([answer_head(status, headers, False), text])
        if exchange is not None:
            exchange.lost()
        self._go_on()

    def end(self) -> None:
        """The server ends: close now, or after the answer."""
        if self._exchange is None and self._full is None:
            self.abort()
        else:
            self._close_after_the_answer()

    def abort(self) -> None:
        """Close at once."""
        self._last = True
        self._transport.abort()

    def _pause_reading(self) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on reading, where that was paused."""
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()
