"""Shared by all tests."""

from __future__ import annotations

import gc
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import flexcomp
import flexcomp.passes

# A shell starts what it runs in the background with Ctrl-C ignored, nohup with hang-ups, and so what tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Plans of the suite are the same on every storage; tests of the probe ask for it.
os.environ["FLEXCOMP_PROBE"] = "0"

# The first test that needs runtime, runner or server for another machine compiles them: with -O0 in half of the time.
os.environ.setdefault("FLEXCOMP_CXXFLAGS", "-O0")

# Kernels for this machine compile in a third of the time, and compute the same. Tests of the code itself ask for LLVM's usual
# level: the kernels of convolutions, whole networks, and what is measured.
os.environ.setdefault("FLEXCOMP_OPT_LEVEL", "0")

# Property tests draw the same examples in every run, on slow machines too. `make fuzz` draws others (tests/fuzz/properties.py).
settings.register_profile(
    "suite", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("fuzz", settings.get_profile("suite"), derandomize=False)
settings.load_profile("suite")

ROOT = Path(__file__).resolve().parent.parent

# An installed copy, or another checkout's editable install, would be tested in silence.
assert Path(flexcomp.passes.__file__).is_relative_to(ROOT), (
    f"flexcomp.passes comes from {flexcomp.passes.__file__}, not from {ROOT}: run `make test`"
)


@pytest.fixture(scope="session")
def variants() -> flexcomp.Artifact:
    """The network of several kernels per layer, compiled once, for one thread, for the files that look at it."""
    from tests.conformance.verdict import UNOPTIMISED
    from tests.network.variants import network

    return flexcomp.build(network(), UNOPTIMISED, threads=1)


@pytest.fixture(scope="session")
def decoder_library(tmp_path_factory) -> Path:
    """A decoder of 2048 places with its tokenizer, compiled once for all tests that generate text."""
    from tests.generation import decoders

    return decoders.kept(tmp_path_factory.mktemp("decoder"))


@pytest.fixture(scope="session")
def draft_library(tmp_path_factory) -> Path:
    """One of a layer, with the same tokenizer, and fewer places."""
    from tests.generation import decoders

    return decoders.kept(tmp_path_factory.mktemp("draft"), replace(decoders.FORM, layers=1, capacity=512))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole networks first: one worker takes them, and the other steals small tests from behind them, to the end."""
    items.sort(key=lambda item: not item.path.is_relative_to(ROOT / "tests" / "networks"))


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: the garbage collector need not look through them again and again."""
    gc.collect()
    gc.freeze()
