"""A service in this process, and requests that its application gets without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from starlette.types import ASGIApp, Message

import flexcomp
from flexcomp.serving import Metrics, Models, Room, Service, Whole
from flexcomp.serving.logs import Log

INFER = "/v2/models/model/infer"


@contextmanager
def serving(library: Path, budget: int, **options: object) -> Iterator[Service]:
    """Of `model`, in one lane with one thread; `options` are those of `Pool.add`."""
    with flexcomp.Pool(budget, threads=1) as pool:
        room = Room(1 << 20)
        models = Models(Whole(pool, budget), {"model": library}, options={"model": options})
        models.load("model")
        yield Service(pool, models, room, Metrics(pool, room), Log(), 5)


async def ask(
    app: ASGIApp,
    path: str,
    length: int | None = None,
    receive: Callable[[], Awaitable[bytes]] | None = None,
    messages: list[Message] | None = None,
    stay: Callable[[], Awaitable[object]] | None = None,
    sending: Callable[[Message], Awaitable[None]] | None = None,
    **state: object,
) -> int:
    """Status of the answer, whose `messages` come one by one.

    `receive` gives a body of that length; then the client waits, until `stay` ends if that is given. `sending` takes messages.
    """
    messages = [] if messages is None else messages
    waits = receive is None

    async def receive_message() -> Message:
        nonlocal waits
        if not waits:
            waits = True
            return {"type": "http.request", "body": await receive()}
        await (stay() if stay else asyncio.sleep(60))
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        messages.append(message)
        if sending is not None:
            await sending(message)

    headers = [(b"host", b"localhost")] + ([] if length is None else [(b"content-length", b"%d" % length)])
    scope = {
        "type": "http", "method": "GET" if receive is None else "POST", "path": path, "query_string": b"", "headers": headers,
        "client": ("127.0.0.1", 1), "state": state, "root_path": "",
    }  # fmt: skip
    await app(scope, receive_message, send)
    return messages[0]["status"]
