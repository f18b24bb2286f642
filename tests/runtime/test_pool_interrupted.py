"""A handler of a signal may raise between any two instructions of a pool's calls: afterwards all of them work."""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

import flexcomp
from flexcomp.errors import InputError
from tests.runtime import tiny as builder

_MB = 1 << 20
_OURS = {"pool.py", "pool_requests.py", "library.py", "ports.py"}


class Interrupted(BaseException):
    """As KeyboardInterrupt, but of nobody else."""


@functools.cache
def _is_ours(file):
    path = Path(file)
    return path.name in _OURS and path.parent.name == "runtime"


def interrupted_at(n, act):
    """Whether `act` has an `n`-th instruction in our files, before which it was interrupted.

    Of an instruction that comes again and again the first two times count.
    """
    left, seen = n, Counter()

    def trace(frame, event, _):
        nonlocal left
        if not _is_ours(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            at = id(frame.f_code), frame.f_lasti  # to hash code itself takes longer than all else here
            seen[at] += 1
            left -= seen[at] <= 2
            if left == 0:
                sys.settrace(None)
                raise Interrupted
        return trace

    sys.settrace(trace)
    try:
        act()
    except Interrupted:
        return True
    finally:
        sys.settrace(None)
    return left <= 0


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return builder.export(tmp_path_factory.mktemp("interrupted") / "tiny.so", "pool_interrupted_")


@pytest.fixture
def pool(network):
    with flexcomp.Pool(4 * _MB, threads=1) as made:
        made.add("kept", network.library)
        yield made


def works(pool, network, x, *names):
    """All of these models, alone and in futures, and no request is left."""
    assert pool.models == names
    for name in names:
        builder.close_to(pool.run(name, {"x": x})["out"], network.reference(x))
        builder.close_to(pool.submit(name, {"x": x}).result(30)["out"], network.reference(x))
        assert [port.name for port in pool.inputs(name)] == ["x"]
    assert not pool._collector._begun
    assert any(thread.name == "flexcomp-pool" and thread.is_alive() for thread in threading.enumerate())


def all_interruptions(act, check):
    """Interrupts `act` at each of its instructions in turn; gives how many there are."""
    n = 1
    while interrupted_at(n, act):
        check()
        n += 1
    return n


def test_run_is_interrupted_anywhere(pool, network, x):
    assert all_interruptions(lambda: pool.run("kept", {"x": x}), lambda: works(pool, network, x, "kept")) > 100


@pytest.mark.parametrize("here", [False, True])
def test_submit_is_interrupted_anywhere(pool, network, x, here):
    for _ in range(5):
        pool.run("kept", {"x": x})
    futures = []

    def check():
        while futures:
            builder.close_to(futures.pop().result(30)["out"], network.reference(x))
        works(pool, network, x, "kept")

    assert all_interruptions(lambda: futures.append(pool.submit("kept", {"x": x}, here=here)), check) > 100


def test_cancel_is_interrupted_anywhere(pool, network, x):
    def submit():
        futures[:] = [pool.submit("kept", {"x": x}) for _ in range(3)]

    def act():
        for future in futures:
            future.cancel()

    futures = []

    def check():
        works(pool, network, x, "kept")
        for future in futures:
            assert future.cancelled() or not future.exception(30)
        submit()

    submit()
    assert all_interruptions(act, check) > 20


def test_add_and_remove_are_interrupted_anywhere(pool, network, x):
    """Each of them is done, or can be done again; a name may be another network's by then."""

    def restart():
        names = pool.models
        works(pool, network, x, *names)
        if "more" in names:
            pool.remove("more")
        with pytest.raises(InputError, match="no model 'more'"):
            pool.run("more", {"x": x})

    assert all_interruptions(lambda: pool.add("more", network.library, deadline_ms=30_000), restart) > 100

    def again():
        restart()
        pool.add("more", network.library)

    again()
    assert all_interruptions(lambda: pool.remove("more"), again) > 20


def test_set_budget_is_interrupted_anywhere(pool, network, x):
    budgets = [3 * _MB, 4 * _MB]

    def act():
        budgets.reverse()
        pool.set_budget(budgets[0])

    def check():
        pool.plan()
        assert pool.budget in budgets
        works(pool, network, x, "kept")

    assert all_interruptions(act, check) > 100


def test_making_and_closing_are_interrupted_anywhere(network, x):
    """What was made is closed in the end, if need be by closing it again."""
    made = []

    def act():
        made.append(flexcomp.Pool(4 * _MB, threads=1))

    def check():
        while made:
            made.pop().close()

    assert all_interruptions(act, check) > 100
    check()
    pools = []

    def closed():
        pools.append(flexcomp.Pool(4 * _MB, threads=1))
        pools[-1].add("kept", network.library)
        future = pools[-1].submit("kept", {"x": x})
        interruptible.append((pools[-1], future))

    interruptible = []
    closed()

    def close():
        interruptible[-1][0].close()

    def again():
        pool, future = interruptible.pop()
        pool.close()
        assert pool.closed and future.done() and not pool._collector._thread.is_alive()
        closed()

    assert all_interruptions(close, again) > 20
    again()
    interruptible.pop()[0].close()
