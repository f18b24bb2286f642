"""A server in a process of its own, a client with its request and the right answer, and networks to try both on."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import psutil

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp.runtime import made_inputs
from flexcomp.serving.protocol import HEADER, described

EXPECTED = (200, 429, 503)


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
    libraries: Sequence[Path | str], budget: str, *options: str, prefix: Sequence[str] = (), log: Path | None = None
) -> Iterator[tuple[str, psutil.Process]]:
    """A server's address, and the process that has its memory; `prefix` is a command that becomes the server.

    Its log goes to the file `log`.
    """
    serve = [sys.executable, "-m", "flexcomp", "serve", *map(str, libraries), "--budget", budget, "--port", "0"]
    command = [*prefix, *serve, *options]
    with tempfile.TemporaryFile("w+") if log is None else log.open("w+") as said:
        process = subprocess.Popen(command, stderr=said)
        try:
            while not (found := re.search(r"serving\b.*?\burl\W+(http[^\s\"]+)", _text(said))):
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
    """Requests for one network with one input each, and the right answers."""

    def __init__(self, library: Path) -> None:
        self.path = f"/v2/models/{library.stem}/infer"
        self.session = flexcomp.load(library)
        self.inputs = dict(zip((port.name for port in self.session.inputs), made_inputs(self.session.inputs), strict=True))
        self.right = self.session.run(self.inputs)
        binary = [{"parameters": {"binary_data_size": self.inputs[port.name].nbytes}} for port in self.session.inputs]
        entries = [entry | more for entry, more in zip(described(self.session.inputs), binary, strict=True)]
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
