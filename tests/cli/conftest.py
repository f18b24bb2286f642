"""A tiny network, built once, and the command line as a user calls it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.networks.graph import Graph
from flexcomp.runtime import read_info

from . import calls

Cli = Callable[..., subprocess.CompletedProcess]


def tiny_network() -> onnx.ModelProto:
    """Two convolutions and a dense layer: 290 kB of weights, most of them in the dense layer."""
    g = Graph("tiny", seed=1)
    x = g.relu(g.conv(g.input("x", (1, 3, 32, 32)), 32, 3))
    x = g.max_pool(g.relu(g.conv(x, 32, 3, stride=2)), 4, 4)
    x = g.op("Flatten", x, axis=1, channels=32 * 4 * 4)
    return g.model(g.dense(x, 128), (1, 128))


@pytest.fixture(scope="session")
def cli() -> Cli:
    """Call `flexcomp ARGS...` in a process of its own."""
    return calls.call


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny network as an .onnx file."""
    path = tmp_path_factory.mktemp("model") / "tiny.onnx"
    onnx.save(tiny_network(), path)
    return path


@pytest.fixture(scope="session")
def built(model: Path, cli: Cli) -> subprocess.CompletedProcess:
    """The outcome of `flexcomp build`; the library lies beside the model."""
    return cli("build", model, "-o", model.with_suffix(".so"), "--budget", "0.6")


@pytest.fixture(scope="session")
def library(model: Path, built: subprocess.CompletedProcess) -> Path:
    """The tiny network as a library."""
    assert built.returncode == 0, built.stderr
    return model.with_suffix(".so")


@pytest.fixture
def ladder(library: Path) -> list[int]:
    """Its budgets in bytes, ascending."""
    return [rung["budget_bytes"] for rung in read_info(library)["ladder"]]


@pytest.fixture
def image(tmp_path: Path) -> tuple[Path, np.ndarray]:
    """An input for the tiny network, as a file and as an array."""
    value = np.random.default_rng(5).standard_normal((1, 3, 32, 32), dtype=np.float32)
    np.save(tmp_path / "x.npy", value)
    return tmp_path / "x.npy", value
