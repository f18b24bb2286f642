"""What a request holds, from its body until the system has its answer."""

from __future__ import annotations

import asyncio
import json

from flexcomp.serving import make_app
from flexcomp.serving.connection import SENT
from tests.serving.in_process import INFER, ask, serving


def test_an_answer_counts_until_it_is_sent(first, asked):
    body = json.dumps(asked | {"parameters": {"binary_data_output": True}}).encode()
    held, messages = [], []

    with serving(first.library, 8 << 20) as service:

        async def sent(within_s: float) -> None:
            held.append((service.room.used, within_s, len(messages)))

        async def receive() -> bytes:
            held.append(service.room.used)
            return body

        assert asyncio.run(ask(make_app(service), INFER, len(body), receive, messages, **{SENT: lambda: sent})) == 200
        assert [message["type"] for message in messages] == ["http.response.start", "http.response.body"]
        arrays = 3 * 1024  # input, output, and its bytes in the answer; the body's text is gone
        assert held == [len(body), (arrays, 5, 2)] and service.room.used == 0
