"""Address space that is too small for a larger arena."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from tests.runtime import tiny as builder

ARENAS = (8 << 20, 64 << 20, 96 << 20)  # far apart, so that what else the process maps does not matter
SETUP = """
    import resource, threading
    import numpy as np
    import tvm_ffi
    import flexcomp
    def limit(nbytes):
        '''Let the process map so many bytes more.'''
        mapped = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (nbytes and mapped + nbytes or -1, -1))
    def right():
        np.testing.assert_allclose(session(data["x"]), data["y"], rtol=1e-4, atol=1e-5)
    def refused():
        try:
            session.set_budget("all")
        except flexcomp.BudgetError as error:
            assert "cannot map an arena of 100663296 bytes: Cannot allocate memory" in str(error), error
        else:
            raise AssertionError("it was not refused")
    def rung():
        return session.stats()["rung"]
    data = np.load("data.npz")
    session = flexcomp.load("roomy.so", "min", threads=2, read_bandwidth=20e6)  # an inference takes 80 ms
    small, middle, large = (rung.budget_bytes for rung in session.ladder)
    right()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, x):
    def roomier(program):
        rungs = [
            dataclasses.replace(rung, arena=arena, budget=arena)
            for rung, arena in zip(program.rungs, ARENAS, strict=True)
        ]
        return dataclasses.replace(program, rungs=tuple(rungs))

    folder = tmp_path_factory.mktemp("roomy")
    network = builder.export(folder / "roomy.so", "roomy_", plan=roomier)
    np.savez(folder / "data.npz", x=x, y=network.reference(x))
    return folder


def run(folder, script):
    command = [sys.executable, "-c", textwrap.dedent(SETUP) + textwrap.dedent(script)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_growth_that_cannot_be_mapped_leaves_the_session_as_it_was(folder):
    run(
        folder,
        """
        limit(32 << 20)
        for _ in range(3):
            refused()
            assert rung() == 0 and session.budget == small
            right()
        limit(0)
        assert session.set_budget("all").budget_bytes == large and rung() == 2
        right()
        """,
    )


def test_a_larger_arena_takes_the_place_of_the_smaller_where_both_have_no_room(folder):
    run(
        folder,
        """
        session.set_budget(middle)
        right()
        limit(48 << 20)
        assert session.set_budget("all").budget_bytes == large and rung() == 2
        right()
        """,
    )


def test_shrinking_maps_nothing(folder):
    run(
        folder,
        """
        session.set_budget("all")
        right()
        limit(0)
        resource.setrlimit(resource.RLIMIT_AS, (256 << 20, -1))  # less than there is: nothing can be mapped
        for budget, number in ((middle, 1), (small, 0)):
            assert session.set_budget(budget).budget_bytes == budget and rung() == number
            right()
        """,
    )


@pytest.mark.parametrize(("more", "then"), [("200 << 20", 2), ("48 << 20", 2), ("16 << 20", 1)])
def test_growing_during_an_inference(folder, more, then):
    """Beside the arena in use, else in its place when the inference is over, else not at all."""
    run(
        folder,
        f"""
        session.set_budget(middle)
        started, switched = threading.Event(), threading.Event()
        def fill(*places):
            started.set()
            switched.wait()
        run_in_place = session._opened.get_function("run_in_place")
        worker = threading.Thread(target=lambda: run_in_place(tvm_ffi.convert(fill), None))
        worker.start()
        limit({more})
        started.wait()
        assert session.set_budget("all").budget_bytes == large and rung() == 1
        switched.set()
        worker.join()
        assert rung() == {then}
        right()
        limit(0)
        session.set_budget("all")
        right()
        assert rung() == 2
        """,
    )
