"""Reading weights: ways, speed, errors."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
import tvm_ffi

import flexcomp
from flexcomp import runtime_ext
from flexcomp.errors import ArtifactError, ExecutionError, StorageError
from flexcomp.program import PROGRAM_KIND
from tests.runtime import hooks, native
from tests.runtime.tiny import close_to


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


def descriptors(weights: Path) -> int:
    """Of this process that hold a file."""
    targets = (os.path.realpath(path) for path in Path("/proc/self/fd").iterdir())
    return sum(target == str(weights) for target in targets)


@pytest.fixture
def shared(tiny, tmp_path):
    """A weights file of its own, and two libraries of it."""
    weights, other = tmp_path / "shared.weights", tmp_path / "other.so"
    shutil.copy(tiny.weights, weights)
    shutil.copy(tiny.library, other)
    return weights, (tiny.library, other)


def test_sessions_with_one_weights_file_share_its_descriptor(tiny, x, shared):
    weights, libraries = shared
    expected = tiny.reference(x)
    sessions = [flexcomp.load(library, "min", weights=weights) for library in (*libraries, *libraries)]
    while sessions:
        assert descriptors(weights) == 1
        for session in sessions:
            close_to(session(x), expected)
        sessions.pop(0).close()  # the one that opened it goes first
    assert descriptors(weights) == 0


def test_models_of_a_pool_with_one_weights_file_share_its_descriptor(tiny, x, shared):
    weights, libraries = shared
    expected = tiny.reference(x)
    with flexcomp.Pool("100MB", threads=1) as pool:
        for name, library in zip(("first", "second"), libraries, strict=True):
            pool.add(name, library, weights=weights, keep=0)  # so that it is read in every inference
            assert descriptors(weights) == 1
        for name in ("first", "second"):
            close_to(pool.run(name, {"x": x})["out"], expected)
        pool.remove("first")
        assert descriptors(weights) == 1
        close_to(pool.run("second", {"x": x})["out"], expected)
        pool.remove("second")
        assert descriptors(weights) == 0


def test_what_is_opened_otherwise_or_is_another_file_has_a_descriptor_of_its_own(tiny, x, shared, tmp_path):
    weights, (library, _) = shared
    expected, moved = tiny.reference(x), tmp_path / "moved.weights"
    with flexcomp.load(library, "min", weights=weights) as first:
        with flexcomp.load(library, "min", weights=weights, direct=False) as buffered:
            assert descriptors(weights) == (2 if first.stats()["direct_io"] else 1)
            close_to(buffered(x), expected)
        weights.chmod(0o400)  # whatever that was: servers give a number again that somebody has open
        with flexcomp.load(library, "min", weights=weights) as changed:
            assert descriptors(weights) == 2
            close_to(changed(x), expected)
        weights.rename(moved)
        shutil.copy(moved, weights)
        with flexcomp.load(library, "min", weights=weights) as replaced:
            assert (descriptors(weights), descriptors(moved)) == (1, 1)
            close_to(replaced(x), expected)
        close_to(first(x), expected)
    assert (descriptors(weights), descriptors(moved)) == (0, 0)


def test_files_are_opened_and_shared_by_several_threads_in_a_process_that_forks(tiny, tmp_path):
    native.run(native.compile(tmp_path, "open_files.cc", ["storage/open_file.cc"]), tiny.weights)


@pytest.mark.parametrize("rung", [0, 1, 2])
def test_a_read_error_at_any_place_leaves_the_session_usable(tiny, x, budgets, rung):
    expected = tiny.reference(x)
    for nth in range(1, 2 * len(tiny.program.rungs[rung].loads) + 1):
        with hooks.load(tiny.library, budgets[rung], fail_read_at=nth) as session:
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


def test_a_read_error_leaves_weights_that_stay(tiny, x, budgets):
    loads = tiny.program.rungs[1].loads
    assert any(load.pinned for load in loads)
    with hooks.load(tiny.library, budgets[1], fail_read_at=len(loads) + 1) as session:
        session(x)
        with pytest.raises(StorageError, match="Input/output error"):
            session(x)
        close_to(session(x), tiny.reference(x))
        assert session.stats()["bytes_read"] == session.ladder[1].streamed_bytes


def test_a_weights_file_is_a_file(tiny, tmp_path):
    """Nobody waits for somebody to write into a pipe."""
    pipe, folder, listener = tmp_path / "pipe", tmp_path / "folder", socket.socket(socket.AF_UNIX)
    os.mkfifo(pipe)
    folder.mkdir()
    listener.bind(str(tmp_path / "socket"))
    for weights, reason in [
        (pipe, "is not a regular file"), (folder, "is not a regular file"), ("/dev/zero", "is not a regular file"),
        (tmp_path / "socket", "No such device or address"),
    ]:  # fmt: skip
        for direct in (True, False):
            with pytest.raises(ArtifactError, match=reason):
                flexcomp.load(tiny.library, weights=weights, direct=direct)
        command = [str(runtime_ext.runner()), str(tiny.library), "--weights", str(weights)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode != 0 and reason in done.stderr
    listener.close()


def test_the_rate_of_the_storage_takes_no_memory_to_measure(tiny, budgets):
    def resident_nbytes():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    with flexcomp.load(tiny.library, budgets[1]) as session:
        session.read_rate(4096, 1 << 20)
        before, errors = resident_nbytes(), []

        def measure():
            try:
                session.read_rate(4096, 20 << 30)
            except ExecutionError as error:
                errors.append(str(error))

        worker = threading.Thread(target=measure)
        worker.start()
        read = session.stats()["total_bytes_read"]
        while session.stats()["total_bytes_read"] < read + (1 << 20):
            time.sleep(0.001)
        assert resident_nbytes() - before < 8 << 20
        session.set_budget("min")
        worker.join()
        assert errors == ["the budget became smaller while the storage was measured"]


def test_storage_is_measured_as_sessions_read(tiny, tmp_path):
    """The runtime's loader reads a file without a library, past the page cache where it reads weights so."""
    runtime_ext.register()
    measure = tvm_ffi.get_global_func(PROGRAM_KIND + ".measure_storage")
    file = tiny.library.with_name("file")
    file.write_bytes(bytes(1 << 20) + b"a part of a page")
    rates = json.loads(measure(str(file), 0.0))
    with flexcomp.load(tiny.library, "min") as session:
        assert rates["direct_io"] == session.stats()["direct_io"]
    assert rates["bytes_per_s"] > 0 and rates["latency_s"] >= 0
    file.write_bytes(bytes(4096))
    wrong = {file: "has 4096 bytes: too few", tmp_path / "none": "No such file", tmp_path: "is not a regular file"}
    for path, reason in wrong.items():
        with pytest.raises(RuntimeError, match=reason):
            measure(str(path), 0.0)


def test_what_is_read_to_measure_is_not_verified(tiny, x):
    """Several reads at a time go to the same place, where each finds what another one brought."""
    with flexcomp.load(tiny.library, "min", verify=True) as session:
        for _ in range(20):
            session.read_rate(1 << 20, 4 << 20)
        close_to(session(x), tiny.reference(x))


def test_reads_are_over_before_their_memory_is_used_again(tmp_path, tiny):
    """Where calls of io_uring fail; the program has a ring of its own, which writes as late as it may."""
    names = ["file_source", "io_uring", "open_file", "read_queue", "read_threads"]
    native.run(native.compile(tmp_path, "read_queue.cc", [f"storage/{name}.cc" for name in names]), tiny.weights)


@pytest.mark.parametrize("page", [4096, 16384, 65536])
def test_arenas_are_made_of_whole_pages(tmp_path, page):
    """Whatever the system's: the program stands between the arena and the system calls, and refuses what such a kernel would."""
    native.run(native.compile(tmp_path, "arena_pages.cc", ["memory/arena.cc"]), page)
