"""The network of several kernels per layer, compiled once for the files that look at it."""

from __future__ import annotations

import pytest

import flexcomp


@pytest.fixture(scope="session")
def variants() -> flexcomp.Artifact:
    """Compiled for one thread."""
    from .test_variants import network

    return flexcomp.build(network(), threads=1)
