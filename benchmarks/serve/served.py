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
    libraries: list[Path], budget: str, *options: str, prefix: Sequence[str] = ()
) -> Iterator[tuple[str, psutil.Process]]:
    """A server's address, and the process that has its memory; `prefix` is a command that becomes the server."""
    serve = [sys.executable, "-m", "flexcomp", "serve", *map(str, libraries), "--budget", budget, "--port", "0"]
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
    """Requests for one network with one input each, and the right answers."""

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
