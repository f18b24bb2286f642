"""What a request holds, from its body until the system has its answer."""

from __future__ import annotations

import asyncio
import json

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


def test_an_answer_counts_until_it_is_sent(service, asked):
    body = json.dumps(asked | {"parameters": {"binary_data_output": True}}).encode()
    held, messages = [], []

    async def sent(within_s: float) -> None:
        held.append((service.room.used, within_s, len(messages)))

    async def receive() -> dict:
        if not held:
            held.append(service.room.used)
            return {"type": "http.request", "body": body}
        await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    async def send(message: dict) -> None:
        messages.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/v2/models/first/infer", "query_string": b"", "client": ("127.0.0.1", 1),
        "headers": [(b"host", b"localhost"), (b"content-length", b"%d" % len(body))], "state": {SENT: sent}, "root_path": "",
    }  # fmt: skip
    asyncio.run(make_app(service)(scope, receive, send))
    assert [message["type"] for message in messages] == ["http.response.start", "http.response.body"]
    arrays = 3 * 1024  # input, output, and its bytes in the answer; the body's text is gone
    assert held == [len(body), (arrays, 5, 2)] and service.room.used == 0
