"""Sessions in a process: beside each other, beside TVM, forked, many, starved."""

from __future__ import annotations

import ctypes
import gc
import shutil
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
import tvm_ffi

import flexcomp
from flexcomp.runtime.library import read_info
from tests.runtime.tiny import close_to


def test_loading_needs_no_compiler(tiny, x, tmp_path):
    """A fresh process with nothing but tvm_ffi, numpy, and the two files."""
    np.savez(tmp_path / "data.npz", x=x, y=tiny.reference(x))
    script = f"""
        import sys, time
        import numpy as np
        start = time.perf_counter()
        import flexcomp
        session = flexcomp.load({str(tiny.library)!r}, "min")
        data = np.load({str(tmp_path / "data.npz")!r})
        np.testing.assert_allclose(session(data["x"]), data["y"], rtol=1e-4, atol=1e-5)
        assert not {{"tvm", "onnx", "typer", "rich", "matplotlib", "flexcomp.compiler.builder"}} & set(sys.modules)
        session.close()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, cwd=tmp_path)


def test_two_networks_and_several_sessions_in_one_process(tiny, other, x):
    sessions = [
        (net, flexcomp.load(net.library, budget, threads))
        for net in (tiny, other)
        for budget, threads in (("min", 1), (None, 2), ("min", 3))
    ]
    failures = []

    def use(net, session):
        try:
            for _ in range(10):
                close_to(session(x), net.reference(x))
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=use, args=pair) for pair in sessions]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for _, session in sessions:
        session.close()
    assert not failures


def test_a_library_that_was_replaced_is_loaded_anew(tiny, other, x, tmp_path):
    """As in a notebook: build, load, build again under the same name, load."""
    sessions = []
    for network in (tiny, other, tiny):
        for source, name in ((network.library, "net.so"), (network.weights, "net.weights")):
            shutil.copy(source, tmp_path / "fresh")
            (tmp_path / "fresh").replace(tmp_path / name)
        sessions.append(flexcomp.load(tmp_path / "net.so", threads=2))
        close_to(sessions[-1](x), network.reference(x))
    close_to(sessions[0](x), tiny.reference(x))


def test_a_library_that_is_replaced_while_it_is_loaded_is_loaded_again(tiny, other, x, tmp_path, monkeypatch):
    """The name that a file was found by may have loaded the file that took its place."""
    library = tmp_path / "net.so"

    def place(network):  # the same two files again and again
        for source, target in ((network.library, library), (network.weights, library.with_suffix(".weights"))):
            (tmp_path / "fresh").hardlink_to(source)
            (tmp_path / "fresh").replace(target)

    def replaced_at_the_last_moment(name):
        monkeypatch.undo()
        place(other)
        return tvm_ffi.load_module(name)

    place(tiny)
    monkeypatch.setattr(tvm_ffi, "load_module", replaced_at_the_last_moment)
    with flexcomp.load(library) as session:
        close_to(session(x), other.reference(x))
    place(tiny)
    with flexcomp.load(library) as session:
        close_to(session(x), tiny.reference(x))


def test_loading_a_network_again_takes_no_memory(tiny, x):
    """tvm_ffi keeps what it loads for as long as the process lives: a program is loaded once."""

    def growth_of(times):
        before = resident_bytes()
        for _ in range(times):
            read_info(tiny.library)
        return resident_bytes() - before

    growth_of(1000)  # the heap takes its size
    assert growth_of(1000) < 1 << 20


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_the_runtime_stays_its_own_beside_tvm(tiny, x, tmp_path):
    """Whoever opens a library in a process with TVM would give it TVM's backend, also while its kernels run."""
    exported = ctypes.CDLL(str(tiny.library))
    for pointer in ("ParallelLaunch", "AllocWorkspace", "FreeWorkspace"):
        with pytest.raises(ValueError, match="undefined symbol"):
            ctypes.c_void_p.in_dll(exported, f"__TVMBackend{pointer}")
    np.savez(tmp_path / "data.npz", x=x, y=tiny.reference(x))
    script = f"""
        import threading
        import numpy as np
        import tvm
        import flexcomp
        data, library = np.load({str(tmp_path / "data.npz")!r}), {str(tiny.library)!r}
        x, y, runs, stop = data["x"], data["y"], [], threading.Event()
        with flexcomp.load(library, threads=2) as session:
            def use():
                while not stop.is_set():
                    np.testing.assert_allclose(session(x), y, rtol=1e-4, atol=1e-5)
                    runs.append(1)
            user = threading.Thread(target=use)
            user.start()
            while len(runs) < 300 and user.is_alive():
                tvm.runtime.load_module(library)
                with flexcomp.load(library, "min", threads=1) as other:
                    np.testing.assert_allclose(other(x), y, rtol=1e-4, atol=1e-5)
            stop.set()
            user.join()
        assert len(runs) >= 300
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def forked(tiny, in_child, meanwhile=""):
    """Run a script that opens `session`, forks, and executes `in_child` in the child, `meanwhile` beside the fork."""
    script = f"""
        import gc, os, signal, threading, time
        import numpy as np
        import flexcomp
        library, x = {str(tiny.library)!r}, np.zeros(256, "f4")
        session = flexcomp.load(library, threads=2, trace=True, read_bandwidth=20e6)  # an inference takes 0.1 s
        session(x)
        session.set_budget("min")
    """
    script = textwrap.dedent(script) + textwrap.dedent(meanwhile)
    script += "if child := os.fork():\n    assert os.waitpid(child, 0)[1] == 0\n    session(x)\n    os._exit(0)\n"
    script += "signal.alarm(20)\n" + textwrap.dedent(in_child)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_forked_process_is_told(tiny):
    """Its copy of the session has no threads: waiting for them would never end."""
    forked(
        tiny,
        """
        calls = [lambda: session(x), lambda: session.set_budget(None), session.stats, session.trace,
                 session.resident_arena, session.read_rate]
        for call in calls:
            try:
                call()
            except flexcomp.ExecutionError as error:
                assert "forked" in str(error)
            else:
                raise AssertionError("no error")
        with flexcomp.load(library, threads=2) as own:
            session.close()
            del session, calls, call
            gc.collect()
            own(x)
        """,
    )


@pytest.mark.parametrize("busy_with", ["session(x)", "session.set_budget(None), session(x), session.set_budget('min')"])
def test_a_session_that_was_busy_at_the_fork_can_be_closed(tiny, busy_with):
    """Its locks are held for ever, by threads that are not there."""
    forked(
        tiny,
        """
        session.close()
        del session
        gc.collect()
        """,
        f"""
        beside = [threading.Thread(target=lambda: ({busy_with},)) for _ in range(2)]
        for thread in beside:
            thread.start()
        time.sleep(0.05)
        """,
    )


def test_forked_processes_hold_nothing_of_the_arena(tiny):
    """Else they would keep what the budget gives back, and on older systems catch what is read into it."""
    forked(
        tiny,
        """
        def arenas():
            text = open("/proc/self/maps").read()
            return [line for line in text.splitlines() if line.split()[0] in before]
        assert not arenas()
        """,
        """
        session.set_budget(None)
        session(x)
        nbytes = session.stats()["arena_bytes"]
        before = []
        for line in open("/proc/self/smaps"):
            words = line.split()
            if "-" in words[0]:
                at = words[0]
                first, end = (int(address, 16) for address in at.split("-"))
            if words[0] == "VmFlags:" and end - first == nbytes:
                assert "dc" in words, "the arena goes into forked processes"
                before.append(at)
        assert before
        """,
    )


def test_sessions_open_and_close_often(tiny, x):
    """No threads or descriptors stay behind, used or not."""
    from pathlib import Path

    count = lambda what: len(list(Path(f"/proc/self/{what}").iterdir()))  # noqa: E731
    flexcomp.load(tiny.library, "min").close()
    gc.collect()  # sessions that other tests left to it
    before = count("fd"), count("task")
    for i in range(100):
        session = flexcomp.load(tiny.library, "min", threads=3)
        if i % 2:
            session(x)
        if i % 3:
            session.close()
        del session
    assert (count("fd"), count("task")) == before


def test_too_many_threads_are_an_error(tiny, x):
    """A system that grants no more threads must not end the process."""
    script = f"""
        import resource
        import flexcomp
        with flexcomp.load({str(tiny.library)!r}) as session:
            pass
        limit = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (1 << 30)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))  # no room for the stacks
        try:
            flexcomp.load({str(tiny.library)!r}, threads=1000)
        except flexcomp.ExecutionError as error:
            assert "cannot start 1000 threads" in str(error), error
        else:
            assert False
        flexcomp.load({str(tiny.library)!r}, threads=2)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
