"""Budgets that change while inferences run."""

from __future__ import annotations

import contextlib
import threading
import time

import numpy as np
import pytest

import flexcomp
from flexcomp.errors import ExecutionError

SLOW = 20e6  # bytes per second: an inference of the smallest budget takes a tenth of a second


def start(function):
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_a_smaller_budget_stops_the_inference_in_progress(tiny, x, budgets):
    """It begins anew on the smaller plan, and the memory is back when the call returns."""
    with flexcomp.load(tiny.library, "all", read_bandwidth=SLOW, trace=True) as session:
        results = []
        worker = start(lambda: results.append(session(x)))
        time.sleep(0.03)  # reading what will be pinned takes 80 ms
        assert session.stats()["runs"] == 0
        assert session.set_budget("min").budget_bytes == budgets[0]
        assert session.stats()["arena_bytes"] == tiny.program.rungs[0].arena
        assert session.stats()["runs"] == 0
        worker.join()
        assert session.stats()["restarts"] == 1 and session.stats()["runs"] == 1
        assert session.trace().rung == 0
        np.testing.assert_allclose(results[0], tiny.reference(x), rtol=1e-4, atol=1e-5)


def test_memory_goes_back_before_reads_into_it_end(tiny, x, budgets):
    """Direct reads hold their own pages: nobody waits for slow storage."""
    with flexcomp.load(tiny.library, "all", read_bandwidth=SLOW / 20) as session:
        if not session.stats()["direct_io"]:
            pytest.skip(f"{tiny.library} lies on a file system without O_DIRECT: set TMPDIR to one that has it")
        before = resident_bytes()
        results = []
        worker = start(lambda: results.append(session(x)))
        time.sleep(0.05)
        switched = time.monotonic()
        session.set_budget("min")
        assert time.monotonic() - switched < 0.5  # eight reads of 128 KiB are in flight, and take a second
        assert resident_bytes() - before < tiny.program.rungs[0].arena + 4 * 2**20
        worker.join()
        np.testing.assert_allclose(results[0], tiny.reference(x), rtol=1e-4, atol=1e-5)


def test_switches_between_inferences_wait_for_no_read_ahead(tiny, x, budgets):
    with flexcomp.load(tiny.library, "min", read_bandwidth=SLOW) as session:
        for budget in [*budgets, *reversed(budgets)]:
            session(x)
            assert session.set_budget(budget).budget_bytes == session.budget == budget
            session.set_budget("min")
            session.set_budget(budget)
            np.testing.assert_allclose(session(x), tiny.reference(x), rtol=1e-4, atol=1e-5)


def test_a_larger_budget_waits_for_the_next_inference(tiny, x, budgets):
    with flexcomp.load(tiny.library, "min", read_bandwidth=SLOW / 10, trace=True) as session:
        worker = start(lambda: session(x))
        time.sleep(0.03)
        assert session.set_budget("all").budget_bytes == budgets[2]
        assert session.stats()["runs"] == 0  # the inference takes a second
        assert session.budget == budgets[0]
        worker.join()
        assert session.stats()["restarts"] == 0 and session.trace().rung == 0
        assert session.budget == budgets[2]


def test_the_last_wish_counts(tiny, x, budgets):
    """Down and up again while an inference runs."""
    with flexcomp.load(tiny.library, budgets[1], read_bandwidth=SLOW) as session:
        worker = start(lambda: session(x))
        time.sleep(0.03)
        session.set_budget(budgets[0])
        session.set_budget(budgets[2])
        worker.join()
        assert session.budget == budgets[2]
        np.testing.assert_allclose(session(x), tiny.reference(x), rtol=1e-4, atol=1e-5)


def test_an_interrupted_session_can_be_closed(tiny, x, budgets):
    session = flexcomp.load(tiny.library, "all", read_bandwidth=SLOW)
    worker = start(lambda: session(x))
    time.sleep(0.03)

    def shrink():
        with contextlib.suppress(ExecutionError):  # the close may come first
            session.set_budget("min")

    shrinker = start(shrink)
    session.close()
    worker.join()
    shrinker.join()


def test_random_switches_under_concurrent_runs(tiny, x, budgets):
    """Every output is right, and no arena is left behind."""
    expected, failures, runs, stop = tiny.reference(x), [], [], threading.Event()
    with flexcomp.load(tiny.library, "min", threads=2) as session:
        session(x)
        floor = resident_bytes() - tiny.program.rungs[0].arena

        def use():
            try:
                while not stop.is_set():
                    np.testing.assert_allclose(session(x), expected, rtol=1e-4, atol=1e-5)
                    runs.append(1)
            except BaseException as error:
                failures.append(error)

        workers = [start(use) for _ in range(3)]
        rng = np.random.default_rng(7)
        try:
            for switch in range(10_000):
                if switch >= 400 and len(runs) > 50:
                    break
                budget = int(rng.choice(budgets))
                rung = session.set_budget(budget)
                assert rung.budget_bytes == budget
                assert resident_bytes() - floor < rung.arena_bytes + 4 * 2**20
                time.sleep(rng.uniform(0, 0.002))
        finally:
            stop.set()
            for worker in workers:
                worker.join()
        assert not failures
        assert len(runs) > 50 and session.stats()["runs"] == len(runs) + 1
