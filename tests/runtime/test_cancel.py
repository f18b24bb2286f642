"""Cancelling at any moment: the inference ends soon, the session is as before, and the next inference is right."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import flexcomp
from flexcomp.errors import CancelledError, ExecutionError
from tests.runtime.tiny import SLICE_NBYTES, close_to

SLOW = 20e6  # bytes per second: a slice takes 6.5 ms, an inference of the smallest budget 80


def ended(session, x) -> dict | None:
    """What an inference gives; None: it was cancelled."""
    try:
        return session.run({"x": x})
    except CancelledError as error:
        assert str(error) == "the inference was cancelled"
        return None


@contextmanager
def cancelling(session) -> Iterator[None]:
    """Cancels again and again: one cancel may come before the call that it is meant for."""
    ended = threading.Event()

    def cancel() -> None:
        while not ended.wait(0.05):
            session.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("bandwidth", [None, SLOW], ids=["disk", "slow storage"])
@pytest.mark.parametrize("rung", range(3))
def test_at_any_moment(tiny, x, budgets, rung, bandwidth):
    random.seed(rung)
    with flexcomp.load(tiny.library, budgets[rung], threads=2, read_bandwidth=bandwidth) as session:
        expected = session.run({"x": x})["out"]
        close_to(expected, tiny.reference(x))
        resident, took_s = session.resident_arena(), session.stats()["latency_ms"] * 1e-3
        went_on = threading.Event()
        outcomes: list[bool] = []

        def work():
            while not went_on.is_set():
                outputs = ended(session, x)
                outcomes.append(outputs is None)
                if outputs is not None:
                    np.testing.assert_array_equal(outputs["out"], expected)

        worker = threading.Thread(target=work)
        worker.start()
        for _ in range(12 if bandwidth else 60):
            time.sleep(random.random() * 1.2 * took_s)
            session.cancel()
        went_on.set()
        worker.join()
        assert True in outcomes or rung == 2  # with everything in memory it takes no time
        assert session.resident_arena() == resident
        np.testing.assert_array_equal(session.run({"x": x})["out"], expected)
        assert session.stats()["restarts"] == 0
        pinned = session.ladder[rung].pinned_bytes
        session.run({"x": x})
        assert session.stats()["bytes_read"] <= session.info["weights_bytes"] - pinned + 8192


def test_it_ends_before_the_inference_would(tiny, x, budgets):
    """No sooner than the read in flight, but long before the last one."""
    with flexcomp.load(tiny.library, budgets[0], read_bandwidth=SLICE_NBYTES / 0.1) as session:
        timer = threading.Timer(0.15, session.cancel)
        timer.start()
        began = time.monotonic()
        assert ended(session, x) is None
        assert time.monotonic() - began < 0.9  # of at least 1.2 s
        assert session.stats()["runs"] == 0


def test_loading_is_cancelled(tiny, x, budgets):
    with flexcomp.load(tiny.library, budgets[2], read_bandwidth=SLICE_NBYTES / 0.05) as session:
        with cancelling(session), pytest.raises(CancelledError):
            session.warm()
        session.set_budget(budgets[0])
        with cancelling(session), pytest.raises(CancelledError):
            session.read_rate()
    with flexcomp.load(tiny.library, budgets[0], read_bandwidth=SLOW) as session:
        close_to(session.run({"x": x})["out"], tiny.reference(x))


def test_calls_that_wait_their_turn_go_on(tiny, x, budgets):
    with flexcomp.load(tiny.library, budgets[0], read_bandwidth=SLICE_NBYTES / 0.02) as session:
        outcomes = []
        threads = [threading.Thread(target=lambda: outcomes.append(ended(session, x))) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        session.cancel()
        for thread in threads:
            thread.join()
        assert sorted(outputs is None for outputs in outcomes) == [False, False, True]


def test_nothing_to_cancel(tiny, x):
    session = flexcomp.load(tiny.library)
    session.cancel()
    close_to(session.run({"x": x})["out"], tiny.reference(x))
    session.close()
    with pytest.raises(ExecutionError, match="the session is closed"):
        session.cancel()
