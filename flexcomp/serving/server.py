"""The socket, the signals and the end of a server."""

from __future__ import annotations

import asyncio
import signal
import socket

import uvloop
from starlette.types import ASGIApp

from flexcomp.errors import InputError

from .auth import is_loopback
from .connection import Server
from .connections import Connections, affordable
from .service import Service

_BACKLOG = 1024  # connections that the system holds: one that comes when these are full is tried again after a second


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
    uvloop.run(_serve(app, service, listening, grace_s))


async def _serve(app: ASGIApp, service: Service, listening: socket.socket, grace_s: float) -> None:
    loop = asyncio.get_running_loop()
    connections = Connections(affordable(_BACKLOG), taken_s=service.within_s)
    service.crowded = lambda: connections.crowded
    told = asyncio.Event()

    def end() -> None:
        service.ending = True
        told.set()

    loop.add_signal_handler(signal.SIGTERM, end)
    server = await loop.create_server(Server(app, connections, service.log).connect, sock=listening, backlog=_BACKLOG)
    try:
        await told.wait()
        server.close()
        listening.close()  # or the system would go on taking connections
        await connections.end(grace_s)
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
