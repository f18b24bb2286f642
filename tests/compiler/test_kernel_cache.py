"""Kernels that were compiled before: found again, never taken for others, whoever writes or damages the folder."""

import errno
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest
from tvm import tirx

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp.cache import KernelCache
from flexcomp.compiler import kernel_compiler, machine_code, workers
from flexcomp.errors import CompilerError
from flexcomp.schedules.row_bands import RowKernel

from ..cli import calls
from .families import network

TARGET = "llvm -opt-level=0 -mcpu=x86-64-v3"  # compiles fast: what lies in the folder is not run

BUILD = f"""
import sys
import flexcomp
from flexcomp.compiler import kernel_compiler, workers
from tests.compiler.families import network
kernel_compiler._WORTH_PROCESSES = int(sys.argv[2])
flexcomp.build(network(), budget=0.5, target={TARGET!r}).export_library(sys.argv[1])
"""


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """The artifact's bytes, of a build without a cache."""
    return exported(tmp_path_factory.mktemp("wanted"), cache=False)


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache that one build has filled, to be copied."""
    folder = tmp_path_factory.mktemp("filled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLEXCOMP_CACHE", str(folder / "cache"))
        exported(folder / "first")
    return folder / "cache"


@pytest.fixture
def kept(filled, tmp_path, monkeypatch):
    """A cache of the test's own, with all kernels in it."""
    monkeypatch.setenv("FLEXCOMP_CACHE", str(shutil.copytree(filled, tmp_path / "cache")))
    return KernelCache()


def exported(folder, **options) -> bytes:
    folder.mkdir(exist_ok=True)
    flexcomp.build(network(), budget=0.5, target=TARGET, **options).export_library(folder / "tiny.so")
    return (folder / "tiny.so").read_bytes() + (folder / "tiny.weights").read_bytes()


def in_bands():
    """A network whose smallest plans compute its largest layers in bands of rows."""
    g = Graph("banded", seed=3)
    x = g.relu(g.conv(g.input("x", (1, 3, 32, 32)), 16, 3))
    return g.model(g.max_pool(x, 2, 2), (1, 16, 16, 16))


def entries(kept):
    return sorted(kept.folder.glob("*.o"))


def start(folder, cache, worth):
    """A build in a process of its own."""
    folder.mkdir()
    environment = os.environ | {"FLEXCOMP_CACHE": str(cache)}
    with open(os.devnull, "w") as nothing:
        return calls.start("-c", BUILD, folder / "tiny.so", str(worth), stdout=nothing, stderr=nothing, env=environment)


def no_compiler(monkeypatch):
    def refuse(symbol, *_):
        raise AssertionError(f"{symbol} is compiled again")

    monkeypatch.setattr(kernel_compiler, "compile_object", refuse)
    monkeypatch.setattr(kernel_compiler, "_WORTH_PROCESSES", 1 << 40)  # in this process


def test_a_second_build_compiles_nothing(kept, wanted, tmp_path, monkeypatch):
    assert entries(kept)
    no_compiler(monkeypatch)
    assert exported(tmp_path / "second") == wanted
    with pytest.raises(AssertionError, match="is compiled again"):
        exported(tmp_path / "third", cache=False)


def test_kernels_of_bands_that_are_known_are_not_made(tmp_path, monkeypatch):
    """Nor looked at: what they are called is found by what they would be made of."""
    monkeypatch.setenv("FLEXCOMP_CACHE", str(tmp_path / "cache"))
    made = []
    build = RowKernel.build
    monkeypatch.setattr(RowKernel, "build", lambda self: made.append(self) or build(self))
    builds = [
        flexcomp.build(in_bands(), budget="min", target=TARGET, cache=cache) for cache in (False, True, True)
    ]
    none, cold, warm = builds
    count = len({kernel for kernel in none.kernels if "_rows_" in kernel})
    assert count and len(made) == 2 * count
    assert none.kernels == cold.kernels == warm.kernels and none.program == cold.program == warm.program


def test_another_budget_compiles_nothing(kept, tmp_path, monkeypatch):
    no_compiler(monkeypatch)
    flexcomp.build(network(), budget="min", target=TARGET).export_library(tmp_path / "small.so")


def test_other_targets_have_kernels_of_their_own(kept):
    known = {path.name.split(".")[0] for path in entries(kept)}
    other = flexcomp.build(network(), budget=0.5, target=TARGET.replace("v3", "v4"))
    assert other.kernels and known.isdisjoint(other.kernels)


def test_damaged_entries_are_compiled_again(kept, wanted, tmp_path):
    """Each entry is damaged in another way, and each way occurs."""
    ways = ["cut", "empty", "flipped", "another's", "foreign", "a folder"]
    chance = random.Random(1)
    paths = entries(kept)
    assert len(paths) >= len(ways)
    contents = [path.read_bytes() for path in paths]
    damages = [ways[index % len(ways)] for index in range(len(paths))]
    for index, (path, damage) in enumerate(zip(paths, damages, strict=True)):
        raw = bytearray(contents[index])
        if damage == "cut":
            raw = raw[: chance.randrange(len(raw))]
        elif damage == "flipped":
            raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        elif damage == "another's":
            raw = contents[index - 1]
        path.unlink()
        if damage == "a folder":
            path.mkdir()
        else:
            path.write_bytes(b"" if damage == "empty" else b"not of flexcomp" if damage == "foreign" else raw)
    assert exported(tmp_path / "second") == wanted
    for path, damage, content in zip(paths, damages, contents, strict=True):
        assert damage == "a folder" or path.read_bytes() == content, damage


@pytest.mark.parametrize("worth", [0, 1 << 40], ids=["in processes", "in this process"])
def test_two_builds_at_once(tmp_path, wanted, worth):
    builds = [start(tmp_path / name, tmp_path / "cache", worth) for name in ("a", "b")]
    assert [build.wait(300) for build in builds] == [0, 0]
    for name in ("a", "b"):
        assert (tmp_path / name / "tiny.so").read_bytes() + (tmp_path / name / "tiny.weights").read_bytes() == wanted


def test_builds_that_are_killed_leave_what_is_right(tmp_path, wanted, monkeypatch):
    """At random moments of the time from the first entry to the last."""
    monkeypatch.setenv("FLEXCOMP_CACHE", str(tmp_path / "cache"))
    chance = random.Random(1)
    for number in range(4):
        build = start(tmp_path / str(number), tmp_path / "cache", 1 << 40)
        deadline = time.monotonic() + 120
        while not any((tmp_path / "cache").glob("kernels/*")) and build.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(chance.random() * 0.3)
        build.send_signal(signal.SIGKILL)
        build.wait()
    assert exported(tmp_path / "last") == wanted
    assert exported(tmp_path / "again") == wanted


def test_another_compiler_finds_nothing(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_compiler, "version", lambda: "another")
    bands = list(kept.folder.glob("band_*"))  # of which it says what they are called: no machine code
    known = entries(kept)
    assert exported(tmp_path / "second") == exported(tmp_path / "third")
    assert len(entries(kept)) == 2 * len(known) - len(bands)


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path, wanted, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLEXCOMP_CACHE", str(tmp_path / "file"))
    assert exported(tmp_path / "out") == wanted


def test_the_folder_is_bounded(tmp_path):
    cache = KernelCache(tmp_path / "kernels", most_nbytes=10_000)
    for number in range(8):
        cache.keep(f"k{number}", bytes(968))  # and a checksum of 32
    (cache.folder / "notes.txt").write_text("x" * 20_000)
    (cache.folder / f".k9.{'0' * 16}").write_text("unfinished")
    os.utime(cache.folder / f".k9.{'0' * 16}", (0, 0))
    for number in range(8):
        os.utime(cache.folder / f"k{number}.o", (number, number))
    cache.trim()
    assert cache.size() == (8, 8000)
    assert not (cache.folder / f".k9.{'0' * 16}").exists()
    assert cache.find("k0") == bytes(968)  # used: it stays
    for number in range(8, 12):
        cache.keep(f"k{number}", bytes(968))
    cache.trim()
    assert cache.size() == (7, 7000)
    assert cache.find("k0") is not None and cache.find("k1") is None and cache.find("k11") is not None
    assert cache.clear() == (7, 7000)
    assert [path.name for path in cache.folder.iterdir()] == ["notes.txt"]


def test_the_folder_is_looked_through_when_enough_was_added(tmp_path):
    """By whomever: what two processes add counts together."""
    caches = [KernelCache(tmp_path / "kernels", most_nbytes=100 << 10) for _ in range(2)]
    abandoned = caches[0].folder / f".k.{'0' * 16}"
    for number in range(5):
        is_last = number == 4  # 5 KiB are 5 %
        caches[number % 2].keep(f"k{number}", bytes(1000))
        abandoned.touch()
        os.utime(abandoned, (0, 0))
        caches[number % 2].trim()
        assert abandoned.exists() != is_last
    abandoned.touch()
    os.utime(abandoned, (0, 0))
    caches[0].trim()
    assert abandoned.exists()
    caches[0].clear()
    assert list(tmp_path.rglob("*")) == [caches[0].folder]


def ends_itself(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_compiler_process_that_is_killed_is_said(monkeypatch):
    monkeypatch.setattr(kernel_compiler, "_WORTH_PROCESSES", 0)
    monkeypatch.setattr(kernel_compiler, "write_object", ends_itself)
    with pytest.raises(CompilerError, match="was ended, most likely because memory ran out"):
        flexcomp.build(network(), cache=False)


def test_what_goes_wrong_in_a_process_is_raised(monkeypatch):
    def fails(*_):
        raise ValueError("no such instruction")

    monkeypatch.setattr(kernel_compiler, "_WORTH_PROCESSES", 0)
    monkeypatch.setattr(kernel_compiler, "write_object", fails)
    with pytest.raises(RuntimeError, match="ValueError: no such instruction"):
        flexcomp.build(network(), cache=False)


def test_processes_do_each_job_once_in_order(tmp_path):
    jobs = {f"job{number}": partial(Path.write_text, data=str(number)) for number in range(100)}
    processes = workers.Workers(jobs, 2)
    try:
        assert sorted(processes.results()) == sorted((name, name[3:].encode()) for name in jobs)
        assert not processes.pending
    finally:
        processes.close()


def waits(begun, path):
    (path.parent / f"left-by-{path.name}").touch()
    os.write(begun, b".")
    time.sleep(60)


def test_processes_that_are_ended_while_they_compile_leave_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen, begun = os.pipe()
    processes = workers.Workers({name: partial(waits, begun) for name in "ab"}, 2)
    os.close(begun)
    assert os.read(seen, 1) + os.read(seen, 1) == b".."
    assert len(list(tmp_path.glob("*/left-by-*"))) == 2
    processes.close()
    assert os.read(seen, 1) == b""  # nobody holds its other end
    os.close(seen)
    assert list(tmp_path.iterdir()) == []


def test_compiling_leaves_nothing_where_temporary_files_lie(tmp_path, monkeypatch):
    """Objects are written where the processes' other files are, however the build ends."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen, begun = os.pipe()

    class Slow:
        def write_to_file(self, path):
            Path(path).touch()
            waits(begun, Path(path))

    monkeypatch.setattr(machine_code, "compile_module", lambda kernels, target: Slow())
    empty = tirx.PrimFunc([], tirx.Evaluate(0))
    processes = workers.Workers({name: partial(machine_code.write_object, name, empty, None) for name in "ab"}, 2)
    os.close(begun)
    assert os.read(seen, 1) + os.read(seen, 1) == b".."
    processes.close()
    os.close(seen)
    assert list(tmp_path.iterdir()) == []


def test_a_system_without_room_for_processes_says_so(monkeypatch):
    forks = iter([None])

    def refuse():
        next(forks)
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(workers.os, "fork", refuse)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(CompilerError, match="refuses processes that compile kernels: Resource temporarily"):
        workers.Workers({name: lambda path: None for name in "ab"}, 2)
    assert len(os.listdir("/proc/self/fd")) == before and not machine_code.COMPILING.locked()


def test_processes_end_with_the_one_that_builds(tmp_path):
    """Whatever it dies of."""
    seen, begun = os.pipe()
    build = os.fork()
    if build == 0:
        try:
            os.close(seen)
            started = workers.Workers({name: partial(waits, begun) for name in "ab"}, 2)
            os.close(begun)
            time.sleep(60)
            started.close()
        finally:
            os._exit(1)
    os.close(begun)
    assert os.read(seen, 1) + os.read(seen, 1) == b".."
    os.kill(build, signal.SIGKILL)
    os.waitpid(build, 0)
    assert os.read(seen, 1) == b""
    os.close(seen)


def test_what_workers_started_ends_with_them(tmp_path):
    """A compiler that another program is, and its temporary files."""
    started = tmp_path / "started"

    def job(path):
        with tempfile.TemporaryDirectory() as folder:
            sleeper = subprocess.Popen(["sleep", "600"])
            started.with_suffix(".part").write_text(f"{sleeper.pid} {folder}")
            started.with_suffix(".part").replace(started)
            sleeper.wait()

    processes = workers.Workers({"kernel": job}, 1)
    while not started.exists():
        time.sleep(0.01)
    process, folder = started.read_text().split()
    processes.close()
    assert not Path(folder).exists()
    for _ in range(500):
        if not Path(f"/proc/{process}").exists() or "Z" in Path(f"/proc/{process}/stat").read_text().split()[2]:
            return
        time.sleep(0.01)
    pytest.fail("a process of a worker lives on")
