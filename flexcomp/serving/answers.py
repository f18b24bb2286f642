"""Answers that are no results: which error is which status, in the protocol's words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Send

from flexcomp.errors import BudgetError, FlexcompError, InputError, RefusedError

BAD, UNAUTHORISED, FORBIDDEN, UNKNOWN, LATE_BODY, CONFLICT = 400, 401, 403, 404, 408, 409
TOO_LARGE, UNSUPPORTED, BUSY, TOO_LONG_A_HEAD, FAULT, ENDING = 413, 415, 429, 431, 500, 503
OPENAI = "/v1/"  # paths of its protocol
_ENDING_AGAIN_MS = 1e3  # a balancer gives the next attempt to another server


class Refusal(Exception):
    """A request that gets an error for its answer, with the status and headers that go with it."""

    def __init__(
        self, status: int, message: str, *, retry_after_ms: float | None = None, headers: Mapping[str, str] | None = None,
        field: str | None = None,
    ) -> None:  # fmt: skip
        """`field`: of the request, that is wrong."""
        super().__init__(message)
        self.status, self.field = status, field
        self.headers = dict(headers or {})
        if retry_after_ms is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after_ms / 1e3)))  # whole seconds, says HTTP


def ending() -> Refusal:
    """The server was told to end, and begins no more requests."""
    return Refusal(ENDING, "the server is ending", retry_after_ms=_ENDING_AGAIN_MS)


def refusal_of(error: Exception) -> Refusal | None:
    """The client's answer for `error`; None for faults in the server, which clients are not told."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, RefusedError):
        return Refusal(BUSY, str(error), retry_after_ms=error.retry_after_ms)
    if isinstance(error, InputError):
        return Refusal(BAD, str(error))
    if isinstance(error, BudgetError):
        return Refusal(CONFLICT, str(error))
    if isinstance(error, FlexcompError):  # weights that cannot be read, a kernel that failed: not the client's doing
        return Refusal(FAULT, str(error))
    if isinstance(error, MemoryError):
        return Refusal(ENDING, "memory ran out", retry_after_ms=_ENDING_AGAIN_MS)
    return None


def error_answer(refusal: Refusal, path: str = "") -> Response:
    """The object for errors of the protocol that has `path`."""
    return answer(error_object(refusal, path.startswith(OPENAI)), refusal.status, refusal.headers)


def error_object(refusal: Refusal, is_openai: bool) -> dict[str, Any]:
    """The same, as JSON has it."""
    if not is_openai:
        return {"error": str(refusal)}
    kind = "invalid_request_error" if refusal.status < BUSY else "rate_limit_error" if refusal.status == BUSY else "server_error"
    return {"error": {"message": str(refusal), "type": kind, "param": refusal.field, "code": None}}


async def send_json(send: Send, body: bytes) -> None:
    """JSON as the whole answer of an ASGI application."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`value` as JSON."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
    return Response(text, status, headers, "application/json")
