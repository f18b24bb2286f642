"""The server: latency over HTTP, a crowd of clients, growth of memory, and memory while everything changes.

    python -m benchmarks.serve [a.so b.so --budget 200MB] [--only latency crowd growth memory]

Without libraries two small networks are built, whose inputs are pictures of 600 KB.

latency   medians of `Session.run`, of a server that answers at once, and of requests by two clients, in turns
crowd     `--clients` at once for `--seconds`: answers by status; right are 200, 429 and 503
growth    the server's resident memory over `--requests` requests, after a first tenth for settling
memory    the same number of requests, while the budget and the models change at random: bytes over the budget in force

The exit status is 1 if an answer was wrong or had another status, memory grew by more than GROWTH_LIMIT, or exceeded the
budget by more than 4 MiB and 1.5 MiB for each model.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx
import numpy as np
import psutil

from benchmarks import cgroup
from benchmarks.results import Results, Table, json_option
from benchmarks.serve.latency import latencies
from benchmarks.serve.memory import hold
from benchmarks.serve.served import EXPECTED, HEADER, Client, build_networks, served

TOPICS = ("latency", "crowd", "growth", "memory")
GROWTH_LIMIT = 2 << 20  # bytes
_MIB = 2**20


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


def measure_latency(url: str, client: Client, rounds: int) -> Table:
    """Medians, and those of the differences from `Session.run` in the same round."""
    took = latencies(url, client, rounds)
    inside = took["session"]
    table = Table({"way": "", "median, ms": ".3f", "over Session.run": "+.3f", "90 %": ".3f"}, f"{len(client.body):,} bytes")
    for way, ms in took.items():
        table.add(way, np.median(ms), np.median(ms - inside), np.percentile(ms, 90))
    return table


def measure_crowd(url: str, clients: list[Client], count: int, seconds: float) -> tuple[Table, bool]:
    """Answers by status, and whether all of them are expected."""
    statuses, took = asyncio.run(crowd(url, clients, count, seconds))
    table = Table({"status": "", "answers": ",d"}, f"{count} clients, {seconds:g} s")
    for status, number in sorted(statuses.items(), key=str):
        table.add(str(status), number)
    median, most = np.percentile(took, (50, 99))
    print(f"results: median {median:.1f} ms, 99 % {most:.1f} ms")
    return table, set(statuses) <= set(EXPECTED)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("libraries", nargs="*", type=Path)
    parser.add_argument("--only", nargs="+", choices=TOPICS, default=TOPICS, metavar="TOPIC")
    parser.add_argument("--budget", default="20MB")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    json_option(parser, "serve")
    asked = parser.parse_args()
    if "memory" in asked.only and not cgroup.is_available():
        parser.error("this machine lets nobody make memory control groups: choose other topics by --only")
    written, tables, figures, right = Results.begin("benchmarks.serve"), [], {}, True
    with tempfile.TemporaryDirectory() as folder:
        libraries = asked.libraries or build_networks(Path(folder))
        clients = [Client(library) for library in libraries]
        with served(libraries, asked.budget) as (url, process):
            if "latency" in asked.only:
                tables.append(measure_latency(url, clients[0], asked.rounds))
            if "crowd" in asked.only:
                table, good = measure_crowd(url, clients, asked.clients, asked.seconds)
                tables.append(table)
                right &= good
            if "growth" in asked.only:
                seen = growth(url, process, clients, asked.requests)
                tables.append(Table({"requests": ",d", "resident, MiB": ".2f"}))
                for tenth, nbytes in enumerate(seen, 1):
                    tables[-1].add(tenth * asked.requests // 10, nbytes / _MIB)
                right &= seen[-1] - seen[0] <= GROWTH_LIMIT
        if "memory" in asked.only:
            held, figures = hold(libraries, clients, asked.requests, asked.seed)
            tables.append(Table({"run": "", "over the budget, MiB": "+.2f", "limit, MiB": ".1f"}))
            for run in ("over", "inside_over"):
                name = "free" if run == "over" else f"in a group of {figures['group_bytes'] / _MIB:.1f} MiB"
                tables[-1].add(name, figures[f"{run}_bytes"] / _MIB, figures["limit_bytes"] / _MIB)
            right &= held
        for client in clients:
            client.session.close()
    written.write(asked.json, tables, figures=figures)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
