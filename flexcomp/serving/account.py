"""The account of a request: memory, time and outcome, from its headers until its client has the answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from .answers import ENDING, FAULT, ending, refusal_of
from .connection import SENT
from .limits import Share, read_body
from .service import Service

_OBJECTS = 24  # bytes that Python's objects take for a byte of JSON, at the worst


class Account:
    """One request while it is answered."""

    def __init__(self, service: Service, share: Share) -> None:
        self._service = service
        self.share = share  # of the memory for requests
        self.began = time.perf_counter()
        self.model: str | None = None  # which the metrics count the request for
        self.wait_s: float | None = None  # in the pool's queue, of all inferences
        self.facts: dict[str, Any] = {}  # for the log
        self.is_started = False  # whether the client has some of the answer, and can get no other

    def noting(self, send: Send) -> Send:
        """`send`, which notes that the answer has started."""

        async def sending(message: Message) -> None:
            self.is_started = True
            await send(message)

        return sending

    async def read_json(self, scope: Scope, receive: Receive, most_nbytes: int) -> bytes:
        """The body, which waits to be read next, and whose memory is counted with the objects that are made of it.

        Raises as `read_body`.
        """
        service = self._service
        body = await read_body(scope, receive, self.share, min(most_nbytes, service.room.nbytes), service.within_s)
        service.require_reader()
        self.share.hold(len(body) * (1 + _OBJECTS), "a request with its objects")
        return bytes(body)

    def note_wait(self, wait_ms: float | None) -> None:
        """An inference has waited so long for its turn, if it had one."""
        if wait_ms is not None:
            self.wait_s = (self.wait_s or 0) + 1e-3 * wait_ms

    def close(self, outcome: str, status: int) -> None:
        """Count the request, and log it."""
        took_s = time.perf_counter() - self.began
        if self.model is not None:
            self._service.metrics.count(self.model, outcome, took_s, self.wait_s)
        waits = None if self.wait_s is None else round(1e3 * self.wait_s, 3)
        self._service.log.request(
            **self.facts, outcome=outcome, status=status, wait_ms=waits, took_ms=round(1e3 * took_s, 3)
        )


@asynccontextmanager
async def accounted(service: Service, scope: Scope) -> AsyncIterator[Account]:
    """An account that is closed at the end; its memory is free when the client has the answer.

    What clients are told becomes Refusal. ClientDisconnect, and the end of the server, are raised only before the answer starts.
    """
    sent = scope["state"][SENT]() if SENT in scope["state"] else None
    with service.room.share() as share:
        account = Account(service, share)
        outcome, status = "failed", FAULT
        try:
            with service.metrics.in_flight.track_inprogress():
                yield account
            outcome, status = "answered", 200
        except ClientDisconnect:
            outcome, status = "abandoned", 0
            if not account.is_started:
                raise
        except asyncio.CancelledError:  # there is no more time
            outcome, status = "refused", ENDING
            if not account.is_started:
                raise ending() from None
        except Exception as error:
            refusal = refusal_of(error)
            if refusal is None:
                raise
            outcome, status = service.metrics.outcome_of(refusal.status), refusal.status
            raise refusal from error
        finally:
            account.close(outcome, status)
        if sent is not None:  # the request counts until then
            await sent(service.within_s)
