"""One connection: uvicorn's protocol on httptools, with bounds for whatever of a client's is no body.

httptools keeps a head for as long as it goes on, takes trailers for headers, and uvicorn keeps requests that are sent before the
one in progress is answered. Here a head, or what stands between two chunks, has so many bytes and no more; trailers are left
out; and of requests in advance none is begun: the connection is closed behind the answer, and clients ask again.

A body whose length is known goes from the system to where the application wants it, past the parser: httptools and uvicorn
would copy it three times.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import anyio
import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from .answers import BAD, TOO_LONG_A_HEAD

MOST_BESIDE_NBYTES = 1 << 16  # in a row, of what is no body: request line and headers, trailers, the frames of chunks
SENT = "flexcomp.sent"  # in the state of a request's scope: `Connection.sent`
INTO = "flexcomp.into"  # in the same: `Connection.read_into`
MOST_HEADERS = 128  # of a request: each takes more memory than its bytes
_VERSIONS = ("1.0", "1.1")
_READ_NBYTES = 1 << 18  # at a time
_HEAD_NBYTES = 1 << 13  # the same while a head is awaited: what comes with it of a body is copied
_SAID_AFTER_S = 0.25  # of a body that comes where it is wanted: the application is not woken for each part of it
_BUFFER = "flexcomp_buffer"  # in a server's configuration: what all its connections read into, one after the other


class _Ended(Exception):
    """Raised through the parser: what comes behind is not looked at."""


class Connection(HttpToolsProtocol):
    """Uvicorn's. A head has to be complete within the time for which an idle connection is kept."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if not hasattr(self.config, _BUFFER):
            setattr(self.config, _BUFFER, memoryview(bytearray(_READ_NBYTES)))
        self._buffer: memoryview = getattr(self.config, _BUFFER)
        self._beside_nbytes = 0  # since the last byte of a body
        self._unread_nbytes = -1  # of a body, where its length is known
        self._left_nbytes = 0  # of these, what goes past the parser
        self._into: memoryview | None = None  # where to; None: it is not wanted
        self._in_head = True
        self._in_body = False
        self._saying: asyncio.TimerHandle | None = None  # will tell the application of what came
        self._last = False  # no request is taken any more

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # so that `flow` says whether the system has taken all
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the system puts what comes."""
        if self._into is not None:
            return self._into
        return self._buffer if self._in_body else self._buffer[:_HEAD_NBYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """So much came."""
        if taken := min(nbytes, self._left_nbytes):
            self._left_nbytes -= taken
            self._unread_nbytes -= taken
            if self._into is not None:
                self._into = self._into[taken:]
                self.cycle.placed_nbytes += taken
                if self._saying is None:
                    self._saying = self.loop.call_later(_SAID_AFTER_S, self._say)
            if not self._left_nbytes:
                self._into = None
                self.parser = httptools.HttpRequestParser(self)  # which has seen nothing of this body
                self.on_message_complete()
        if nbytes > taken:
            in_body = self._in_body
            self.data_received(self._buffer[taken:nbytes])
            if self._in_body and not in_body and self._unread_nbytes > 0:
                self.flow.pause_reading()  # until the application says where the rest is wanted

    def read_into(self, cycle: RequestResponseCycle, where: memoryview | None) -> None:
        """Put the rest of a request's body there, if it is so long, and all else was received; None: it is not wanted."""
        if cycle is not self.cycle:
            return
        if where is None:
            self._into = None
        elif cycle.more_body and not cycle.body and len(where) == self._unread_nbytes:
            self._into, self._left_nbytes = where, len(where)

    def _say(self) -> None:
        self._saying = None
        self.cycle.message_event.set()

    def data_received(self, data: memoryview) -> None:
        """Take what came, no more of it at a time than may be no body."""
        if self._last:
            return
        try:
            for begin in range(0, len(data), MOST_BESIDE_NBYTES):
                self._feed(data[begin : begin + MOST_BESIDE_NBYTES])
        except httptools.HttpParserUpgrade:
            self._close_behind_the_answer()
        except httptools.HttpParserError:
            if not self._last:
                self._refuse(BAD, "Invalid HTTP request received.")

    def _feed(self, data: memoryview) -> None:
        self._beside_nbytes += len(data)
        self.parser.feed_data(data)
        if self._beside_nbytes > MOST_BESIDE_NBYTES:
            self._refuse(TOO_LONG_A_HEAD if self._in_head else BAD, f"More than {MOST_BESIDE_NBYTES} bytes of headers.")
            raise httptools.HttpParserError

    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._close_behind_the_answer()
            raise _Ended
        self._in_head = True
        super().on_message_begin()
        self._unread_nbytes = -1
        self.scope["state"][SENT] = self.sent

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return
        if len(self.headers) == MOST_HEADERS:
            self._refuse(TOO_LONG_A_HEAD, f"More than {MOST_HEADERS} headers.")
            raise _Ended
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.get_http_version() not in _VERSIONS:
            raise ValueError("another version of HTTP")  # the parser's caller answers 400
        self._in_head, self._in_body = False, True
        self._beside_nbytes = 0
        self._unset_keepalive_if_required()
        super().on_headers_complete()
        self.cycle.receive = partial(_received, self.cycle)
        self.cycle.transport = Together(self.transport, self.cycle)
        self.cycle.placed_nbytes = 0
        self.scope["state"][INTO] = partial(self.read_into, self.cycle)
        lengths = [value for name, value in self.headers if name == b"content-length"]
        if len(lengths) == 1:
            self._unread_nbytes = int(lengths[0])
        if self.parser.should_upgrade():  # to nothing that is known here
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._beside_nbytes = max(0, self._beside_nbytes - len(body))
        self._unread_nbytes -= len(body)
        super().on_body(body)

    def on_chunk_complete(self) -> None:
        self._beside_nbytes = 0

    def on_message_complete(self) -> None:
        self._in_body = False
        if self._saying is not None:
            self._saying.cancel()
            self._saying = None
        self._beside_nbytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.cycle.transport.flush()
        del self.cycle.receive, self.cycle.transport.cycle  # or it would keep itself
        super().on_response_complete()

    async def sent(self, within_s: float) -> None:
        """Wait until the system has all that was answered; a client that does not let it loses the connection."""
        if self.flow.write_paused:
            with anyio.move_on_after(within_s) as sending:
                await self.flow.drain()
            if sending.cancelled_caught:
                self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        """No head came in time, or nobody reads what was answered: what is not sent by then never will be."""
        self.transport.abort() if self.flow.write_paused else super().timeout_keep_alive_handler()

    def _close_behind_the_answer(self) -> None:
        self._last = True
        self.cycle.keep_alive = False

    def _refuse(self, status: int, words: str) -> None:
        """An answer of the connection's own, and the end; behind the answer to a request that is complete."""
        self._last = True
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            cycle.keep_alive = False
            return
        if cycle is None or cycle.response_complete or not cycle.response_started:
            head = [
                STATUS_LINE[status],
                b"content-type: text/plain; charset=utf-8\r\n",
                b"content-length: %d\r\n" % len(words),
                b"connection: close\r\n\r\n",
            ]
            self.transport.write(b"".join([*head, words.encode()]))
        self.transport.close()


class Together:
    """A transport that sends the head of an answer with what is written next: two packets would wake the client twice."""

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        self._transport = transport
        self.cycle = cycle
        self._head: bytes | None = None  # which was not sent yet
        self._began = False

    def write(self, data: bytes) -> None:
        if self.cycle.response_started and not self._began:
            self._began, self._head = True, data
        elif self._head is None:
            self._transport.write(data)
        else:
            head, self._head = self._head, None
            self._transport.writelines([head, data])

    def flush(self) -> None:
        """Send a head that nothing followed."""
        if self._head is not None:
            self._transport.write(self._head)
            self._head = None

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


async def _received(cycle: RequestResponseCycle) -> dict[str, Any]:
    """As the cycle's own `receive`, but what has arrived of a body is handed on itself, not a copy of it.

    `placed` are the bytes that came meanwhile to where they were wanted (`Connection.read_into`).
    """
    if cycle.waiting_for_100_continue and not cycle.transport.is_closing():
        cycle.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        cycle.waiting_for_100_continue = False
    if not cycle.disconnected and not cycle.response_complete:
        cycle.flow.resume_reading()
        await cycle.message_event.wait()
        cycle.message_event.clear()
    if cycle.disconnected or cycle.response_complete:
        return {"type": "http.disconnect"}
    body, cycle.body = cycle.body, bytearray()
    placed, cycle.placed_nbytes = cycle.placed_nbytes, 0
    return {"type": "http.request", "body": body, "more_body": cycle.more_body, "placed": placed}


class Arrivals(asyncio.BufferedProtocol):
    """A connection as the event loop sees it, which asks one that is an `asyncio.Protocol` for no buffer."""

    def __init__(self, *args: Any, **options: Any) -> None:
        connection = Connection(*args, **options)
        self.connection_lost, self.eof_received = connection.connection_lost, connection.eof_received
        self.pause_writing, self.resume_writing = connection.pause_writing, connection.resume_writing
        self.get_buffer, self.buffer_updated = connection.get_buffer, connection.buffer_updated
        self.connection_made = connection.connection_made
