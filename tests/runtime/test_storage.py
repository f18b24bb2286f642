"""Reading weights: ways, speed, errors."""

from __future__ import annotations

import pytest
from tiny import close_to

import flexcomp
from flexcomp.errors import StorageError


def test_reads_bypass_the_page_cache(tiny, x):
    with flexcomp.load(tiny.library, "min") as session:
        if not session.stats()["direct_io"]:
            pytest.skip("the file system of the temporary folder has no O_DIRECT")
        close_to(session(x), tiny.reference(x))


def test_buffered_reads_are_reported(tiny, x):
    with flexcomp.load(tiny.library, "min", direct=False) as session:
        assert session.stats()["direct_io"] is False
        close_to(session(x), tiny.reference(x))


def test_a_slow_device_is_imitated(tiny, x, budgets):
    with flexcomp.load(tiny.library, budgets[0], read_bandwidth=50e6) as session:
        close_to(session(x), tiny.reference(x))
        session(x)
        stats = session.stats()
        assert stats["latency_ms"] > 0.9 * stats["bytes_read"] / 50e6 * 1e3
        assert 0 < stats["stall_ms"] < stats["latency_ms"]


@pytest.mark.parametrize("rung", [0, 1, 2])
def test_a_read_error_at_any_place_leaves_the_session_usable(tiny, x, budgets, rung):
    expected = tiny.reference(x)
    for nth in range(1, 2 * len(tiny.program.rungs[rung].loads) + 1):
        with flexcomp.load(tiny.library, budgets[rung], fail_read_at=nth) as session:
            failed = 0
            for _ in range(4):
                try:
                    result = session(x)
                except StorageError as error:
                    assert "Input/output error" in str(error)
                    failed += 1
                else:
                    close_to(result, expected)
            assert failed == (nth <= len(tiny.program.rungs[rung].loads) or rung < 2)
