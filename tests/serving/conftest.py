"""Two tiny networks, one that takes its time, and a server for them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime import tiny as builder
from tests.serving.servers import Server


@pytest.fixture(scope="session")
def first(tmp_path_factory):
    return builder.export(tmp_path_factory.mktemp("served") / "first.so", "first_")


@pytest.fixture(scope="session")
def second(tmp_path_factory):
    return builder.export(tmp_path_factory.mktemp("served") / "second.so", "second_", seed=7)


@pytest.fixture(scope="session")
def slow(tmp_path_factory):
    """150 layers, of which the smallest budget reads 39 MB in every inference."""
    return builder.export(tmp_path_factory.mktemp("served") / "slow.so", "third_", layers=150, seed=3)


@pytest.fixture(scope="session")
def server(first, second):
    with Server(first.library, second.library, "--budget", "20MB") as server:
        yield server


@pytest.fixture(scope="session")
def x():
    return np.random.default_rng(1).standard_normal(256).astype("f4")


@pytest.fixture(scope="session")
def asked(x):
    """An inference, in JSON."""
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [256], "data": x.tolist()}]}
