"""Who waits for weights that are being prepared prepares a part of them; who waits for nothing does not."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from tests.runtime import native
from tests.sanitize.threads import why_not

LINE = re.compile(r"(\w+): (\d+) helped, (\d+) loaded, (\d+) once, (\d) helping, (\d) preparing, (\d+) bytes: (.*)")
PARTS = 16


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return native.compile(tmp_path_factory.mktemp("helping"), "loader_helps.cc", native.LOADER)


def inferences(text: str) -> dict[str, tuple]:
    found = {name: (*map(int, numbers), end) for name, *numbers, end in LINE.findall(text)}
    assert len(found) == text.count("\n") == 5
    return found


@pytest.mark.parametrize("cores", ["all", "one"])
def test_who_waits_helps(program, cores):
    """Though it slept when preparing began. Errors are told, and what is given up is done again."""
    prefix = ["taskset", "-c", str(min(os.sched_getaffinity(0)))] if cores == "one" else []
    done = subprocess.run([*prefix, str(program)], capture_output=True, text=True, check=True, timeout=60)
    found = inferences(done.stdout)
    for name in ("waiting", "again"):
        helped, loaded, once, *flags, nbytes, end = found[name]
        assert helped > 0 and loaded > 0 and helped + loaded == once == PARTS
        assert flags == [1, 1] and nbytes == PARTS * 64 and end == "complete"
    assert found["computing"] == (0, PARTS, PARTS, 0, 1, PARTS * 64, "complete")
    assert found["failing"][-1] == "preparing weights failed (load 0): as it should"
    helped, loaded, once, *_, end = found["interrupted"]
    assert end == "interrupted" and helped + loaded == once < PARTS


def test_a_task_less_leaves_a_core_to_the_loader(tmp_path):
    parts = ("threads/thread_pool.cc", "threads/backend.cc", "threads/workspace.cc", "threads/cpu_set.cc")
    native.run(native.compile(tmp_path, "thread_pool.cc", parts))


def test_no_helper_races_with_the_loader(tmp_path):
    if reason := why_not(tmp_path):
        pytest.skip(reason)
    options = ["-O1", "-g1", "-fsanitize=thread", "-Wno-tsan"]
    helping = native.compile(tmp_path, "loader_helps.cc", native.LOADER, options)
    # A race is seen in any round in which somebody helps, whatever came first: test_memory_files.py has the thousands of rounds.
    copying = native.compile(tmp_path, "shared_copy.cc", options=options)
    for program in ([helping], [copying, "300"]):
        done = subprocess.run(["setarch", "-R", *program], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0 and not done.stderr, done.stderr[:4000]
