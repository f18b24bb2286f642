"""One request for an inference, from its headers to its answer: an ASGI application, with nothing between it and its route."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from flexcomp.errors import InputError

from . import protocol
from .account import Account, accounted
from .answers import BAD, UNKNOWN, Refusal, ending
from .json_numbers import Text
from .limits import Share, read_body, until_gone
from .models import Model
from .service import Service

TIMEOUT = "timeout"  # header: seconds in which the answer is wanted
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,12})?([eE][+-]?[0-9]{1,2})?")
_LONGEST_S = 1e6
_QUICK_NBYTES = 1 << 15  # of JSON, which the event loop reads or writes itself; more would hold up all others


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
        async with accounted(service, scope) as account:
            client = scope["client"][0] if scope["client"] else None
            account.facts |= {"model": name[:80], "id": None, "client": client, "body_bytes": 0, "answer_bytes": 0}
            model = service.models.get(name)
            account.model = model.name
            text, length = await _answered(service, scope, receive, model, account)
            account.facts["answer_bytes"] = len(text)
            await _send(send, text, length)


async def _answered(
    service: Service, scope: Scope, receive: Receive, model: Model, account: Account
) -> tuple[bytes, int | None]:
    """The answer, and its bytes of JSON (`protocol.write_response`). The account has the request's memory from its body on."""
    headers = Headers(scope=scope)
    header_s = _timeout(headers.get(TIMEOUT))
    asked = await _asked(service, scope, headers, receive, model, account)
    service.require_open()
    within = [seconds for seconds in (header_s, asked.timeout_s) if seconds is not None]
    outputs = await computed(service, receive, model, asked.inputs, account, min(within, default=None))
    return await _written(service, model, asked, outputs)


async def _asked(
    service: Service, scope: Scope, headers: Headers, receive: Receive, model: Model, account: Account
) -> protocol.Request:
    """The request."""
    share = account.share
    body = await read_body(scope, receive, share, min(model.most_nbytes, service.room.nbytes), service.within_s)
    account.facts["body_bytes"] = len(body)
    json_nbytes = protocol.json_nbytes(headers.get(protocol.HEADER), len(body))
    asked = await _parsed(service, body, json_nbytes, model, share)
    account.facts["id"] = asked.id and asked.id[:80]
    arrays_nbytes = sum(array.nbytes for array in asked.inputs.values())
    inputs_nbytes = arrays_nbytes if json_nbytes == len(body) else max(arrays_nbytes, len(body))  # arrays lie in the body
    answer_nbytes = protocol.answered_nbytes(model.most_outputs, asked.outputs)
    share.hold(inputs_nbytes + answer_nbytes, "a request with its answer")
    return asked


async def computed(
    service: Service,
    receive: Receive,
    model: Model,
    inputs: dict[str, np.ndarray],
    account: Account,
    within_s: float | None = None,
) -> dict[str, np.ndarray]:
    """The outputs. A request whose client goes away leaves the queue."""
    left_ms = None
    if within_s is not None:
        left_ms = max(1e-3, 1e3 * (within_s - (time.perf_counter() - account.began)))
    try:
        # A short one runs in the event loop while nobody else is served: handing over between three threads would take longer.
        future = service.pool.submit(model.name, inputs, deadline_ms=left_ms, here=service.room.shares == 1)
        if future.done():
            account.note_wait(future.wait_ms)
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
                account.note_wait(future.wait_ms)
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
        nbytes = await service.in_thread(partial(protocol.reading_nbytes, memoryview(body)[:json_nbytes], model.most_inputs))
        share.hold(len(body) + nbytes, "a body of JSON, while it is read; one of binary tensors takes less,")
        return await service.in_thread(read)


async def _written(service: Service, model: Model, asked: protocol.Request, outputs: dict) -> tuple[bytes, int | None]:
    """The answer (`protocol.write_response`)."""
    write = partial(protocol.write_response, model.name, asked, outputs)
    if 8 * sum(outputs[wanted.name].size for wanted in asked.outputs if not wanted.binary) <= _QUICK_NBYTES:
        return write()
    async with service.reading:
        return await service.in_thread(write)


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
