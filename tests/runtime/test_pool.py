"""Several models under one budget: outputs, what is held, refusals, faults."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import flexcomp
from flexcomp.errors import ArtifactError, BudgetError, ExecutionError, InputError, RefusedError, StorageError
from flexcomp.runtime import ladder_of, least_bytes, read_info, shares
from flexcomp.runtime.load_options import hooked
from tests.runtime import tiny as builder

_MB = 1 << 20
two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two lanes need two cores")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Two networks whose larger rungs are faster."""

    def faster(program):
        times = [rung.arena - rung.working for rung in program.rungs]
        return replace(
            program,
            rungs=tuple(replace(r, seconds=1e-3 * (2 - t / max(times))) for r, t in zip(program.rungs, times, strict=True)),
        )

    folder = tmp_path_factory.mktemp("pool")
    return {
        name: builder.export(folder / f"{name}.so", f"pool_{name}_", seed=seed, plan=faster)
        for seed, name in enumerate(("first", "second"))
    }


@pytest.fixture
def pool(both):
    with flexcomp.Pool(4 * _MB, threads=1) as made:
        for name, network in both.items():
            made.add(name, network.library)
        yield made


def _least(both):
    return least_bytes([ladder_of(read_info(network.library)) for network in both.values()])


def test_models_take_turns(pool, both, x):
    for _ in range(5):
        for name, network in both.items():
            builder.close_to(pool.run(name, {"x": x})["out"], network.reference(x))
    stats = pool.stats()
    assert [model["completed"] for model in stats["models"].values()] == [5, 5]
    assert stats["claimed_bytes"] <= stats["budget_bytes"]


def test_in_the_least_memory_there_is(both, x):
    """The working range once, not twice; streamed, and read ahead only where the same model comes next."""
    least = _least(both)
    apart = sum(network.program.rungs[0].arena for network in both.values())
    assert least < apart
    with flexcomp.Pool(least, threads=1) as pool:
        for name, network in both.items():
            pool.add(name, network.library)
        for name in ("first", "first", "second", "first", "second", "second"):
            builder.close_to(pool.run(name, {"x": x})["out"], both[name].reference(x))
        assert pool.resident_arena() <= least
        futures = [(name, pool.submit(name, {"x": x})) for name in ("first", "second", "first", "first", "second") * 4]
        for name, future in futures:
            builder.close_to(future.result(30)["out"], both[name].reference(x))
        assert pool.stats()["claimed_bytes"] <= least


@two_cores
def test_one_model_more_than_fits_changes_nothing(both, x):
    least = _least(both)
    with flexcomp.Pool(2 * least - 1, lanes=2) as pool:
        pool.add("first", both["first"].library)
        with pytest.raises(BudgetError, match=f"too small for 2 models.* {2 * least} bytes"):
            pool.add("second", both["second"].library)
        assert pool.models == ("first",)
        builder.close_to(pool.run("first", {"x": x})["out"], both["first"].reference(x))
        with pytest.raises(BudgetError, match="too small for 1 model:"):
            pool.set_budget(1000)
        builder.close_to(pool.run("first", {"x": x})["out"], both["first"].reference(x))


def test_a_library_under_two_names_is_held_once(both, x):
    network = both["first"]
    resident = network.program.rungs[-1].arena
    with flexcomp.Pool(resident + 4096) as pool:
        pool.add("one", network.library)
        pool.add("two", network.library, urgency=3)
        for name in ("one", "two"):
            builder.close_to(pool.run(name, {"x": x})["out"], network.reference(x))
        stats = pool.stats()["models"]
        assert stats["one"]["total_bytes_read"] == stats["two"]["total_bytes_read"] < network.weights.stat().st_size + 8192
        pool.remove("one")
        builder.close_to(pool.run("two", {"x": x})["out"], network.reference(x))


def test_one_library_added_by_several_threads_is_held_once(both, x):
    network = both["first"]
    for _ in range(5):
        with flexcomp.Pool(network.program.rungs[-1].arena + 4096, threads=1) as pool:
            threads = [threading.Thread(target=pool.add, args=(name, network.library)) for name in ("one", "two", "three")]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for name in pool.models:
                builder.close_to(pool.run(name, {"x": x})["out"], network.reference(x))
            read = {name: model["total_bytes_read"] for name, model in pool.stats()["models"].items()}
            assert len(read) == 3 and len(set(read.values())) == 1


def test_the_budget_changes_while_a_model_is_opened(both, x, tmp_path):
    """Opening waits until times of change have ticked: where a file system counts seconds, for two of them."""
    library, weights = (shutil.copy(file, tmp_path) for file in (both["second"].library, both["second"].weights))
    read_info(library)  # so that it has been loaded
    with flexcomp.Pool(4 * _MB) as pool, concurrent.futures.ThreadPoolExecutor() as threads:
        pool.add("first", both["first"].library)
        os.utime(weights, (second := int(time.time()), second))
        opening = threads.submit(pool.add, "second", library)
        time.sleep(0.2)
        pool.set_budget(3 * _MB)
        assert not opening.done() and pool.budget == 3 * _MB
        opening.result(timeout=30)
        for name, network in both.items():
            builder.close_to(pool.run(name, {"x": x})["out"], network.reference(x))


def test_shares_follow_urgency_and_say_what_they_are(both):
    ladder = both["first"].program.rungs
    one_resident = ladder[-1].arena + ladder[1].arena - ladder[1].working + 8192
    with flexcomp.Pool(one_resident) as pool:
        pool.add("first", both["first"].library, rate=1)
        pool.add("second", both["second"].library, rate=1, urgency=50)
        plan = pool.plan()
        first, second = plan.models
        assert second.kept_bytes >= first.kept_bytes
        assert plan.bytes <= plan.budget_bytes == one_resident
        text = str(plan)
        assert "first" in text and "50" in text and "of which lanes work in" in text


def test_what_is_held_never_exceeds_the_budget(both, x):
    """Budgets, models and requests at random, from several threads; and every output is right."""
    chance = random.Random(5)
    least, most = _least(both), 4 * _MB
    over, wrong, done, stop = [], [], [], threading.Event()
    with flexcomp.Pool(most, threads=1) as pool:
        for name, network in both.items():
            pool.add(name, network.library)

        def look():
            while not stop.is_set():
                begun = len(allowed) - 1
                stats = pool.stats()
                held = sum(one["resident_bytes"] for one in (*stats["lanes"], *stats["models"].values()))
                if stats["claimed_bytes"] > max(allowed[begun:]) or held > stats["claimed_bytes"]:
                    over.append((held, stats))

        def ask(seed):
            own = random.Random(seed)
            while not stop.is_set():
                name = own.choice(list(both))
                try:
                    out = pool.run(name, {"x": x})["out"]
                except (InputError, RefusedError):
                    continue  # removed just now
                done.append(name)
                if not np.allclose(out, both[name].reference(x), rtol=1e-4, atol=1e-5):
                    wrong.append(name)

        allowed = [most]
        threads = [threading.Thread(target=look), *(threading.Thread(target=ask, args=(seed,)) for seed in range(3))]
        for thread in threads:
            thread.start()
        until = time.monotonic() + 4
        while time.monotonic() < until:
            budget = chance.randint(least, most)
            allowed.append(max(budget, pool.budget))
            pool.set_budget(budget)
            if chance.random() < 0.2:
                pool.remove("second")
                pool.add("second", both["second"].library)
        stop.set()
        for thread in threads:
            thread.join()
    assert not over, over[:1]
    assert not wrong
    assert len(done) > 5


def test_a_smaller_budget_is_given_back_when_the_call_returns(pool, both, x):
    for name in both:
        pool.run(name, {"x": x})
    before = pool.resident_arena()
    least = _least(both)
    futures = [pool.submit(name, {"x": x}) for name in (*both, *both)]
    pool.set_budget(least)
    assert pool.resident_arena() <= least < before
    for future, name in zip(futures, (*both, *both), strict=True):
        builder.close_to(future.result(30)["out"], both[name].reference(x))


def test_rates_are_learnt_and_shares_follow(both, x):
    ladder = both["first"].program.rungs
    with flexcomp.Pool(ladder[-1].arena + ladder[0].arena - ladder[0].working + 8192) as pool:
        for name, network in both.items():
            pool.add(name, network.library)
        until = time.monotonic() + 2.5
        while time.monotonic() < until:
            pool.run("second", {"x": x})
            time.sleep(0.02)
        rates = {model.name: model.rate for model in pool.plan().models}
        assert rates["second"] > 1.5 and 0.1 < rates["first"] < 0.85  # that nobody asks for, as it seems more and more


def test_a_full_queue_refuses(both, x):
    with flexcomp.Pool(4 * _MB, queue=2) as pool:
        pool.add("first", both["first"].library, read_bandwidth=1e6)
        futures, refused = [], []
        for _ in range(6):
            try:
                futures.append(pool.submit("first", {"x": x}))
            except RefusedError as error:
                refused.append(error)
        assert len(refused) >= 3 and all(error.reason == "queue" and error.retry_after_ms > 0 for error in refused)
        assert futures[-1].cancel() and futures[-1].cancelled()
        for future in futures[:-1]:
            builder.close_to(future.result(30)["out"], both["first"].reference(x))
        assert pool.stats()["models"]["first"]["refused"] == len(refused)


@pytest.mark.timeout(60)
def test_a_deadline_may_be_further_than_clocks_count(both, x):
    """While requests with it are waited for, all others are answered, too."""
    with flexcomp.Pool(4 * _MB, threads=1) as pool:
        pool.add("slow", both["first"].library, read_bandwidth=4e6, keep=0)
        futures = [pool.submit("slow", {"x": x}, deadline_ms=deadline) for deadline in (3e14, 1e300, None)]
        for future in futures:
            builder.close_to(future.result()["out"], both["first"].reference(x))
        builder.close_to(pool.run("slow", {"x": x}, deadline_ms=1e300)["out"], both["first"].reference(x))


def test_deadlines_are_met_or_refused(both, x):
    with flexcomp.Pool(4 * _MB, threads=1) as pool:
        pool.add("slow", both["first"].library, read_bandwidth=4e6, keep=0)
        for _ in range(4):  # about 0.4 s each: learnt
            pool.run("slow", {"x": x})
        with pytest.raises(RefusedError, match="behind its deadline of 20 ms") as refused:
            pool.run("slow", {"x": x}, deadline_ms=20)
        assert refused.value.reason == "deadline"
        builder.close_to(pool.run("slow", {"x": x}, deadline_ms=20, late="run")["out"], both["first"].reference(x))
        builder.close_to(pool.run("slow", {"x": x}, deadline_ms=20_000)["out"], both["first"].reference(x))
        stats = pool.stats()["models"]["slow"]
        assert (stats["refused"], stats["missed"], stats["completed"]) == (1, 1, 6)


def test_the_urgent_come_first_and_none_waits_for_ever(both, x):
    with flexcomp.Pool(4 * _MB, threads=1) as pool:
        pool.add("first", both["first"].library, read_bandwidth=8e6, keep=0)
        pool.add("second", both["second"].library, read_bandwidth=8e6, keep=0, urgency=20)
        order = []
        blocking = pool.submit("first", {"x": x})
        futures = [(name, pool.submit(name, {"x": x})) for name in ("first", "first", "second", "second")]
        for name, future in futures:
            future.add_done_callback(lambda _, name=name: order.append(name))
        blocking.result(30)
        for _, future in futures:
            future.result(30)
        assert order == ["second", "second", "first", "first"]


def test_a_short_one_runs_in_the_call_if_nothing_else_does(pool, both, x):
    for _ in range(20):
        pool.run("first", {"x": x})  # what is kept is there, and how long it takes is known
    future = pool.submit("first", {"x": x}, here=True)
    assert future.done() and future.wait_ms is not None
    builder.close_to(future.result()["out"], both["first"].reference(x))
    waits = [pool.submit("first", {"x": x}) for _ in range(8)]
    behind = pool.submit("first", {"x": x}, here=True)  # in its turn, whether or not those are done by now
    for future in (*waits, behind):
        builder.close_to(future.result(30)["out"], both["first"].reference(x))
    stats = pool.stats()["models"]["first"]
    assert (stats["completed"], stats["waiting"], stats["running"]) == (30, 0, 0)


def test_calls_that_run_requests_end_beside_everything_else(both, x):
    """Threads that run requests themselves, while the budget changes and until the pool is closed."""
    for _ in range(5):
        pool = flexcomp.Pool(4 * _MB, threads=1)
        pool.add("first", both["first"].library)
        least, futures = _least(both), []

        def ask(pool=pool, futures=futures):
            with contextlib.suppress(ExecutionError):
                while True:
                    with contextlib.suppress(RefusedError):
                        futures.append(pool.submit("first", {"x": x}, here=True))

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for budget in (least, 4 * _MB, least, 4 * _MB):
            pool.set_budget(budget)
            time.sleep(0.02)
            assert pool.stats()["claimed_bytes"] <= budget
        pool.close()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert len(futures) > 4 and all(future.done() for future in futures)
        for future in futures:
            if future.exception() is None:
                builder.close_to(future.result()["out"], both["first"].reference(x))


def test_awaiting(pool, both, x):
    async def ask():
        return await asyncio.gather(*(pool.submit(name, {"x": x}) for name in both))

    for network, outputs in zip(both.values(), asyncio.run(ask()), strict=True):
        builder.close_to(outputs["out"], network.reference(x))


def test_a_fault_of_one_model_is_not_the_others(both, tmp_path, x):
    library, weights = tmp_path / "copy.so", tmp_path / "copy.weights"
    library.symlink_to(both["first"].library)
    shutil.copy(both["first"].weights, weights)
    with flexcomp.Pool(_least(both) + 4096) as pool:
        pool.add("hurt", library, weights=weights, keep=0)
        pool.add("second", both["second"].library)
        builder.close_to(pool.run("hurt", {"x": x})["out"], both["first"].reference(x))
        time.sleep(0.05)  # file systems note changes by the tick
        with weights.open("r+b") as file:
            file.seek(8192)
            file.write(b"damage")
        with pytest.raises(StorageError, match="changed"):
            pool.run("hurt", {"x": x})
        for _ in range(3):
            builder.close_to(pool.run("second", {"x": x})["out"], both["second"].reference(x))
        assert pool.stats()["models"]["hurt"]["failed"] == 1


def test_a_read_that_fails(both, x):
    with flexcomp.Pool(4 * _MB, threads=1) as pool:
        with hooked(fail_read_at=3):
            pool.add("first", both["first"].library)
        pool.add("second", both["second"].library)
        with pytest.raises(StorageError):
            pool.run("first", {"x": x})
        for name, network in both.items():
            builder.close_to(pool.run(name, {"x": x})["out"], network.reference(x))


@two_cores
def test_two_lanes_work_at_once(both, x):
    with flexcomp.Pool(4 * _MB, lanes=2) as pool:
        for name, network in both.items():
            pool.add(name, network.library)
        assert {model.lane for model in pool.plan().models} == {0, 1}
        futures = [(name, pool.submit(name, {"x": x})) for name in both for _ in range(20)]
        for name, future in futures:
            builder.close_to(future.result(30)["out"], both[name].reference(x))
        least = pool.plan().least_bytes
        pool.set_budget(least)
        for name, network in both.items():
            builder.close_to(pool.run(name, {"x": x})["out"], network.reference(x))
        assert pool.resident_arena() <= least


def test_wrong_requests_and_models(pool, both, x, tmp_path):
    with pytest.raises(InputError, match=r"no model 'third' in the pool: there is first, second"):
        pool.run("third", {"x": x})
    with pytest.raises(InputError, match="inputs must be"):
        pool.run("first", {"y": x})
    with pytest.raises(InputError, match="already"):
        pool.add("first", both["first"].library)
    for name in ("a\nb", "a\0b", "\ud800"):
        with pytest.raises(InputError, match="must be printable"):
            pool.add(name, both["first"].library)
    with pytest.raises(InputError, match="urgency must be a number above 0"):
        pool.add("more", both["first"].library, urgency=0)
    with pytest.raises(InputError, match="deadline_ms must be"):
        pool.run("first", {"x": x}, deadline_ms=-1)
    with pytest.raises(InputError, match="late='later' is not known"):
        pool.run("first", {"x": x}, late="later")
    with pytest.raises(BudgetError, match="a number of bytes, such as 200MB"):
        pool.set_budget("10%")
    with pytest.raises(ArtifactError):
        pool.add("more", tmp_path / "none.so")
    with pytest.raises(ArtifactError, match="weights"):
        pool.add("more", both["first"].library, weights=tmp_path / "none.weights")
    assert pool.models == ("first", "second")


def test_closing_ends_what_waits(both, x):
    pool = flexcomp.Pool(4 * _MB, threads=1)
    pool.add("first", both["first"].library, read_bandwidth=4e6)
    futures = [pool.submit("first", {"x": x}) for _ in range(4)]
    pool.close()
    errors = [future.exception(30) for future in futures]
    assert isinstance(errors[-1], ExecutionError)
    with pytest.raises(ExecutionError, match="closed"):
        pool.run("first", {"x": x})
    pool.close()
    assert repr(pool) == "<Pool of first, closed>"


def test_a_watch_moves_the_budget(pool, both, x):
    least = _least(both)
    allowed = [4 * _MB]
    with pool.watch(lambda: allowed[0], interval_ms=20, patience_ms=50):
        allowed[0] = least + 5000
        until = time.monotonic() + 10
        while pool.budget > allowed[0] and time.monotonic() < until:
            time.sleep(0.01)
        assert pool.budget <= allowed[0]
        for name, network in both.items():
            builder.close_to(pool.run(name, {"x": x})["out"], network.reference(x))


def test_closing_beside_everything_else(both, x):
    """Two that close, one that removes, one that waits: all of them come to an end."""
    for _ in range(10):
        pool = flexcomp.Pool(4 * _MB, threads=1)
        for name, network in both.items():
            pool.add(name, network.library)
        future = pool.submit("first", {"x": x})

        def remove(pool=pool):
            with contextlib.suppress(ExecutionError, InputError):
                pool.remove("first")

        threads = [threading.Thread(target=act) for act in (pool.close, remove, pool.close)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert future.done()


def test_a_forked_process_is_told(pool, both, x):
    """Whatever threads were in the pool when it was forked."""
    stop = threading.Event()

    def look():
        while not stop.is_set():
            pool.stats()

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        if (child := os.fork()) == 0:
            codes = []
            for act in (pool.stats, lambda: pool.run("first", {"x": x}), lambda: pool.submit("first", {"x": x}), pool.plan):
                try:
                    act()
                except ExecutionError as error:
                    codes.append("forked" in str(error))
            pool.close()
            os._exit(0 if codes == [True] * 4 else 1)
        deadline = time.monotonic() + 20
        while (status := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.005)
        if status == (0, 0):
            os.kill(child, 9)
            os.waitpid(child, 0)
        assert status[1] == 0 and status[0] == child
    stop.set()
    for thread in threads:
        thread.join()


def test_leaving_the_interpreter_closes_it(both):
    code = f"""
import numpy, flexcomp
pool = flexcomp.Pool("4MB")
pool.add("first", {str(both["first"].library)!r})
futures = [pool.submit("first", {{"x": numpy.zeros(256, "f4")}}) for _ in range(20)]
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0 and not done.stderr, done.stderr


def test_waiting_for_cancelled_futures(both, x):
    with flexcomp.Pool(4 * _MB, threads=1) as pool:
        pool.add("first", both["first"].library, read_bandwidth=4e6)
        futures = [pool.submit("first", {"x": x}) for _ in range(3)]
        while not pool.stats()["models"]["first"]["running"]:
            time.sleep(0.001)
        assert futures[2].cancel() and futures[2].cancel()
        done, waiting = concurrent.futures.wait(futures, timeout=30)
        assert len(done) == 3 and not waiting and not futures[0].cancel()
        assert pool.stats()["models"]["first"]["cancelled"] == 1


@pytest.mark.parametrize("lanes", [1, 2])
def test_cancelling_what_runs(both, x, lanes):
    """The lane is free after the reads in flight, and what it does next is right, however often."""
    with flexcomp.Pool(6 * _MB, lanes=lanes, threads=1) as pool:
        pool.add("first", both["first"].library, read_bandwidth=1e6)  # 1.6 s
        pool.add("second", both["second"].library)
        for _ in range(3):
            running = pool.submit("first", {"x": x})
            while not pool.stats()["models"]["first"]["running"]:
                time.sleep(0.001)
            assert running.cancel() and running.cancelled() and running.cancel()
            builder.close_to(pool.run("second", {"x": x})["out"], both["second"].reference(x))
            while pool.stats()["models"]["first"]["running"]:
                time.sleep(0.001)
        stats = pool.stats()["models"]["first"]
        assert (stats["cancelled"], stats["completed"], stats["failed"]) == (3, 0, 0)
        assert stats["total_bytes_read"] < 3 * both["first"].program.weights_nbytes
        pool.remove("first")
        pool.add("first", both["first"].library)
        builder.close_to(pool.run("first", {"x": x})["out"], both["first"].reference(x))


def test_whoever_may_be_late_makes_room(both, x):
    """Requests without a deadline are not refused because another has one."""
    with flexcomp.Pool(4 * _MB, threads=1) as pool:
        pool.add("first", both["first"].library, read_bandwidth=8e6, keep=0, urgency=100)
        for _ in range(3):  # about 0.2 s each
            pool.run("first", {"x": x})
        first = pool.submit("first", {"x": x}, late="run", deadline_ms=60_000)
        wanted = pool.submit("first", {"x": x}, deadline_ms=4000)
        others = [pool.submit("first", {"x": x}) for _ in range(12)]
        for future in (first, wanted, *others):
            builder.close_to(future.result(60)["out"], both["first"].reference(x))
        assert pool.stats()["models"]["first"]["missed"] == 0


def test_an_estimate_that_is_too_large_is_tried_again(both, x):
    with flexcomp.Pool(4 * _MB, threads=1) as pool:
        pool.add("first", both["first"].library, read_bandwidth=4e6, keep=0)
        for _ in range(2):
            pool.run("first", {"x": x})
        with pytest.raises(RefusedError):
            pool.run("first", {"x": x}, deadline_ms=200)
        time.sleep(1.1)
        builder.close_to(pool.run("first", {"x": x}, deadline_ms=200)["out"], both["first"].reference(x))


def test_a_watch_without_models_waits_for_some(both, x):
    with flexcomp.Pool(4 * _MB, threads=1) as pool, pool.watch(lambda: 3 * _MB, interval_ms=10, patience_ms=20):
        time.sleep(0.05)
        for name, network in both.items():
            pool.add(name, network.library)
        until = time.monotonic() + 10
        while pool.budget > 3 * _MB and time.monotonic() < until:
            time.sleep(0.01)
        assert _least(both) <= pool.budget <= 3 * _MB
        for name, network in both.items():
            builder.close_to(pool.run(name, {"x": x})["out"], network.reference(x))


@pytest.fixture(scope="module")
def hasty(tmp_path_factory):
    """150 layers that read 39 MB in the smallest budget, and say that they take a microsecond."""

    def plan(program):
        return replace(program, rungs=tuple(replace(rung, seconds=1e-6) for rung in program.rungs))

    return builder.export(tmp_path_factory.mktemp("hasty") / "hasty.so", "pool_hasty_", layers=150, plan=plan)


def test_deadlines_pass_also_behind_an_inference_that_takes_long(hasty, x):
    least = least_bytes([ladder_of(read_info(hasty.library))])
    for _ in range(3):
        with flexcomp.Pool(least, threads=1) as pool:
            pool.add("hasty", hasty.library)
            first = pool.submit("hasty", {"x": x})
            while not pool.stats()["models"]["hasty"]["running"] and not first.done():
                time.sleep(1e-4)
            late = [pool.submit("hasty", {"x": x}, deadline_ms=2) for _ in range(3)]
            patient = pool.submit("hasty", {"x": x}, deadline_ms=2, late="run")
            with pytest.raises(RefusedError, match="passed while it waited"):
                pool.run("hasty", {"x": x}, deadline_ms=3)
            for future in late:
                with pytest.raises(RefusedError, match="passed while it waited"):
                    future.result(30)
            early = not first.done()
            builder.close_to(first.result(30)["out"], hasty.reference(x))
            builder.close_to(patient.result(30)["out"], hasty.reference(x))
            assert pool.stats()["models"]["hasty"]["dropped"] == 4
            if early:
                return
    raise AssertionError("they waited for the inference to end")


def test_the_same_library_with_other_options_is_another(both, x):
    network = both["first"]
    with flexcomp.Pool(8 * _MB, threads=1) as pool:
        pool.add("one", network.library)
        pool.add("same", network.library)
        pool.add("checked", network.library, direct=False)
        for name in ("one", "same", "checked"):
            builder.close_to(pool.run(name, {"x": x})["out"], network.reference(x))
        kept = {name: model["kept_bytes"] for name, model in pool.stats()["models"].items()}
        assert pool.stats()["claimed_bytes"] > kept["one"] + kept["checked"] - 1
        pool.remove("one")
        pool.remove("same")
        builder.close_to(pool.run("checked", {"x": x})["out"], network.reference(x))


def test_what_there_is_no_room_for_is_not_opened(both, tmp_path):
    copy = tmp_path / "bare.so"
    shutil.copy(both["first"].library, copy)  # without its weights, as opening would say
    with flexcomp.Pool(1000) as pool:
        with pytest.raises(BudgetError, match="a budget of 1000 bytes is too small for 1 model"):
            pool.add("bare", copy)
    with flexcomp.Pool(8 * _MB) as pool:
        with pytest.raises(ArtifactError, match="bare"):
            pool.add("bare", copy)
        assert pool.plan().models == ()


def test_requests_that_are_refused_count_for_rates(hasty, x):
    with flexcomp.Pool(100 * _MB, threads=1) as pool:
        pool.add("hasty", hasty.library)
        begin = time.monotonic()
        while time.monotonic() - begin < 2.5:
            with contextlib.suppress(RefusedError):
                pool.run("hasty", {"x": x}, deadline_ms=1e-3)
            time.sleep(0.01)
        stats = pool.stats()["models"]["hasty"]
        assert stats["refused"] + stats["dropped"] > 0 and stats["rate"] > 10


def test_shares_may_be_those_of_swapnets_rule(both, x):
    ladders = [ladder_of(read_info(network.library)) for network in both.values()]
    budget = int(1.7 * least_bytes(ladders, sharing="swapnet"))
    with flexcomp.Pool(budget, threads=1, sharing="swapnet") as pool:
        for name, network in both.items():
            pool.add(name, network.library, rate=1)
        expected = shares(ladders, [1.0, 1.0], budget, sharing="swapnet")
        assert tuple(model.rung for model in pool.plan().models) == expected.rungs
        for name, network in both.items():
            builder.close_to(pool.run(name, {"x": x})["out"], network.reference(x))
        pool.remove("first")
        assert pool.plan().models[0].kept_bytes > 0
    with pytest.raises(InputError, match="best"):
        flexcomp.Pool(budget, sharing="best")


def test_time_adds_up(pool, both, x):
    for _ in range(3):
        pool.run("first", {"x": x})
    stats = pool.stats()["models"]["first"]
    assert stats["total_latency_ms"] >= stats["latency_ms"] > 0 and stats["total_stall_ms"] >= 0
    assert pool.broken("first") is None
    with pytest.raises(InputError, match="there is no model 'third'"):
        pool.broken("third")
