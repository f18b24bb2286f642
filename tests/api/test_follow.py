"""Budgets of the C interface that follow a control group or the system's pressure."""

from __future__ import annotations

import os
import time
from ctypes import byref, c_uint32, c_void_p
from itertools import pairwise

import pytest

from tests.api import bindings as api
from tests.api.bindings import refused
from tests.api.test_pools import added, pool, stats_of  # noqa: F401 - a fixture


class Told:
    """A follower of `handle`, and all that its callback was told."""

    def __init__(self, handle, name="follow", **options):
        self.calls = []
        self._changed = api.Changed(lambda context, status, budget: self.calls.append((status, budget, api.message())))
        self.handle = c_void_p()
        given = api.FollowOptions(interval_s=0.002, patience_s=0.02, changed=self._changed, **options)
        api.done(name, handle, byref(given), byref(self.handle))

    def until(self, condition):
        end = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < end, self.calls
            time.sleep(0.001)

    def until_told(self, status):
        self.until(lambda: any(call[0] == status for call in self.calls))
        (found,) = [call for call in self.calls if call[0] == status]  # once
        self.calls.clear()
        return found


def written(path, text):
    """In one step: a follower never sees half of it."""
    path.with_name("new").write_text(f"{text}\n")
    path.with_name("new").rename(path)


@pytest.fixture(params=[1, 2], ids=["version 1", "version 2"])
def group(request, tmp_path):
    """Files of a control group."""

    class Group:
        folder = tmp_path
        limit = tmp_path / ("memory.limit_in_bytes", "memory.max")[request.param - 1]
        usage = tmp_path / ("memory.usage_in_bytes", "memory.current")[request.param - 1]
        droppable = ("total_inactive_file", "inactive_file")[request.param - 1]
        none = (str(2**63 - 4096), "max")[request.param - 1]

    written(Group.limit, Group.none)
    return Group


@pytest.fixture
def budgets(session):
    count = api.given("budget_count", c_uint32, session, 0)
    return [api.given("describe_budget", api.BudgetInfo, session, 0, index).budget for index in range(count)]


def used(session, budgets):
    return budgets[api.given("current_budget", c_uint32, session)]


def test_a_session_follows_its_limit(session, group, budgets):
    api.done("set_budget", session, api.ALL)
    told = Told(session, path=str(group.folder).encode())
    others = 3_000_000
    written(group.folder / "memory.stat", f"anon 5\n{group.droppable} 1000000")
    written(group.usage, others + 1_000_000)
    for budget in (budgets[1], budgets[-1], budgets[0]):
        written(group.limit, others + int(budget * 1.06))
        told.until(lambda budget=budget: used(session, budgets) == budget)
    told.until(lambda: told.calls)
    assert {status for status, *_ in told.calls} == {api.OK} and told.calls[-1][1] == budgets[0]
    told.calls.clear()
    written(group.limit, others)
    _, budget, message = told.until_told(api.BUDGET)
    assert budget == budgets[0] and "0 bytes are allowed, and the smallest budget is" in message
    written(group.limit, group.none)
    told.until(lambda: used(session, budgets) == budgets[-1])
    api.done("unfollow", told.handle)
    written(group.limit, 1)
    time.sleep(0.02)
    assert used(session, budgets) == budgets[-1]
    refused(api.CLOSED, "unfollow", told.handle)


def test_the_largest_is_bounded(session, group, budgets):
    api.done("set_budget", session, api.SMALLEST)
    told = Told(session, path=str(group.folder).encode(), most=budgets[1] + 1)
    told.until(lambda: used(session, budgets) == budgets[1])
    api.done("unfollow", told.handle)
    assert [budget for _, budget, _ in told.calls] == [budgets[1]]


def test_a_group_that_is_removed_is_told_once_and_may_return(session, group, budgets):
    api.done("set_budget", session, api.ALL)
    told = Told(session, path=str(group.folder).encode())
    group.limit.unlink()
    _, budget, message = told.until_told(api.EXECUTION)
    assert budget == budgets[-1] and str(group.limit) in message and "No such file" in message
    time.sleep(0.02)
    assert not told.calls
    written(group.limit, budgets[0])
    told.until(lambda: used(session, budgets) == budgets[0])
    group.limit.write_text("much\n")
    assert "does not hold a number" in told.until_told(api.EXECUTION)[2]
    api.done("unfollow", told.handle)


def test_pressure(session, budgets, tmp_path):
    path = tmp_path / "memory"

    def press(percent):
        written(path, f"some avg10={percent:.2f} avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0")

    api.done("set_budget", session, api.ALL)
    press(50)
    told = Told(session, kind=api.PRESSURE, path=str(path).encode())
    told.until(lambda: used(session, budgets) == budgets[0])
    assert all(a[1] > b[1] for a, b in pairwise(told.calls))  # one budget at a time
    press(5)
    time.sleep(0.05)
    assert used(session, budgets) == budgets[0]
    press(0)
    told.until(lambda: used(session, budgets) == budgets[-1])
    api.done("unfollow", told.handle)


def test_a_pool_follows(pool, library, group):  # noqa: F811
    told = Told(pool, "pool_follow", path=str(group.folder).encode())  # nobody is in it yet
    member = added(pool, library)
    least = stats_of(pool).least
    written(group.limit, least)
    told.until(lambda: stats_of(pool).budget == least)
    written(group.limit, least - 1)
    assert str(least) in told.until_told(api.BUDGET)[2]
    written(group.limit, group.none)
    told.until(lambda: stats_of(pool).budget == stats_of(pool).most)
    refused(api.UNSUPPORTED, "follow", member, byref(api.FollowOptions(path=str(group.folder).encode())), byref(c_void_p()))
    api.done("pool_close", pool)
    told.until_told(api.CLOSED)
    api.done("unfollow", told.handle)


def test_a_follower_ends_with_its_session(library, group):
    session = api.opened(library)
    told = Told(session, path=str(group.folder).encode())
    api.done("close", session)
    assert "closed" in told.until_told(api.CLOSED)[2]
    api.done("unfollow", told.handle)
    api.done("unfollow", None)


def test_a_callback_does_not_end_its_own_follower(session, group, budgets):
    api.done("set_budget", session, api.ALL)
    found, follower = [], c_void_p()
    changed = api.Changed(lambda *_: found.append(api.call("unfollow", follower)))
    options = api.FollowOptions(path=str(group.folder).encode(), interval_s=0.05, changed=changed)
    api.done("follow", session, byref(options), byref(follower))
    written(group.limit, budgets[0])
    while not found:
        time.sleep(0.001)
    assert found == [api.INPUT]
    api.done("unfollow", follower)


@pytest.mark.parametrize(
    "options",
    [
        {"size": 0}, {"size": 2**40}, {"kind": 2}, {"kind": -1}, {"interval_s": -1.0}, {"interval_s": float("nan")},
        {"patience_s": float("inf")}, {"reserved": 1}, {"path": b"/nowhere/at all"}, {"path": b""},
        {"kind": api.PRESSURE, "path": b"/nowhere/at all"},
    ],
)  # fmt: skip
def test_wrong_options_are_refused(session, pool, group, options):  # noqa: F811
    for name, handle in (("follow", session), ("pool_follow", pool)):
        follower = c_void_p(7)
        given = api.FollowOptions(**{"path": str(group.folder).encode(), **options})
        refused(api.INPUT, name, handle, byref(given), byref(follower))
        assert follower.value is None


def test_wrong_handles_are_refused(session, pool, group):  # noqa: F811
    options = byref(api.FollowOptions(path=str(group.folder).encode()))
    for name, handle, other in (("follow", session, pool), ("pool_follow", pool, session)):
        refused(api.INPUT, name, handle, options, None, says='"follower" is NULL')
        for wrong in (None, other, c_void_p(2**40)):
            refused(api.CLOSED, name, wrong, options, byref(c_void_p()))
    refused(api.CLOSED, "unfollow", session)


def test_a_forked_process_can_let_go(session, group):
    told = Told(session, path=str(group.folder).encode())
    time.sleep(0.005)  # the follower waits for its next look, most likely
    child = os.fork()
    if child == 0:
        os._exit(api.call("unfollow", told.handle))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == api.OK
    api.done("unfollow", told.handle)
