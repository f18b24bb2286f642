"""What a server adds to a pool, and whether it stands a crowd.

    python -m benchmarks.serving [--seconds 60] [--clients 200] [--requests 20000] [--rounds 300] [a.so b.so --budget 200MB]

Without libraries it builds two small networks whose inputs are pictures of 600 KB.

added     one client with binary tensors in turns with `Session.run` on the same input: the medians' difference
crowd     `--clients` clients at once for `--seconds`: answers by status; right are 200, 429 and 503
growth    the server's resident memory over `--requests` requests, after a first tenth in which it settles

The exit status is 1 if the crowd got another status, an answer was wrong, or memory grew by more than GROWTH_LIMIT.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import numpy as np
import psutil

import flexcomp
from benchmarks.networks.graph import Graph

ADDED_LIMIT_MS = 1.0  # for a picture of 600 KB; said, not judged: the machine may be busy
GROWTH_LIMIT = 2 << 20  # bytes
EXPECTED = (200, 429, 503)
HEADER = "Inference-Header-Content-Length"


def build_networks(folder: Path) -> list[Path]:
    """Two small networks of pictures."""
    libraries = []
    for seed, name in enumerate(("left", "right")):
        g = Graph(name, seed=seed)
        x = g.relu(g.conv(g.input("x", (1, 3, 224, 224)), 16, 3, stride=4))
        x = g.max_pool(g.relu(g.conv(x, 32, 3, stride=2)), 4, 4)
        x = g.op("Flatten", x, axis=1, channels=32 * 7 * 7)
        libraries.append(folder / f"{name}.so")
        flexcomp.build(g.model(g.dense(x, 64), (1, 64)), threads=1, probe=False).export_library(libraries[-1])
    return libraries


@contextlib.contextmanager
def served(
    libraries: list[Path], budget: str, *options: str, prefix: Sequence[str] = (), python: str = sys.executable
) -> Iterator[tuple[str, psutil.Process]]:
    """A server's address, and the process that has its memory; `prefix` is a command that becomes the server."""
    serve = [python, "-m", "flexcomp", "serve", *map(str, libraries), "--budget", budget, "--port", "0"]
    command = [*prefix, *serve, *options]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stderr=said)
        try:
            while not (found := re.search(r"serving url=(\S+)", _text(said))):
                if process.poll() is not None:
                    sys.exit(f"error: the server ended: {_text(said)}")
                time.sleep(0.05)
            yield found[1], psutil.Process(process.pid).children()[0]
            process.send_signal(signal.SIGTERM)
            if code := process.wait(60):
                sys.exit(f"error: the server ended with {code}: {_text(said)}")
        finally:
            if process.poll() is None:
                process.kill()


def _text(file) -> str:
    file.seek(0)
    return file.read()


class Client:
    """Requests for one network with one input each, and what they must give."""

    def __init__(self, library: Path) -> None:
        self.path = f"/v2/models/{library.stem}/infer"
        self.session = flexcomp.load(library)
        rng = np.random.default_rng(1)
        self.inputs = {
            port.name: rng.standard_normal(port.shape).astype(port.array_dtype)
            if port.dtype.startswith("float")
            else np.zeros(port.shape, port.array_dtype)
            for port in self.session.inputs
        }
        self.right = self.session.run(self.inputs)
        names = {"float32": "FP32", "float64": "FP64", "float16": "FP16", "bfloat16": "BF16", "bool": "BOOL"}
        entries = [
            {
                "name": port.name,
                "shape": list(port.shape),
                "datatype": names.get(port.dtype, port.dtype.upper()),
                "parameters": {"binary_data_size": self.inputs[port.name].nbytes},
            }
            for port in self.session.inputs
        ]
        text = json.dumps({"inputs": entries, "parameters": {"binary_data_output": True}}).encode()
        self.body = text + b"".join(array.tobytes() for array in self.inputs.values())
        self.headers = {HEADER: str(len(text))}

    def check(self, length: int, content: bytes) -> None:
        """Raise unless the outputs are those of a session, up to rounding: other budgets take other kernels."""
        rest = content[length:]
        for entry in json.loads(content[:length])["outputs"]:
            nbytes = entry["parameters"]["binary_data_size"]
            right = self.right[entry["name"]]
            given, rest = np.frombuffer(rest[:nbytes], right.dtype).reshape(right.shape), rest[nbytes:]
            np.testing.assert_allclose(given, right, rtol=1e-3, atol=1e-3 * np.abs(right).max())


def added_ms(url: str, client: Client, rounds: int) -> tuple[float, float, float]:
    """Medians of a session and of the server in turns, and of the differences between the two of each turn."""
    inside, outside = [], []
    address = url.removeprefix("http://")
    with contextlib.closing(http.client.HTTPConnection(address)) as connection:  # whose own part is the smallest
        for _ in range(rounds):
            began = time.perf_counter()
            client.session.run(client.inputs)
            inside.append(time.perf_counter() - began)
            began = time.perf_counter()
            connection.request("POST", client.path, client.body, client.headers)
            response = connection.getresponse()
            content = response.read()
            outside.append(time.perf_counter() - began)
            client.check(int(response.headers[HEADER]), content)
    a, b = 1e3 * np.array(inside), 1e3 * np.array(outside)
    return float(np.median(a)), float(np.median(b)), float(np.median(b - a))


async def crowd(url: str, clients: list[Client], count: int, seconds: float) -> tuple[Counter, np.ndarray]:
    """Statuses of what `count` clients asked, each as soon as it was answered, and the latencies of results, ms."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libraries", nargs="*", type=Path)
    parser.add_argument("--budget", default="20MB")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=300)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        libraries = asked.libraries or build_networks(Path(folder))
        clients = [Client(library) for library in libraries]
        with served(libraries, asked.budget) as (url, process):
            idle = process.memory_info().rss
            inside, outside, added = added_ms(url, clients[0], asked.rounds)
            size = len(clients[0].body)
            print(f"added: {size} bytes: Session.run {inside:.3f} ms, over HTTP {outside:.3f}, {added:+.3f} (≤ {ADDED_LIMIT_MS})")
            statuses, took = asyncio.run(crowd(url, clients, asked.clients, asked.seconds))
            listed = ", ".join(f"{count} of {status}" for status, count in sorted(statuses.items(), key=str))
            median, worst = np.percentile(took, (50, 99))
            print(f"crowd: {asked.clients} clients, {asked.seconds:g} s: {listed}; median {median:.1f} ms, 99 % {worst:.1f} ms")
            seen = growth(url, process, clients, asked.requests)
            grown = seen[-1] - seen[0]
            steps = ", ".join(f"{rss / 2**20:.2f}" for rss in seen)
            print(f"growth: {grown / 2**20:+.2f} MiB over {asked.requests} requests; idle {idle / 2**20:.2f}, then {steps} MiB")
        for client in clients:
            client.session.close()
    sys.exit(bool(set(statuses) - set(EXPECTED) or grown > GROWTH_LIMIT))


if __name__ == "__main__":
    os.environ.setdefault("FLEXCOMP_PROBE", "0")
    main()
