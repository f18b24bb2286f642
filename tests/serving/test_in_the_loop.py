"""Which inferences run in the event loop, where nothing else is answered meanwhile."""

from __future__ import annotations

import asyncio
import json

import pytest

from flexcomp.serving import make_app
from tests.serving.in_process import INFER, ask, serving


@pytest.fixture
def body(asked):
    return json.dumps(asked).encode()


def test_only_one_that_is_served_alone(first, body, monkeypatch):
    """Another would keep the loop from the body of a request that is there already."""
    here = []

    async def at_once() -> bytes:
        return body

    async def three(app) -> None:
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def slowly() -> bytes:
            begun.set()
            await goes_on.wait()
            return body

        assert await ask(app, INFER, len(body), at_once) == 200
        slow = asyncio.create_task(ask(app, INFER, len(body), slowly))
        await begun.wait()
        assert await ask(app, INFER, len(body), at_once) == 200  # beside the one whose body is to come
        goes_on.set()
        assert await slow == 200

    with serving(first.library, 8 << 20) as service:
        submit = service.pool.submit

        def noted(*args: object, **options: object) -> object:
            here.append(options["here"])
            return submit(*args, **options)

        monkeypatch.setattr(service.pool, "submit", noted)
        asyncio.run(three(make_app(service)))
    assert here == [True, False, True]


def test_none_that_takes_long(slow, body):
    """Health is answered while it runs, although it is served alone."""

    async def receive() -> bytes:
        return body

    async def answers(service) -> list[int]:
        """How often that was while each of a few ran."""
        app, counts = make_app(service), []
        for _ in range(4):
            running = asyncio.create_task(ask(app, INFER, len(body), receive))
            counts.append(0)
            while not running.done():
                await asyncio.sleep(1e-3)
                assert await ask(app, "/v2/health/live") == 200
                counts[-1] += service.pool.stats(at_once=False)["models"]["model"]["running"]
            assert await running == 200
        return counts

    with serving(slow.library, 5 << 20, keep=0, read_bandwidth=200e6) as service:  # a fifth of a second
        assert all(asyncio.run(answers(service)))
