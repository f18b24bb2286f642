"""Who may ask: with a token its holders, without one programs on this machine, but no page in a browser."""

from __future__ import annotations

import hmac
import ipaddress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from flexcomp.errors import InputError

from .answers import FORBIDDEN, UNAUTHORISED, Refusal, error_answer

OPEN_PATHS = ("/v2/health/live", "/v2/health/ready")  # for supervisors, which have no token
_LEAST_LENGTH, _LONGEST = 16, 4096  # of a token


def read_token(path: Path) -> str:
    """The one line of a token file. Raises InputError for an unreadable file, or a token too short to be a secret."""
    try:
        with open(path, "rb") as file:
            data = file.read(_LONGEST + 2).strip()
    except OSError as error:
        raise InputError(f"cannot read the token in {path}: {error.strerror}") from None
    if not _LEAST_LENGTH <= len(data) <= _LONGEST or not all(33 <= byte <= 126 for byte in data):
        raise InputError(f"{path} must hold one token of {_LEAST_LENGTH} to {_LONGEST} characters without spaces")
    return data.decode("ascii")


def is_loopback(host: str) -> bool:
    """Whether an address, or a name, can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Guard:
    """Lets requests through to `app`, or answers 401 or 403."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope)
            except Refusal as refusal:
                await error_answer(refusal, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if self._token is None:
            _from_this_machine(headers)
        elif scope["path"] not in OPEN_PATHS:
            kind, _, given = headers.get(b"authorization", b"").partition(b" ")
            if not hmac.compare_digest(given.strip(), self._token) or kind.lower() != b"bearer":
                raise Refusal(
                    UNAUTHORISED, "a token is needed: Authorization: Bearer TOKEN", headers={"WWW-Authenticate": "Bearer"}
                )


def _from_this_machine(headers: dict[Any, bytes]) -> None:
    """Refuse requests of foreign pages in a browser here: under a name of its own, or as a request across sites."""
    host = headers.get(b"host", b"").decode("latin-1")
    if host and not is_loopback(_hostname(f"//{host}")):
        raise Refusal(FORBIDDEN, f"this server is for this machine, not for the host {host[:80]!r}: give it a --token-file")
    origin = headers.get(b"origin", b"").decode("latin-1")
    if origin and origin.partition("//")[2] != host:
        raise Refusal(FORBIDDEN, f"pages of {origin[:80]!r} may not ask this server: give it a --token-file")


def _hostname(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
