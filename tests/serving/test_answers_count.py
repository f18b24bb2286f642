"""What a request holds, from its body until the system has its answer, and where it runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

import flexcomp
from flexcomp.serving import Metrics, Models, Room, Service, make_app
from flexcomp.serving.connection import SENT
from flexcomp.serving.logs import Log


@pytest.fixture
def service(first):
    with flexcomp.Pool(8 << 20, threads=1) as pool:
        room = Room(1 << 20)
        models = Models(pool, {"first": first.library})
        models.load("first")
        yield Service(pool, models, room, Metrics(pool, room), Log(), 5)


@pytest.fixture
def body(asked):
    return json.dumps(asked | {"parameters": {"binary_data_output": True}}).encode()


async def ask(service: Service, receive: Callable[[], Awaitable[bytes]], length: int, **state: object) -> list[dict]:
    """The messages that answer a request whose body `receive` gives, and whose client then waits."""
    messages, given = [], False

    async def receive_message() -> dict:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": await receive()}
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: dict) -> None:
        messages.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/v2/models/first/infer", "query_string": b"", "client": ("127.0.0.1", 1),
        "headers": [(b"host", b"localhost"), (b"content-length", b"%d" % length)], "state": state, "root_path": "",
    }  # fmt: skip
    await make_app(service)(scope, receive_message, send)
    return messages


def test_an_answer_counts_until_it_is_sent(service, body):
    held = []

    async def sent(within_s: float) -> None:
        held.append((service.room.used, within_s))

    async def receive() -> bytes:
        held.append(service.room.used)
        return body

    messages = asyncio.run(ask(service, receive, len(body), **{SENT: sent}))
    assert [message["type"] for message in messages] == ["http.response.start", "http.response.body"]
    arrays = 3 * 1024  # input, output, and its bytes in the answer; the body's text is gone
    assert held == [len(body), (arrays, 5)] and service.room.used == 0


def test_who_is_served_alone_runs_in_the_event_loop_and_nobody_else(service, body, monkeypatch):
    """It would keep the loop from whoever comes with the body of another request."""
    submit, where = service.pool.submit, []

    def noted(*args, here: bool, **options):
        where.append(here)
        return submit(*args, here=here, **options)

    monkeypatch.setattr(service.pool, "submit", noted)

    async def at_once() -> bytes:
        return body

    async def two() -> None:
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def slowly() -> bytes:
            begun.set()
            await goes_on.wait()
            return body

        slow = asyncio.create_task(ask(service, slowly, len(body)))
        await begun.wait()
        await ask(service, at_once, len(body))
        goes_on.set()
        await slow

    asyncio.run(ask(service, at_once, len(body)))
    asyncio.run(two())
    assert where == [True, False, True]
