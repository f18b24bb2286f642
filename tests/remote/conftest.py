"""A tracker, and servers behind it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import flexcomp
from tests.cli.conftest import cli, tiny_network  # noqa: F401  (a fixture)
from tests.remote.servers import python_servers, running_tracker


@pytest.fixture(scope="module")
def tracker():
    with running_tracker() as address:
        yield address


@pytest.fixture(scope="module")
def board(tracker):
    """The tracker of a Python server with the key "board"."""
    with python_servers(tracker):
        yield tracker


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """The tiny network for this machine."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.so"
    flexcomp.build(tiny_network(), budget="0.6", threads=2).export_library(path)
    return path


@pytest.fixture(scope="session")
def image() -> np.ndarray:
    return np.random.default_rng(5).standard_normal((1, 3, 32, 32), dtype=np.float32)
