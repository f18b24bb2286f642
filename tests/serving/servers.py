"""`flexcomp serve` in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from tests.cli import calls

HOST = "127.0.0.1"


class Server:
    """A server that listens, until its `with` ends."""

    def __init__(
        self,
        *args: str | Path,
        token: str | None = None,
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = ("-m", "flexcomp"),
        is_forked: bool = True,
    ) -> None:
        """Without `is_forked`, or in an environment of its own, it is a process that imports everything itself."""
        command = [*program, "serve", *map(str, args), "--port", "0", "--log", "json"]
        environment = {**os.environ, "FLEXCOMP_PROBE": "0", **(env or {})}
        ends = os.pipe()
        self._stderr = os.fdopen(ends[0])
        with open(ends[1], "w") as stderr:
            if is_forked and env is None:
                self.process = calls.start(*command, stdout=2, stderr=stderr, env=environment)
            else:
                self.process = subprocess.Popen([sys.executable, *command], stderr=stderr, env=environment)
        self.said: list[dict] = []
        for line in self._stderr:
            self.said.append(json.loads(line) if line.startswith("{") else {"event": line})
            if self.said[-1]["event"] == "serving":
                break
        else:
            raise AssertionError(f"the server ended with {self.process.wait()}: {self.said}")
        self._reader = threading.Thread(target=self._read, daemon=True)  # or a full pipe would stop the server
        self._reader.start()
        self.url = self.said[-1]["url"]
        self.port = int(self.url.rpartition(":")[2])
        headers = {"Authorization": f"Bearer {token}"} if token else None
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=60)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self._reader.join()
        self._stderr.close()
        self.process.wait()

    def end(self) -> tuple[int, list[dict]]:
        """After SIGTERM: the exit code, and all that was logged."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> tuple[int, list[dict]]:
        code = self.process.wait(60)
        self._reader.join()
        return code, self.said

    def _read(self) -> None:
        for line in self._stderr:
            self.said.append(json.loads(line) if line.startswith("{") else {"event": line})

    def connection(self) -> socket.socket:
        return socket.create_connection((HOST, self.port), timeout=60)

    def metric(self, name: str, **labels: str) -> float | None:
        """A value from /metrics; None if it is not there."""
        from prometheus_client.parser import text_string_to_metric_families

        for family in text_string_to_metric_families(self.client.get("/metrics").text):
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return sample.value
        return None


def raw_request(path: str, body: bytes, *headers: str, length: int | None = None, method: str = "POST") -> bytes:
    """A request as it goes through a socket, with the length that it claims."""
    claimed = len(body) if length is None else length
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {claimed}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def answer_on(connection: socket.socket) -> bytes:
    """One whole answer."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += (received := connection.recv(65536))
        if not received:
            return answer
    head, _, body = answer.partition(b"\r\n\r\n")
    lengths = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    while not lengths or len(body) < lengths[0]:
        body += (received := connection.recv(65536))
        if not received:
            break
    return head + b"\r\n\r\n" + body


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])
