"""A client that goes away while its inference runs: the inference ends, and the next client is answered."""

from __future__ import annotations

import asyncio
import json
import time

from flexcomp.serving import make_app
from tests.serving.in_process import INFER, ask, serving


def test_an_inference_ends_when_its_client_goes(first, asked):
    body = json.dumps(asked).encode()
    with serving(first.library, 8 << 20, read_bandwidth=2e6) as service:  # the inference takes 0.8 s

        def stats() -> dict:
            return service.pool.stats()["models"]["model"]

        async def receive() -> bytes:
            return body

        async def until_it_runs() -> None:
            while not stats()["running"]:
                await asyncio.sleep(0.001)

        asyncio.run(ask(make_app(service), INFER, len(body), receive, stay=until_it_runs))
        while stats()["running"]:
            time.sleep(0.001)
        assert stats()["total_bytes_read"] < first.program.weights_nbytes
        assert (stats()["cancelled"], stats()["completed"], stats()["failed"]) == (1, 0, 0)
        assert asyncio.run(ask(make_app(service), INFER, len(body), receive)) == 200
