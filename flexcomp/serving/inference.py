"""One request for an inference, from its headers to its answer."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from flexcomp.errors import InputError
from flexcomp.runtime import Pool

from . import protocol
from .answers import BAD, ENDING, UNKNOWN, Refusal, ending, refusal_of
from .limits import Room, read_body
from .logs import Log
from .metrics import Metrics
from .models import Model, Models

TIMEOUT = "timeout"  # header: seconds in which the answer is wanted
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,2})?")
_LONGEST_S = 1e6
_QUICK_NBYTES = 1 << 15  # of JSON, which the event loop reads or writes itself; more would hold up all others
_T = TypeVar("_T")


@dataclass
class Service:
    """What all requests share."""

    pool: Pool
    models: Models
    room: Room
    metrics: Metrics
    log: Log
    body_within_s: float
    reader: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "flexcomp-json"))  # of long JSON, one by one
    ending: bool = False  # set once: nothing more is begun
    count_connections: Callable[[], int] | None = None  # the server's, when it runs

    def connections(self) -> int:
        """Open ones, those included that ask nothing."""
        return self.count_connections() if self.count_connections else 0


@dataclass
class _Account:
    """What is known of a request when it ends, for the log and the metrics."""

    began: float
    id: str | None = None
    read_nbytes: int = 0
    sent_nbytes: int = 0
    wait_s: float | None = None


async def infer(service: Service, request: Request, name: str) -> Response:
    """The answer. Raises Refusal; ClientDisconnect where nobody waits for one any more."""
    account = _Account(time.perf_counter())
    outcome, status = "failed", 500
    model: Model | None = None
    try:
        with service.metrics.in_flight.track_inprogress():
            model = service.models.get(name)
            response = await _answered(service, request, model, account)
        outcome, status = "answered", response.status_code
        return response
    except ClientDisconnect:
        outcome, status = "abandoned", 0
        raise
    except asyncio.CancelledError:  # there is no more time
        outcome, status = "refused", ENDING
        raise ending() from None
    except Exception as error:
        refusal = refusal_of(error)
        if refusal is None:
            raise
        outcome, status = service.metrics.outcome_of(refusal.status), refusal.status
        raise refusal from error
    finally:
        took_s = time.perf_counter() - account.began
        if model is not None:
            service.metrics.count(model.name, outcome, took_s, account.wait_s)
        service.log.request(
            model=name[:80],
            outcome=outcome,
            status=status,
            id=account.id,
            client=request.client.host if request.client else None,
            body_bytes=account.read_nbytes,
            answer_bytes=account.sent_nbytes,
            wait_ms=None if account.wait_s is None else round(1e3 * account.wait_s, 3),
            took_ms=round(1e3 * took_s, 3),
        )


async def _answered(service: Service, request: Request, model: Model, account: _Account) -> Response:
    header_s = _timeout(request.headers.get(TIMEOUT))
    with service.room.share() as share:
        body = await read_body(request, share, min(model.most_nbytes, service.room.nbytes), service.body_within_s)
        account.read_nbytes = len(body)
        header = request.headers.get(protocol.HEADER)
        json_nbytes = len(body) if header is None else 0
        asked = await _unhurried(service, json_nbytes, lambda: protocol.read_request(body, header, model.inputs, model.outputs))
        account.id = asked.id and asked.id[:80]
        if service.ending:
            raise ending()
        within = [seconds for seconds in (header_s, asked.timeout_s) if seconds is not None]
        outputs = await _computed(service, request, model, asked.inputs, min(within, default=None), account)
        numbers = sum(outputs[wanted.name].size for wanted in asked.outputs if not wanted.binary)
        text, length = await _unhurried(service, 8 * numbers, lambda: protocol.write_response(model.name, asked, outputs))
    account.sent_nbytes = len(text)
    if length is None:
        return Response(text, media_type="application/json")
    return Response(text, headers={protocol.HEADER: str(length)}, media_type="application/octet-stream")


async def _computed(
    service: Service, request: Request, model: Model, inputs: dict[str, np.ndarray], within_s: float | None, account: _Account
) -> dict[str, np.ndarray]:
    """The outputs. A request whose client goes away leaves the queue."""
    left_ms = None
    if within_s is not None:
        left_ms = max(1e-3, 1e3 * (within_s - (time.perf_counter() - account.began)))
    try:
        future = service.pool.submit(model.name, inputs, deadline_ms=left_ms)
        computed = asyncio.wrap_future(future)
        gone = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait((computed, gone), return_when=asyncio.FIRST_COMPLETED)
            if not computed.done():
                raise ClientDisconnect
            if computed.cancelled():  # by the pool, which was closed
                raise ending()
            return computed.result()
        finally:
            gone.cancel()
            if not computed.cancel():
                account.wait_s = None if future.wait_ms is None else 1e-3 * future.wait_ms
    except InputError:
        if service.models.get(model.name) is not model:  # unloaded meanwhile, and loaded again: that is what is wrong then
            raise Refusal(UNKNOWN, f"the model {model.name} was loaded anew before the request's turn: send it again") from None
        raise


async def _gone(request: Request) -> None:
    """Until the client has closed the connection: behind its body, nothing else comes."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _unhurried(service: Service, nbytes: int, work: Callable[[], _T]) -> _T:
    """What `work` returns; where there is much of it, from a thread that does one such thing at a time.

    JSON may take thirty times its length in memory while it is read.
    """
    if nbytes <= _QUICK_NBYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(service.reader, work)


def _timeout(text: str | None) -> float | None:
    if text is None:
        return None
    if not _SECONDS.fullmatch(text) or not 0 < float(text) <= _LONGEST_S:
        raise Refusal(BAD, f"the header {TIMEOUT} must be a number of seconds above 0, not {text[:40]!r}")
    return float(text)
