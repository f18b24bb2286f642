"""Many clients at once, and many requests of one: the statuses of the answers, and the growth of the server's memory."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import httpx
import numpy as np
import psutil

from benchmarks.serve.served import HEADER, Client


async def crowd(url: str, clients: list[Client], count: int, seconds: float) -> tuple[Counter, np.ndarray]:
    """Statuses of the answers to `count` clients, which ask again at once, and the latencies of results, ms."""
    statuses: Counter = Counter()
    took = []
    until = time.monotonic() + seconds

    async def ask(index: int) -> None:
        client = clients[index % len(clients)]
        async with httpx.AsyncClient(base_url=url, timeout=60, verify=False) as web:  # certificates take long to read
            while time.monotonic() < until:
                began = time.perf_counter()
                try:
                    response = await web.post(client.path, content=client.body, headers=client.headers)
                except httpx.HTTPError as error:
                    statuses[type(error).__name__] += 1
                    continue
                statuses[response.status_code] += 1
                if response.status_code == 200:
                    took.append(1e3 * (time.perf_counter() - began))
                    client.check(int(response.headers[HEADER]), response.content)
                else:
                    await asyncio.sleep(0.1 * float(response.headers.get("retry-after", 1)))

    await asyncio.gather(*(ask(index) for index in range(count)))
    return statuses, np.array(took or [np.nan])


def growth(url: str, process: psutil.Process, clients: list[Client], requests: int) -> list[int]:
    """The server's resident memory, bytes, after each tenth of the requests, of which every tenth is a wrong one."""
    seen = []
    with httpx.Client(base_url=url) as web:
        for index in range(requests):
            client = clients[index % len(clients)]
            if index % 10 == 9:
                web.post(client.path, content=client.body[:-1], headers=client.headers)
            else:
                web.post(client.path, content=client.body, headers=client.headers).raise_for_status()
            if (index + 1) % (requests // 10) == 0:
                seen.append(process.memory_info().rss)
    return seen
