"""One request for an inference, from its headers to its answer: an ASGI application, with nothing between it and its route."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from flexcomp.errors import InputError
from flexcomp.runtime import Pool

from . import protocol
from .answers import BAD, ENDING, UNKNOWN, Refusal, ending, refusal_of
from .connection import SENT
from .json_numbers import Text
from .language import LanguageModel
from .limits import Room, Share, read_body, until_gone
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
    """Shared by all requests."""

    pool: Pool
    models: Models
    room: Room
    metrics: Metrics
    log: Log
    within_s: float  # for a body to arrive in, and for an answer to be taken
    reader: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "flexcomp-json"))  # of long JSON
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)  # which is read and written one by one
    ending: bool = False  # set once: nothing more is begun
    languages: Mapping[str, LanguageModel] = field(default_factory=dict)  # decoders, by name
    crowded: Callable[[], bool] = lambda: False  # there are more connections than there may be: the server's, when it runs


@dataclass
class _Account:
    """Facts of a finished request, for the log and the metrics."""

    began: float
    id: str | None = None
    read_nbytes: int = 0
    sent_nbytes: int = 0
    wait_s: float | None = None


class Inference:
    """The application of the routes that run a model. Raises Refusal; ClientDisconnect where nobody waits any more."""

    def __init__(self, service: Service, require_version: Callable[[str, str], None]) -> None:
        self._service = service
        self._require_version = require_version

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, given = self._service, scope["path_params"]
        name = given["name"]
        if (version := given.get("version")) is not None:
            self._require_version(name, version)
        account = _Account(time.perf_counter())
        outcome, status = "failed", 500
        model: Model | None = None
        with service.room.share() as share:
            try:
                with service.metrics.in_flight.track_inprogress():
                    model = service.models.get(name)
                    text, length = await _answered(service, scope, receive, model, share, account)
                    account.sent_nbytes = len(text)
                    await _send(send, text, length)
                outcome, status = "answered", 200
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
                _note(service, scope, name, model, outcome, status, account)
            if (sent := scope["state"].get(SENT)) is not None:  # the request counts until then
                await sent(service.within_s)


def _note(
    service: Service, scope: Scope, name: str, model: Model | None, outcome: str, status: int, account: _Account
) -> None:
    """Say how a request ended."""
    took_s = time.perf_counter() - account.began
    if model is not None:
        service.metrics.count(model.name, outcome, took_s, account.wait_s)
    service.log.request(
        model=name[:80],
        outcome=outcome,
        status=status,
        id=account.id,
        client=scope["client"][0] if scope["client"] else None,
        body_bytes=account.read_nbytes,
        answer_bytes=account.sent_nbytes,
        wait_ms=None if account.wait_s is None else round(1e3 * account.wait_s, 3),
        took_ms=round(1e3 * took_s, 3),
    )


async def _answered(
    service: Service, scope: Scope, receive: Receive, model: Model, share: Share, account: _Account
) -> tuple[bytes, int | None]:
    """The answer, and its bytes of JSON (`protocol.write_response`). `share` has the request's memory from its body on."""
    headers = Headers(scope=scope)
    header_s = _timeout(headers.get(TIMEOUT))
    asked = await _asked(service, scope, headers, receive, model, share, account)
    if service.ending:
        raise ending()
    within = [seconds for seconds in (header_s, asked.timeout_s) if seconds is not None]
    outputs = await computed(service, receive, model, asked.inputs, min(within, default=None), account)
    return await _written(service, model, asked, outputs)


async def _asked(
    service: Service, scope: Scope, headers: Headers, receive: Receive, model: Model, share: Share, account: _Account
) -> protocol.Request:
    """The request. `share` has its memory until the answer is sent."""
    body = await read_body(scope, receive, share, min(model.most_nbytes, service.room.nbytes), service.within_s)
    account.read_nbytes = len(body)
    json_nbytes = protocol.json_nbytes(headers.get(protocol.HEADER), len(body))
    asked = await _parsed(service, body, json_nbytes, model, share)
    account.id = asked.id and asked.id[:80]
    arrays_nbytes = sum(array.nbytes for array in asked.inputs.values())
    inputs_nbytes = arrays_nbytes if json_nbytes == len(body) else max(arrays_nbytes, len(body))  # arrays lie in the body
    answer_nbytes = protocol.answered_nbytes(model.most_outputs, asked.outputs)
    share.hold(inputs_nbytes + model.padded_nbytes + answer_nbytes, "a request with its answer")
    return asked


async def computed(
    service: Service,
    receive: Receive,
    model: Model,
    inputs: dict[str, np.ndarray],
    within_s: float | None = None,
    account: _Account | None = None,
) -> dict[str, np.ndarray]:
    """The outputs. A request whose client goes away leaves the queue."""
    account, left_ms = account or _Account(time.perf_counter()), None
    if within_s is not None:
        left_ms = max(1e-3, 1e3 * (within_s - (time.perf_counter() - account.began)))
    try:
        # A short one runs in the event loop while nobody else is served: handing over between three threads would take longer.
        future = service.pool.submit(model.name, inputs, deadline_ms=left_ms, here=service.room.shares == 1)
        if future.done():
            account.wait_s = None if future.wait_ms is None else 1e-3 * future.wait_ms
            return future.result()
        computed = asyncio.wrap_future(future)
        gone = asyncio.ensure_future(until_gone(receive))
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
        if service.models.get(model.name) is not model:  # unloaded meanwhile, and loaded again: that is then the cause
            raise Refusal(UNKNOWN, f"the model {model.name} was loaded anew before the request's turn: send it again") from None
        raise


async def _parsed(service: Service, body: Text, json_nbytes: int, model: Model, share: Share) -> protocol.Request:
    """The request in a body that begins with so much JSON."""
    read = partial(protocol.read_request, body, json_nbytes, model.inputs, model.outputs, model.most_inputs)
    if json_nbytes <= _QUICK_NBYTES:
        return read()
    async with service.reading:
        nbytes = await _in_thread(service, partial(protocol.reading_nbytes, memoryview(body)[:json_nbytes], model.most_inputs))
        share.hold(len(body) + nbytes, "a body of JSON, while it is read; one of binary tensors takes less,")
        return await _in_thread(service, read)


async def _written(service: Service, model: Model, asked: protocol.Request, outputs: dict) -> tuple[bytes, int | None]:
    """The answer (`protocol.write_response`)."""
    write = partial(protocol.write_response, model.name, asked, outputs)
    if 8 * sum(outputs[wanted.name].size for wanted in asked.outputs if not wanted.binary) <= _QUICK_NBYTES:
        return write()
    async with service.reading:
        return await _in_thread(service, write)


def _in_thread(service: Service, work: Callable[[], _T]) -> Awaitable[_T]:
    return asyncio.get_running_loop().run_in_executor(service.reader, work)


async def _send(send: Send, text: bytes, json_nbytes: int | None) -> None:
    headers = [(b"content-length", b"%d" % len(text))]
    if json_nbytes is None:
        headers.append((b"content-type", b"application/json"))
    else:
        headers += [(b"content-type", b"application/octet-stream"), (protocol.HEADER.lower().encode(), b"%d" % json_nbytes)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def _timeout(text: str | None) -> float | None:
    if text is None:
        return None
    if not _SECONDS.fullmatch(text) or not 0 < float(text) <= _LONGEST_S:
        raise Refusal(BAD, f"the header {TIMEOUT} must be a number of seconds above 0, not {text[:40]!r}")
    return float(text)
