"""The network of these tests, built once."""

from __future__ import annotations

import numpy as np
import pytest

import flexcomp
from tests.api import bindings, network


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "small.so"
    flexcomp.build(network.model(), state=network.STATE, threads=1).export_library(path)
    return path


@pytest.fixture
def session(library):
    opened = bindings.opened(library)
    yield opened
    bindings.call("close", opened)


@pytest.fixture
def x():
    return np.random.default_rng(1).standard_normal((1, 16)).astype("f4")


@pytest.fixture
def n():
    return np.int64([1, 2, 3])


@pytest.fixture
def y():
    return np.empty((1, network.WIDTH), "f4")
