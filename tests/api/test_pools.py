"""Pools of the C interface: members run in their turn within one budget; every wrong argument is a status."""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import byref, c_double, c_uint32, c_void_p

import numpy as np
import pytest

import flexcomp
from tests.api import bindings as api
from tests.api import network
from tests.api.bindings import refused
from tests.api.network import WIDTH, expected

ZEROS = np.zeros((1, 16), "f4")
LARGE = 64 << 20


@pytest.fixture(scope="module")
def stateless(tmp_path_factory):
    """The same network with its state as an input and an output."""
    path = tmp_path_factory.mktemp("stateless") / "plain.so"
    flexcomp.build(network.model(), threads=1).export_library(path)
    return path


@pytest.fixture
def pool():
    opened = c_void_p()
    api.done("pool_open", byref(api.PoolOptions(budget=LARGE)), byref(opened))
    yield opened
    api.call("pool_close", opened)


def added(pool, library, name="one", **options):
    member = c_void_p()
    api.done("pool_add", pool, name.encode(), str(library).encode(), byref(api.MemberOptions(**options)), byref(member))
    return member


def submitted(member, inputs, outputs, **options):
    request = c_void_p()
    arguments = (api.tensors(*inputs), len(inputs), api.tensors(*outputs), len(outputs))
    api.done("submit", member, *arguments, byref(api.RequestOptions(**options)), byref(request))
    return request


def stats_of(pool):
    return api.given("pool_get_stats", api.PoolStats, pool)


def counts_of(member):
    return api.given("member_get_stats", api.MemberStats, member)


def slow_one(pool, library, **options):
    """A member whose first inference takes half a second, by its storage."""
    return added(pool, library, "slow", session=ctypes.pointer(api.Options(read_bandwidth=2e6)), **options)


# ------------------------------------------------------------------------------------------------ members are sessions


def test_two_members_share_a_budget(pool, library, stateless, x, n, y):
    one, two = added(pool, library, "one"), added(pool, stateless, "two")
    following = np.empty(3, "i8")
    assert api.run(one, (x, n), (y, following)) == api.OK
    np.testing.assert_allclose(y, expected(x, ZEROS), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(following, n + 1)
    assert api.run(one, (x, n), (y,)) == api.OK  # the state has moved on
    np.testing.assert_allclose(y, expected(x, x), rtol=1e-4, atol=1e-5)
    h = np.empty((1, 16), "f4")
    assert api.run(two, (x, n, x), (api.Tensor(), following, h)) == api.OK  # an output that nobody wants
    np.testing.assert_allclose(h, 2 * x, rtol=1e-6)
    stats = stats_of(pool)
    assert (stats.budget, stats.members, stats.lanes) == (LARGE, 2, 1)
    assert 0 < stats.least < stats.most and 0 < stats.resident <= stats.claimed <= stats.budget
    assert stats.planned <= stats.budget
    api.done("pool_set_budget", pool, stats.least)
    small = stats_of(pool)
    assert small.resident <= small.claimed <= small.budget == stats.least
    api.done("pool_set_budget", pool, small.budget)
    assert api.run(two, (x, n, ZEROS), (y,)) == api.OK
    np.testing.assert_allclose(y, expected(x, ZEROS), rtol=1e-4, atol=1e-5)
    refused(api.BUDGET, "pool_set_budget", pool, stats.least // 2, says="smallest that is enough")


def test_a_member_describes_itself_as_a_session_does(pool, library, session):
    member = added(pool, library)
    for kind in range(3):
        count = api.given("tensor_count", c_uint32, session, kind)
        assert api.given("tensor_count", c_uint32, member, kind) == count
        for index in range(count):
            own, pooled = (api.given("describe_tensor", api.TensorInfo, one, kind, index, 0) for one in (session, member))
            assert (own.name, own.dtype, own.nbytes, own.rank) == (pooled.name, pooled.dtype, pooled.nbytes, pooled.rank)
            assert own.shape[: own.rank] == pooled.shape[: own.rank]
            assert api.given("find_tensor", c_uint32, member, kind, own.name) == index
    assert api.given("shape_count", c_uint32, member) == 1
    count = api.given("budget_count", c_uint32, member, 0)
    assert count == api.given("budget_count", c_uint32, session, 0)
    budget = api.given("describe_budget", api.BudgetInfo, member, 0, count - 1)
    assert bytes(budget) == bytes(api.given("describe_budget", api.BudgetInfo, session, 0, count - 1))
    assert api.given("current_budget", c_uint32, member) < count


def test_statistics(pool, library, x, n, y):
    member = added(pool, library)
    for _ in range(3):
        assert api.run(member, (x, n), (y,)) == api.OK
    stats, counts = api.given("get_stats", api.Stats, member), counts_of(member)
    assert (stats.runs, stats.restarts, stats.threads) == (3, 0, 1) and stats.total_bytes_read > 0 < stats.latency_s
    assert (counts.requests, counts.completed, counts.failed, counts.waiting, counts.running) == (3, 3, 0, 0, 0)
    assert counts.kept > 0


def test_what_the_pool_decides_is_unsupported(pool, library, session):
    member = added(pool, library)
    null = api.Callback(0)
    for name, arguments in {
        "run_in_place": (null, null, None), "warm": (), "set_budget": (api.ALL,), "reset_states": (),
        "get_state": (0, byref(api.tensor(ZEROS))), "set_state": (0, byref(api.tensor(ZEROS))),
        "describe_session": (byref(api.SessionInfo()),), "measure_storage": (4096, 4096, byref(c_double())),
        "get_text": (api.TEXT_NETWORK, api.OnText(print), None),
    }.items():  # fmt: skip
        refused(api.UNSUPPORTED, name, member, *arguments, says="member of a pool")
    refused(api.UNSUPPORTED, "member_get_stats", session, byref(api.MemberStats()), says="no member")
    refused(api.UNSUPPORTED, "submit", session, None, 0, None, 0, None, byref(c_void_p()), says="no member")


def test_a_closed_member_is_gone_and_the_others_go_on(pool, library, stateless, x, n, y):
    one, two = added(pool, library, "one"), added(pool, stateless, "two")
    before = stats_of(pool)
    api.done("close", one)
    assert stats_of(pool).members == 1 and stats_of(pool).least < before.least
    for name, arguments in {"run": (None, 0, None, 0), "cancel": (), "get_stats": (None,), "close": ()}.items():
        refused(api.CLOSED, name, one, *arguments)
    assert api.run(two, (x, n, ZEROS), (y,)) == api.OK
    again = added(pool, library, "one")
    assert again.value not in (one.value, None) and api.run(again, (x, n), (y,)) == api.OK


def test_closing_a_pool_closes_its_members_and_requests(library, x, n, y):
    pool = c_void_p()
    api.done("pool_open", byref(api.PoolOptions(budget=LARGE)), byref(pool))
    slow = slow_one(pool, library)
    running, waiting = (submitted(slow, (x, n), (y,)) for _ in range(2))
    statuses = []
    waiter = threading.Thread(target=lambda: statuses.append(api.call("wait", running)))
    waiter.start()
    while not counts_of(slow).running:
        pass
    api.done("pool_close", pool)
    waiter.join()
    assert statuses[0] in (api.OK, api.CLOSED)  # the latter: the pool was closed before the thread came to wait
    for name, handle in (("wait", waiting), ("cancel_request", waiting), ("warm", slow), ("pool_set_budget", pool)):
        refused(api.CLOSED, name, handle, *((1,) if name == "pool_set_budget" else ()))
    api.done("pool_close", None)


# -------------------------------------------------------------------------------------------------------- requests


def test_requests_run_in_their_turn(pool, library, stateless, x, n):
    one, two = added(pool, library, "one"), added(pool, stateless, "two")
    outputs = [np.empty((1, WIDTH), "f4") for _ in range(4)]
    states = [i * x for i in range(4)]
    requests = [submitted(two, (x, n, state), (output,)) for state, output in zip(states, outputs, strict=True)]
    requests.append(submitted(one, (x, n), ()))
    for request in reversed(requests):
        api.done("wait", request)
        refused(api.CLOSED, "wait", request)
        refused(api.CLOSED, "cancel_request", request)
    for state, output in zip(states, outputs, strict=True):
        np.testing.assert_allclose(output, expected(x, state), rtol=1e-4, atol=1e-4)


def test_cancelling(pool, library, x, n, y):
    """A request that runs, by either call; one that waits; and then the next inference is right."""
    slow = slow_one(pool, library)
    api.done("cancel", slow)  # nothing runs
    first, second = submitted(slow, (x, n), (y,)), submitted(slow, (x, n), (y,))
    api.done("cancel_request", second)
    refused(api.CANCELLED, "wait", second, says="cancelled")
    while not counts_of(slow).running:
        pass
    api.done("cancel_request", first)
    refused(api.CANCELLED, "wait", first)
    counts = counts_of(slow)
    assert (counts.requests, counts.cancelled, counts.completed) == (2, 2, 0)
    api.done("close", slow)
    slow = slow_one(pool, library)  # which nothing has read yet, however late the request was cancelled
    statuses = []
    caller = threading.Thread(target=lambda: statuses.append(api.run(slow, (x, n), (y,))))
    caller.start()
    while caller.is_alive():
        api.done("cancel", slow)
    assert statuses == [api.CANCELLED]
    counts = counts_of(slow)
    assert (counts.requests, counts.cancelled, counts.completed) == (1, 1, 0)
    api.done("close", slow)
    member = added(pool, library)
    assert api.run(member, (x, n), (y,)) == api.OK
    np.testing.assert_allclose(y, expected(x, ZEROS), rtol=1e-4, atol=1e-5)


def test_a_request_of_a_member_that_is_closed_fails(pool, library, x, n, y):
    slow = slow_one(pool, library)
    running, waiting = (submitted(slow, (x, n), (y,)) for _ in range(2))
    while not counts_of(slow).running:
        pass
    closing = threading.Thread(target=lambda: api.call("close", slow))
    closing.start()
    refused(api.INPUT, "wait", waiting, says="removed from the pool")
    api.done("cancel_request", running)
    refused(api.CANCELLED, "wait", running)
    closing.join()


def test_deadlines_and_queues_are_refused(library, x, n, y):
    pool = c_void_p()
    api.done("pool_open", byref(api.PoolOptions(budget=LARGE, queue=1)), byref(pool))
    slow = slow_one(pool, library, deadline_s=1e-9)
    refused(api.REFUSED, "run", slow, api.tensors(x, n), 2, api.tensors(y), 1, says="deadline")
    late = submitted(slow, (x, n), (y,), flags=api.LATE)
    while not counts_of(slow).running:
        pass
    waiting = submitted(slow, (x, n), (y,), flags=api.LATE)
    arguments = (api.tensors(x, n), 2, api.tensors(y), 1, byref(api.RequestOptions(flags=api.LATE)))
    request = c_void_p(7)
    refused(api.REFUSED, "submit", slow, *arguments, byref(request), says="wait already")
    assert request.value is None and counts_of(slow).refused == 2
    for one in (waiting, late):
        api.done("cancel_request", one)
        assert api.call("wait", one) == api.CANCELLED
    api.done("pool_close", pool)


def test_one_thread_waits_for_a_request(pool, library, x, n, y):
    request = submitted(slow_one(pool, library), (x, n), (y,))
    statuses = []
    waiters = [threading.Thread(target=lambda: statuses.append(api.call("wait", request))) for _ in range(2)]
    for waiter in waiters:
        waiter.start()
    while not statuses:
        pass
    api.done("cancel_request", request)
    for waiter in waiters:
        waiter.join()
    assert statuses == [api.INPUT, api.CANCELLED]


# ------------------------------------------------------------------------------------------------- wrong arguments


@pytest.mark.parametrize(
    "options",
    [{"size": 0}, {"size": 8}, {"size": 2**40}, {"lanes": 65}, {"threads": -1}, {"queue": 1 << 20}, {"flags": 1}],
)
def test_wrong_options_of_pools_are_refused(options):
    pool = c_void_p(7)
    refused(api.INPUT, "pool_open", byref(api.PoolOptions(**{"budget": LARGE, **options})), byref(pool))
    assert pool.value is None


@pytest.mark.parametrize(
    ("options", "session", "status"),
    [
        ({"size": 0}, {}, api.INPUT), ({"urgency": -1.0}, {}, api.INPUT), ({"urgency": float("nan")}, {}, api.INPUT),
        ({"urgency": 1e9}, {}, api.INPUT), ({"rate": float("inf")}, {}, api.INPUT), ({"deadline_s": -1.0}, {}, api.INPUT),
        ({}, {"budget": api.ALL}, api.INPUT), ({}, {"threads": 1}, api.INPUT), ({}, {"compute_cpus": b"0"}, api.INPUT),
        ({}, {"flags": 1 << 20}, api.INPUT), ({}, {"loader_cpus": b"99999"}, api.INPUT), ({}, {"size": 4}, api.INPUT),
        ({}, {"read_bandwidth": float("nan")}, api.INPUT), ({}, {"weights": b"/nowhere/at all"}, api.ARTIFACT),
        ({}, {"source": ctypes.pointer(api.Source())}, api.UNSUPPORTED),
    ],
)  # fmt: skip
def test_wrong_options_of_members_are_refused(pool, library, options, session, status):
    member = c_void_p(7)
    made = api.MemberOptions(session=ctypes.pointer(api.Options(**session)), **options)
    refused(status, "pool_add", pool, b"one", str(library).encode(), byref(made), byref(member))
    assert member.value is None and stats_of(pool).members == 0


def test_wrong_networks_are_refused(pool, library, tmp_path):
    name, member = str(library).encode(), c_void_p(7)
    (tmp_path / "text.so").write_text("text")
    refused(api.ARTIFACT, "pool_add", pool, b"one", str(tmp_path / "text.so").encode(), None, byref(member), says="text.so")
    refused(api.INPUT, "pool_add", pool, b"", name, None, byref(member), says="needs a name")
    api.done("pool_add", pool, b"one", name, None, byref(member))
    second = c_void_p(7)
    refused(api.INPUT, "pool_add", pool, b"one", name, None, byref(second), says="there is a model one")
    assert second.value is None
    small = c_void_p()
    api.done("pool_open", byref(api.PoolOptions(budget=1000)), byref(small))
    refused(api.BUDGET, "pool_add", small, b"one", name, None, byref(second), says="too small for 1 model")
    assert stats_of(small).members == 0
    api.done("pool_close", small)


def test_wrong_requests_are_refused(pool, library, x, n, y):
    member, request = added(pool, library), c_void_p(7)
    right = (api.tensors(x, n), 2, api.tensors(y), 1)
    for options in ({"size": 0}, {"deadline_s": -1.0}, {"deadline_s": float("nan")}, {"flags": 2}, {"reserved": 1}):
        refused(api.INPUT, "submit", member, *right, byref(api.RequestOptions(**options)), byref(request))
        assert request.value is None
    refused(api.INPUT, "submit", member, *right, None, None, says='"request" is NULL')
    for wrong in ((api.tensors(x), 1, None, 0), (None, 2, None, 0), (api.tensors(x, x), 2, None, 0), (right[0], 2, None, 1)):
        refused(api.INPUT, "submit", member, *wrong, None, byref(request))
        refused(api.INPUT, "run", member, *wrong)
    assert counts_of(member).requests == 0


def test_null_and_closed_handles_are_refused(pool, library):
    name = str(library).encode()
    refused(api.INPUT, "pool_open", None, byref(c_void_p()), says='"options" is NULL')
    refused(api.INPUT, "pool_open", byref(api.PoolOptions(budget=LARGE)), None, says='"pool" is NULL')
    refused(api.INPUT, "pool_add", pool, None, name, None, byref(c_void_p()), says='"name" is NULL')
    refused(api.INPUT, "pool_add", pool, b"one", None, None, byref(c_void_p()), says='"library" is NULL')
    refused(api.INPUT, "pool_add", pool, b"one", name, None, None, says='"session" is NULL')
    refused(api.INPUT, "pool_get_stats", pool, None, says='"stats" is NULL')
    refused(api.INPUT, "member_get_stats", added(pool, library), None, says='"stats" is NULL')
    member = added(pool, library, "other")
    for handle in (None, member, c_void_p(2**40)):  # a session is no pool
        refused(api.CLOSED, "pool_add", handle, b"one", name, None, byref(c_void_p()))
        refused(api.CLOSED, "pool_set_budget", handle, LARGE)
        refused(api.CLOSED, "pool_get_stats", handle, byref(api.PoolStats()))
        refused(api.CLOSED, "pool_get_text", handle, api.TEXT_PLAN, api.OnText(0), None)
        refused(api.CLOSED, "wait", handle)
        refused(api.CLOSED, "cancel_request", handle)
    refused(api.CLOSED, "pool_close", member)
    for handle in (None, pool, c_void_p(2**40)):
        refused(api.CLOSED, "member_get_stats", handle, byref(api.MemberStats()))
        refused(api.CLOSED, "submit", handle, None, 0, None, 0, None, byref(c_void_p()))


@pytest.mark.parametrize(("kind", "call"), [(api.PoolStats, "pool_get_stats"), (api.MemberStats, "member_get_stats")])
def test_structures_of_other_sizes(pool, library, kind, call):
    handle = pool if kind is api.PoolStats else added(pool, library)
    size = ctypes.sizeof(kind)
    later = ctypes.cast((ctypes.c_char * (size + 16))(*b"\xff" * (size + 16)), ctypes.POINTER(kind))
    later.contents.size = size + 16
    api.done(call, handle, later)
    assert ctypes.string_at(later, size + 16)[size:] == bytes(16)
    for wrong in (0, size - 1, 5000):
        refused(api.INPUT, call, handle, byref(kind(size=wrong)), says='"size"')


def test_a_forked_process_is_told(pool, library, x, n, y):
    member = added(pool, library)
    child = os.fork()
    if child == 0:
        found = [api.run(member, (x, n), (y,)), api.call("pool_set_budget", pool, LARGE), api.call("pool_close", pool)]
        os._exit(found != [api.EXECUTION, api.EXECUTION, api.OK])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert api.run(member, (x, n), (y,)) == api.OK
