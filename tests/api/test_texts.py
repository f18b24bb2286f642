"""What sessions and pools say of themselves: budgets, cores, texts in JSON, the storage."""

from __future__ import annotations

import json
from ctypes import byref, c_double, c_void_p

import pytest

import flexcomp
from tests.api import bindings as api
from tests.api.bindings import refused


def text(session, which, call="get_text"):
    """That a session gives, or a pool."""
    given = []
    api.done(call, session, which, api.OnText(lambda _, one: given.append(one)), None)
    return json.loads(given[0])


def test_a_session_says_what_its_budgets_are_and_where_it_runs(library):
    session = api.opened(library, compute_cpus=b"0", loader_cpus=b"0", threads=1)
    info = api.given("describe_session", api.SessionInfo, session)
    known = flexcomp.runtime.read_info(library)
    budgets = [known[f"{name}_bytes"] for name in ("min_budget", "default_budget", "resident")]
    assert [info.smallest, info.usual, info.all] == budgets
    least = json.loads(known["metadata"]["minimum"])
    assert info.layer.decode() == least["layer"]
    assert info.needs.decode() == ", ".join(f"{nbytes} of {what}" for what, nbytes in least["needs"].items() if nbytes)
    assert (info.compute_cpus, info.loader_cpus, info.threads) == (b"0", b"0", 1)
    api.done("close", session)


def test_texts_of_a_session(library, x, n, y):
    session = api.opened(library, flags=api.TRACE)
    assert text(session, api.TEXT_NETWORK) == flexcomp.runtime.read_info(library)
    assert api.run(session, (x, n), (y,)) == api.OK
    assert text(session, api.TEXT_STATS)["runs"] == 1
    trace = text(session, api.TEXT_TRACE)
    assert trace["begin_ns"] < trace["end_ns"] and len(trace["steps"]) > 0
    refused(api.INPUT, "get_text", session, api.TEXT_DEVICE_RATES, api.OnText(print), None, says="CPU")
    for which in (api.TEXT_PLAN, 99, -1):
        refused(api.UNSUPPORTED, "get_text", session, which, api.OnText(print), None, says=str(which))
    api.done("close", session)
    untraced = api.opened(library)
    refused(api.INPUT, "get_text", untraced, api.TEXT_TRACE, api.OnText(print), None, says="trac")
    api.done("close", untraced)


def test_texts_of_a_pool(library, x, n, y):
    pool, member = c_void_p(), c_void_p()
    api.done("pool_open", byref(api.PoolOptions(budget=1 << 22)), byref(pool))
    api.done("pool_add", pool, b"one", str(library).encode(), None, byref(member))
    assert api.run(member, (x, n), (y,)) == api.OK
    assert [model["name"] for model in text(pool, api.TEXT_PLAN, "pool_get_text")["models"]] == ["one"]
    assert text(pool, api.TEXT_STATS, "pool_get_text")["models"]["one"]["completed"] == 1
    assert text(member, api.TEXT_STATS)["session"]["runs"] == 1
    refused(api.UNSUPPORTED, "pool_get_text", pool, api.TEXT_TRACE, api.OnText(print), None, says="2")
    refused(api.INPUT, "pool_get_text", pool, api.TEXT_PLAN, api.OnText(0), None, says='"give" is NULL')
    traced = api.MemberOptions(session=api.ctypes.pointer(api.Options(flags=api.TRACE)))
    other = c_void_p()
    refused(api.UNSUPPORTED, "pool_add", pool, b"two", str(library).encode(), byref(traced), byref(other), says="FLEXCOMP_TRACE")
    api.done("pool_close", pool)


@pytest.mark.parametrize(("request_bytes", "nbytes"), [(0, 1), (1, 0)])
def test_the_storage_is_measured_by_reads_of_something(session, request_bytes, nbytes, x, n, y):
    rate = api.given("measure_storage", c_double, session, 1 << 16, 1 << 20)
    assert rate > 0
    assert api.run(session, (x, n), (y,)) == api.OK
    refused(api.INPUT, "measure_storage", session, request_bytes, nbytes, byref(c_double()), says="reads of")
