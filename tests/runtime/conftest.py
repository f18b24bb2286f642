"""The tiny network, exported once for all tests of the runtime."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from tests.runtime import tiny as builder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """One exported network; tests that damage it copy it first."""
    return builder.export(tmp_path_factory.mktemp("tiny") / "tiny.so", "first_")


@pytest.fixture(scope="session")
def other(tmp_path_factory):
    """Another network of the same shapes: other kernels' names, other weights."""
    return builder.export(tmp_path_factory.mktemp("other") / "other.so", "second_", seed=7)


@pytest.fixture
def copy(tiny, tmp_path):
    """The tiny network's library with a weights file of its own, to be damaged."""
    library = tmp_path / "copy.so"
    library.symlink_to(tiny.library)
    weights = tmp_path / "copy.weights"
    shutil.copy(tiny.weights, weights)
    return library, weights


@pytest.fixture
def budgets(tiny):
    """Of its rungs, ascending."""
    return [rung.budget for rung in tiny.program.rungs]


@pytest.fixture(scope="session")
def x():
    return np.random.default_rng(1).standard_normal(256).astype("f4")
