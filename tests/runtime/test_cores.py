"""Which cores compute and which load."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

import flexcomp
from flexcomp.device.cores import CoreChoice, choose_cores, compute_cores
from flexcomp.errors import InputError
from tests.runtime import hooks, native

ANYWHERE = CoreChoice(None, None)


def machine(folder: Path, capacities, frequencies=None) -> Path:
    """Like /sys/devices/system/cpu; None: there is no such file."""
    for file, values in (("cpu_capacity", capacities), ("cpufreq/cpuinfo_max_freq", frequencies or [])):
        for cpu, value in enumerate(values):
            if value is not None:
                path = folder / f"cpu{cpu}" / file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"{value}\n")
    return folder


def choice(folder, capacities, threads=8, frequencies=None, **options):
    sysfs = machine(folder, capacities, frequencies)
    return choose_cores(threads, sysfs=sysfs, **{"cpus": range(len(capacities)), **options})


# Capacities as these devices' kernels report them, rounded.
BOARD = [1024] * 4
BIG_LITTLE = [400] * 4 + [1024] * 4  # mi-mix-2s
BIG_MIDDLE_LITTLE = [160] * 4 + [500] * 2 + [1024] * 2  # pixel-6-pro
ONE_BIG = [250] * 4 + [700] * 4 + [1024]
FAVOURED = [350] * 4 + [870] * 3 + [1024]  # one of the big cores is clocked higher


@pytest.mark.parametrize(
    ("capacities", "compute", "loader"),
    [
        (BIG_LITTLE, (4, 5, 6, 7), (0, 1, 2, 3)),
        (BIG_LITTLE[::-1], (0, 1, 2, 3), (4, 5, 6, 7)),
        (BIG_MIDDLE_LITTLE, (6, 7), (0, 1, 2, 3)),  # two threads at 1024 do more than four at 500
        (ONE_BIG, (4, 5, 6, 7, 8), (0, 1, 2, 3)),  # five at 700 do more than one at 1024
        (FAVOURED, (4, 5, 6, 7), (0, 1, 2, 3)),
        ([1024, 300], (0,), (1,)),
    ],
)
def test_big_cores_compute_and_little_ones_load(tmp_path, capacities, compute, loader):
    assert choice(tmp_path, capacities) == CoreChoice(compute, loader)


@pytest.mark.parametrize("capacities", [BOARD, [1024], [1024, 950, 900, 1000], [None, None]])
def test_nothing_is_pinned_where_cores_are_alike_or_unknown(tmp_path, capacities):
    assert choice(tmp_path, capacities) == ANYWHERE


def test_few_threads_take_the_fastest_cores(tmp_path):
    assert choice(tmp_path, ONE_BIG, threads=1).compute == (8,)
    assert choice(tmp_path, ONE_BIG, threads=2).compute == (4, 5, 6, 7, 8)


def test_threads_that_were_asked_for_find_cores(tmp_path):
    """Of several kinds, if need be; if that takes the little cores, the system places them."""
    sysfs = machine(tmp_path, BIG_MIDDLE_LITTLE)
    found = [choose_cores(n, asked=True, cpus=range(8), sysfs=sysfs).compute for n in (1, 2, 3, 4, 5, 8)]
    assert found == [(6, 7), (6, 7), (4, 5, 6, 7), (4, 5, 6, 7), None, None]


def test_cores_that_are_not_allowed_do_not_exist(tmp_path):
    """A control group may leave a process nothing but little cores."""
    assert choice(tmp_path, BIG_LITTLE, cpus=[0, 1, 2]) == ANYWHERE
    assert choice(tmp_path, BIG_LITTLE, cpus=[2, 3, 5]) == CoreChoice((5,), (2, 3))


def test_frequencies_stand_in_for_capacities(tmp_path):
    clocks = [1_800_000] * 4 + [2_800_000] * 4
    assert choice(tmp_path, [None] * 8, frequencies=clocks) == CoreChoice((4, 5, 6, 7), (0, 1, 2, 3))


def test_capacities_come_first_and_are_not_mixed_with_frequencies(tmp_path):
    clocks = [2_000_000, 2_000_000, 1_000_000]
    assert choice(tmp_path / "all", [300, 1024, 1024], frequencies=clocks) == CoreChoice((1, 2), (0,))
    assert choice(tmp_path / "some", [300, 1024, None], frequencies=clocks) == CoreChoice((0, 1), (2,))


def test_a_build_for_this_machine_counts_its_big_cores():
    allowed = len(os.sched_getaffinity(0))
    chosen = choose_cores(allowed).compute
    assert compute_cores() == (allowed if chosen is None else len(chosen))


def threads_of_this_process() -> dict[int, set[int]]:
    """Where each thread may run; one may end meanwhile. Without the system's own, which read for io_uring."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            if not (task / "comm").read_text().startswith("iou-"):
                found[int(task.name)] = os.sched_getaffinity(int(task.name))
    return found


def masks(tiny, x, **options):
    """The masks of the threads that a session starts, and its stats."""
    before = threads_of_this_process()
    with hooks.load(tiny.library, "min", **options) as session:
        np.testing.assert_allclose(session(x), tiny.reference(x), rtol=1e-4, atol=1e-5)
        started = {thread: cpus for thread, cpus in threads_of_this_process().items() if thread not in before}
        assert os.sched_getaffinity(0) == before[threading.get_native_id()]
        return sorted(started.values(), key=sorted), session.stats()


@pytest.fixture
def pair():
    """Two cores that this process may use."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("needs two cores")
    return allowed[:2]


def test_who_steps_aside_leaves_its_core(tmp_path):
    program = native.compile(tmp_path, "steps_aside.cc", ["threads/cpu_set.cc"])
    native.run(program)
    subprocess.run(["taskset", "-c", str(min(os.sched_getaffinity(0))), program], check=True)


def test_threads_run_where_the_user_says(tiny, x, pair):
    first, second = pair
    found, stats = masks(tiny, x, threads=3, compute_cpus=second, loader_cpu=str(first))
    assert found == [{first}, {second}, {second}]
    assert (stats["compute_cpus"], stats["loader_cpus"], stats["threads"]) == ([second], [first], 3)
    found, stats = masks(tiny, x, compute_cpus=pair)
    assert set(pair) in found and stats["compute_cpus"] == pair
    assert masks(tiny, x, compute_cpus=[first])[1]["threads"] == 1


def test_threads_run_on_big_cores_and_the_loader_on_little_ones(tiny, x, pair, tmp_path):
    """With a machine whose first core is said to be little."""
    little, big = pair
    allowed = os.sched_getaffinity(0)
    sysfs = machine(tmp_path, [300 if cpu == little else 1024 for cpu in range(max(allowed) + 1)])
    options = {"sysfs_cpus": str(sysfs)}
    os.sched_setaffinity(0, pair)
    try:
        found, stats = masks(tiny, x, **options)
        assert found == [{little}]  # the one compute thread is the caller's
        assert (stats["compute_cpus"], stats["loader_cpus"], stats["threads"]) == ([big], [little], 1)
        found, stats = masks(tiny, x, threads=2, **options)
        assert found == [set(pair)] * 2 and stats["compute_cpus"] is None
        found, stats = masks(tiny, x, affinity=False, **options)
        assert found == [set(pair)] * 2 and (stats["compute_cpus"], stats["threads"]) == (None, 2)
        assert masks(tiny, x, compute_cpus=little, **options)[1]["loader_cpus"] is None
        assert masks(tiny, x, loader_cpu=big, **options)[1]["compute_cpus"] == [big]
    finally:
        os.sched_setaffinity(0, allowed)


def test_the_caller_computes_on_the_chosen_cores(tiny, pair):
    """Its own mask is back after every inference, also after a failed one."""
    seen = []
    with hooks.load(tiny.library, "min", threads=1, compute_cpus=pair[1], fail_read_at=1) as session:
        with pytest.raises(flexcomp.StorageError):
            session(np.zeros(256, "f4"))
        assert os.sched_getaffinity(0) >= set(pair)
        watcher = threading.Event()
        caller = threading.get_native_id()

        def watch():
            while not watcher.is_set():
                seen.append(os.sched_getaffinity(caller))

        thread = threading.Thread(target=watch)
        thread.start()
        for _ in range(2000):
            session(np.zeros(256, "f4"))
            if {pair[1]} in seen:
                break
        watcher.set()
        thread.join()
    assert {pair[1]} in seen and os.sched_getaffinity(0) >= set(pair)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"compute_cpus": 999}, "cannot compute on core 999: this process may use "),
        ({"loader_cpu": [998, 999]}, "cannot load on core 998-999"),
        ({"compute_cpus": 10**6}, "there is no core 1000000"),
        ({"compute_cpus": -1}, "must not be negative"),
        ({"compute_cpus": []}, 'option "compute_cpus" names no core'),
        ({"compute_cpus": "4-"}, 'cannot read the list of cores "4-": write 0-3,6'),
        ({"compute_cpus": "7-4"}, "cannot read the list"),
        ({"loader_cpu": "0;1"}, "cannot read the list"),
        ({"loader_cpu": 0.5}, "loader_cpu must be a core, several, or a list"),
        ({"affinity": False, "loader_cpu": 0}, "only one of both is possible"),
    ],
)
def test_wrong_cores(tiny, options, match):
    with pytest.raises(InputError, match=match):
        flexcomp.load(tiny.library, **options)
