"""Budgets that follow the system."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flexcomp
from benchmarks.cgroup import is_available, memory_group
from flexcomp.errors import InputError, StorageError
from flexcomp.runtime.watch import MARGIN, ControlGroup, Hysteresis, Pressure, Watch, source_of


@pytest.fixture
def budgets(tiny):
    return [rung.budget for rung in tiny.program.rungs]


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def test_a_function_is_followed(tiny, x, budgets):
    allowed = [None]
    with flexcomp.load(tiny.library, "all") as session:
        with session.watch(lambda: allowed[0], interval_ms=5, patience_ms=50) as watch:
            time.sleep(0.05)
            assert session.budget == budgets[2]
            for bytes_, rung in ((budgets[1], 1), (1, 0), (budgets[1] * 2, 1), (10**9, 2), (budgets[0], 0)):
                allowed[0] = bytes_
                until(lambda rung=rung: session.budget == budgets[rung])
                np.testing.assert_allclose(session(x), tiny.reference(x), rtol=1e-4, atol=1e-5)
        allowed[0] = 10**9
        watch.stop()
        time.sleep(0.1)
        assert session.budget == budgets[0]


def test_a_function_that_fails_is_reported_once(tiny, budgets, caplog):
    def fails():
        raise OSError("no sensor")

    with caplog.at_level(logging.WARNING), flexcomp.load(tiny.library, "all") as session:
        with session.watch(fails, interval_ms=5):
            time.sleep(0.1)
        assert session.budget == budgets[2]
    assert [record.getMessage() for record in caplog.records] == ["the budget stays as it is: no sensor"]


@pytest.mark.parametrize(
    "error",
    [RuntimeError, flexcomp.ExecutionError, StorageError, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError],
)
def test_whatever_a_function_raises_it_is_asked_again(tiny, budgets, caplog, error):
    failures = 20

    def fails_at_first():
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise error("no sensor")
        return budgets[1]

    with caplog.at_level(logging.WARNING), flexcomp.load(tiny.library, "all") as session:
        with session.watch(fails_at_first, interval_ms=1):
            until(lambda: session.budget == budgets[1])
    assert [record.getMessage() for record in caplog.records] == ["the budget stays as it is: no sensor"]


def test_the_watch_ends_with_the_session(tiny):
    session = flexcomp.load(tiny.library, "all")
    watch = session.watch(lambda: 10**9, interval_ms=5)
    session.close()
    until(lambda: not watch._thread.is_alive())
    watch.stop()


@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=8, unique=True),
    st.lists(st.integers(0, 2 * 10**6), min_size=1, max_size=30),
)
def test_hysteresis(budgets, series):
    """Never more than allowed unless it is the least there is; up only after patience, with a margin."""
    patience = 3
    policy, used, since = Hysteresis(budgets, patience), max(budgets), None
    for at, allowed in enumerate(series):
        before, used = used, policy.next(used, allowed, float(at))
        assert used in budgets and (used <= allowed or used == min(budgets))
        roomy = [budget for budget in budgets if budget > before and budget * MARGIN <= allowed]
        since = (at if since is None else since) if roomy else None
        if used > before:
            assert used in roomy and at - since >= patience
        if used < before:
            assert before > allowed


@pytest.mark.parametrize("version", [1, 2])
def test_control_groups_by_their_files(tiny, budgets, tmp_path, version):
    limit, usage, droppable = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }[version]
    root = tmp_path / "cgroup"
    group = root / "parent" / "child"
    group.mkdir(parents=True)
    (root / "parent" / limit).write_text("max\n" if version == 2 else f"{2**63 - 4096}\n")
    (group / limit).write_text("1000000000\n")
    with flexcomp.load(tiny.library, "all") as session:
        source = ControlGroup(group, root)
        assert source.allowed(session) == 1_000_000_000
        session(np.zeros(256, "f4"))
        arena = session.resident_arena()
        (group / usage).write_text(f"{arena + 3_000_000}\n")
        (group / "memory.stat").write_text(f"anon 5\n{droppable} 1000000\n")
        assert source.allowed(session) == 998_000_000
        (root / "parent" / limit).write_text("900000000\n")
        assert source.allowed(session) == 900_000_000
        with session.watch(source, interval_ms=5):
            (group / usage).write_text("0\n")
            (group / limit).write_text(f"{budgets[1]}\n")
            until(lambda: session.budget == budgets[1])


def test_what_slows_a_group_down_limits_it(tiny, tmp_path):
    group = tmp_path / "cgroup" / "group"
    group.mkdir(parents=True)
    with flexcomp.load(tiny.library, "all") as session:
        for most, high, allowed in (
            ("max", "5000000", 5_000_000),
            ("4000000", "5000000", 4_000_000),
            ("6000000", "max", 6_000_000),
        ):
            (group / "memory.max").write_text(f"{most}\n")
            (group / "memory.high").write_text(f"{high}\n")
            assert ControlGroup(group, tmp_path / "cgroup").allowed(session) == allowed


def resident_in_maps():
    """Bytes in memory of this process's mappings, by their first address and size."""
    found, place = {}, None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            start, end = (int(bound, 16) for bound in bounds.groups())
            place = start, end - start
        elif line.startswith("Rss:"):
            found[place] = int(line.split()[1]) * 1024
    return found


def test_an_arena_that_nobody_touched_makes_no_room(tiny, x, budgets, tmp_path):
    """An idle session that grew would take its own empty arena for room, grow again, and be killed when it is used."""
    others = 20_000_000
    (tmp_path / "memory.max").write_text(str(others + int(budgets[1] * 1.6)))
    source, clock = ControlGroup(tmp_path), itertools.count()
    before = resident_in_maps()  # what earlier tests left may be as large as an arena
    with flexcomp.load(tiny.library, "min") as session:
        hysteresis = Hysteresis(budgets, patience_s=3)

        def used():
            arena = session.stats()["arena_bytes"]
            return others + sum(
                nbytes for place, nbytes in resident_in_maps().items() if place not in before and place[1] == arena
            )

        def watch(times):
            for _ in range(times):
                (tmp_path / "memory.current").write_text(str(used()))
                session.set_budget(hysteresis.next(session.budget, source.allowed(session), float(next(clock))))

        session(x)
        watch(20)
        assert session.budget == budgets[1] and used() == others
        for _ in range(2):
            session(x)
            assert others + budgets[0] < used() <= others + budgets[1]
            watch(20)
            assert session.budget == budgets[1]


def test_a_budget_that_has_no_room_is_not_tried_all_the_time(tiny, budgets):
    tried = []

    class Session:
        ladder, budget, closed = flexcomp.load(tiny.library, "all").ladder, budgets[0], False

        def set_budget(self, budget):
            tried.append(time.monotonic())
            raise flexcomp.BudgetError("no room")

    with Watch(Session(), source_of(lambda: 10**9), interval_s=0.001, patience_s=0.1):
        until(lambda: len(tried) == 3)
    assert min(b - a for a, b in itertools.pairwise(tried)) >= 0.1


def test_the_group_of_this_process_is_found(tmp_path):
    for line, folder, limit in (
        ("4:cpu,memory:/a/b\n0::/c\n", "memory/a/b", "memory.limit_in_bytes"),
        ("0::/c\n", "c", "memory.max"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / limit).write_text("123\n")
        (tmp_path / "table").write_text(line)
        assert ControlGroup.own(tmp_path / "table", tmp_path)._groups[0][0] == tmp_path / folder


def test_pressure(tiny, budgets, tmp_path):
    path = tmp_path / "memory"

    def press(percent):
        path.write_text(
            f"some avg10={percent:.2f} avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
        )

    press(50)
    with flexcomp.load(tiny.library, "all") as session:
        with session.watch(Pressure(path), interval_ms=5, patience_ms=50):
            until(lambda: session.budget == budgets[0])
            press(5)
            time.sleep(0.1)
            assert session.budget == budgets[0]
            press(0)
            until(lambda: session.budget == budgets[2])


def test_what_cannot_be_watched(tiny, tmp_path):
    with flexcomp.load(tiny.library, "all") as session:
        for wrong in ("weather", 5, tmp_path / "nothing"):
            with pytest.raises(InputError, match="watch follows"):
                session.watch(wrong)
        with pytest.raises(InputError, match="is no memory control group"):
            session.watch(tmp_path)
        with pytest.raises(InputError, match="does not report memory pressure"):
            session.watch(Pressure(tmp_path / "none"))


@pytest.mark.skipif(not is_available(), reason="this machine grants no memory control groups")
def test_a_real_control_group(tiny):
    """A process in a group whose limit falls and rises."""
    script = f"""
        import sys, time
        import flexcomp
        with flexcomp.load({str(tiny.library)!r}) as session:
            with session.watch("cgroup", interval_ms=10, patience_ms=50):
                for line in sys.stdin:
                    end, wanted = time.monotonic() + 10, int(line)
                    while session.budget != wanted and time.monotonic() < end:
                        time.sleep(0.005)
                    print(session.budget, flush=True)
    """
    lowest, highest = tiny.program.rungs[0].budget, tiny.program.rungs[-1].budget
    with memory_group(1 << 30) as group:
        command = [*group.prefix, sys.executable, "-c", textwrap.dedent(script)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

        def ask(wanted):
            process.stdin.write(f"{wanted}\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        try:
            assert ask(highest) == highest
            limit = "memory.limit_in_bytes" if group.is_v1 else "memory.max"
            used = int((group.folder / ("memory.usage_in_bytes" if group.is_v1 else "memory.current")).read_text())
            # just above what the process takes: too little for everything, enough to live
            (group.folder / limit).write_text(str(used + 100_000))
            assert ask(lowest) < highest
            (group.folder / limit).write_text(str(1 << 30))
            assert ask(highest) == highest
        finally:
            process.stdin.close()
            process.wait(timeout=20)
