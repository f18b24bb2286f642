"""Sessions in a process: beside each other, beside TVM, forked, many, starved."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
import textwrap
import threading

import numpy as np
import tvm_ffi
from tiny import close_to

import flexcomp
from flexcomp.session import read_info


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
        assert not {{"tvm", "onnx", "typer", "rich", "matplotlib", "flexcomp.build"}} & set(sys.modules)
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


def test_the_runtime_stays_its_own_beside_tvm(tiny, x):
    """In a process with TVM, opening a library gives it TVM's backend; sessions take theirs back."""
    import tvm  # noqa: F401

    backend = ctypes.c_void_p.in_dll(ctypes.CDLL(str(tiny.library)), "__TVMBackendParallelLaunch")
    with flexcomp.load(tiny.library, threads=2) as session:
        ours = backend.value
        tvm_ffi.load_module(str(tiny.library))
        assert backend.value != ours
        close_to(session(x), tiny.reference(x))
        assert backend.value == ours


def test_a_forked_process_is_told(tiny):
    """Its copy of the session has no threads: waiting for them would never end."""
    script = f"""
        import gc, os, signal
        import numpy as np
        import flexcomp
        session = flexcomp.load({str(tiny.library)!r}, threads=2)
        x = np.zeros(256, "f4")
        session(x)
        if child := os.fork():
            assert os.waitpid(child, 0)[1] == 0
            session(x)
            os._exit(0)
        signal.alarm(20)
        try:
            session(x)
        except flexcomp.ExecutionError as error:
            assert "forked" in str(error)
        with flexcomp.load({str(tiny.library)!r}, threads=2) as own:
            del session
            gc.collect()
            own(x)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_sessions_open_and_close_often(tiny, x):
    """No threads or descriptors stay behind, used or not."""
    from pathlib import Path

    count = lambda what: len(list(Path(f"/proc/self/{what}").iterdir()))  # noqa: E731
    flexcomp.load(tiny.library, "min").close()
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
