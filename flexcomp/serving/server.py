"""The socket, the signals and the end of a server."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator
from types import FrameType

import uvicorn
import uvloop
from starlette.types import ASGIApp

from flexcomp.errors import InputError

from .auth import is_loopback
from .connection import Arrivals
from .inference import Service

_BACKLOG = 256
_IDLE_S = 30  # for which a connection is kept for the next request


def bind(host: str, port: int, with_token: bool) -> socket.socket:
    """A socket that listens on `host` and `port`, 0 for any that is free. Raises OSError, InputError without a token."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise OSError(f"there is no host {host}: {getattr(error, 'strerror', error)}") from None
    family, kind, protocol, _, address = found[0]
    if not with_token and not is_loopback(str(address[0])):
        raise InputError(f"{host} can be reached from other machines: say who may ask, with --token-file")
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listening


def serve(app: ASGIApp, service: Service, listening: socket.socket, grace_s: float) -> None:
    """Answer requests until SIGTERM, and for `grace_s` seconds more at most those that had come by then."""
    config = uvicorn.Config(
        app,
        http=Arrivals,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=max(1, round(grace_s)),
    )
    uvloop.run(_Server(config, service).serve(sockets=[listening]))


class _Server(uvicorn.Server):
    """Uvicorn's, which tells the service that it ends, and returns from SIGTERM instead of raising it again."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        service.count_connections = lambda: len(self.server_state.connections)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = signal.signal(signal.SIGTERM, self.handle_exit)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def handle_exit(self, number: int, frame: FrameType | None) -> None:
        self.should_exit = self._service.ending = True
