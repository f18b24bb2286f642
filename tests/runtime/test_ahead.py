"""The first loads of an inference are read while the one before it ends."""

from __future__ import annotations

import time

import numpy as np
import pytest

import flexcomp
from flexcomp.errors import StorageError
from tests.runtime import hooks


def close_to(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.fixture
def planned(tiny):
    rung = tiny.program.rungs[0]
    assert sum(load.ahead for load in rung.loads) == 3
    return rung


@pytest.fixture
def budgets(tiny):
    return [rung.budget for rung in tiny.program.rungs]


def nbytes(loads):
    return sum(load.nbytes for load in loads)


def wait_for(session, total):
    deadline = time.monotonic() + 5
    while session.stats()["total_bytes_read"] < total and time.monotonic() < deadline:
        time.sleep(0.001)
    assert session.stats()["total_bytes_read"] == total


def test_each_inference_is_loaded_once_and_the_next_begun(tiny, x, planned):
    ahead = nbytes(load for load in planned.loads if load.ahead)
    with flexcomp.load(tiny.library, "min") as session:
        for run in range(1, 5):
            close_to(session(x), tiny.reference(x))
            assert session.stats()["bytes_read"] == nbytes(planned.loads)
            assert session.stats()["reads"] == len(planned.loads)
            wait_for(session, run * nbytes(planned.loads) + ahead)


def test_reading_goes_on_between_inferences(tiny, x, planned):
    with flexcomp.load(tiny.library, "min", trace=True, read_bandwidth=50e6) as session:
        session(x)
        wait_for(session, nbytes(planned.loads) + nbytes(load for load in planned.loads if load.ahead))
        session(x)
        trace = session.trace()
        for load, (_, end) in zip(planned.loads, trace.loads, strict=True):
            assert (end <= trace.begin_ns) == load.ahead


def test_a_switch_gives_up_what_was_begun(tiny, x, budgets):
    with flexcomp.load(tiny.library, "min", read_bandwidth=200e6) as session:
        for budget in (budgets[1], budgets[0], budgets[2], budgets[0], budgets[0]):
            close_to(session(x), tiny.reference(x))
            session.set_budget(budget)
        close_to(session(x), tiny.reference(x))


def test_a_session_can_be_closed_while_it_reads_ahead(tiny, x):
    for _ in range(5):
        with flexcomp.load(tiny.library, "min", read_bandwidth=100e6) as session:
            session(x)


def test_an_error_of_reading_ahead_belongs_to_the_inference_it_was_for(tiny, x, planned):
    for nth in range(3):
        with hooks.load(tiny.library, "min", fail_read_at=len(planned.loads) + 1 + nth) as session:
            close_to(session(x), tiny.reference(x))
            with pytest.raises(StorageError, match="Input/output error"):
                session(x)
            close_to(session(x), tiny.reference(x))
            assert session.stats()["bytes_read"] == nbytes(planned.loads)


def test_no_inference_is_skipped(tmp_path, x):
    """Where all is read ahead an inference may end before the loader knows of it; the next one is read all the same."""
    from tests.runtime import tiny as builder

    tiny = builder.export(tmp_path / "ahead.so", "ahead_", layers=2, plan=builder.all_ahead)
    assert all(load.ahead or load.pinned for load in tiny.program.rungs[0].loads)
    streamed = nbytes(load for load in tiny.program.rungs[0].loads if load.ahead)
    random = np.random.default_rng(2)
    with flexcomp.load(tiny.library, threads=1) as session:
        first = session(x)
        close_to(first, tiny.reference(x))
        for _ in range(2000):
            time.sleep(random.choice((0, 0, 2e-5, 2e-4, 5e-4, 1e-3)))
            np.testing.assert_array_equal(session(x), first)
            assert session.stats()["bytes_read"] == streamed
