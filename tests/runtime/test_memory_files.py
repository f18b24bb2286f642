"""Weights in a file system in memory, where reads are copies that a waiting step takes part in."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest

import flexcomp
from flexcomp.device.copies import cache_of_copies
from flexcomp.errors import StorageError
from tests.runtime import hooks, native
from tests.runtime.tiny import close_to


@pytest.fixture
def in_memory(tiny):
    """The tiny network's weights in a tmpfs."""
    if not os.access("/dev/shm", os.W_OK) or not cache_of_copies("/dev/shm"):
        pytest.skip("/dev/shm is no tmpfs")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield shutil.copy(tiny.weights, folder)


def test_helpers_copy_every_part_once(tmp_path):
    """Thousands of copies with two helpers; the program checks them."""
    done = native.run(native.compile(tmp_path, "shared_copy.cc"))
    helped, calls = map(int, done.stdout.split(" of "))
    assert 0 < helped < calls


def test_outputs_are_right(tiny, in_memory, x, budgets):
    for budget in budgets:
        with flexcomp.load(tiny.library, budget, weights=in_memory) as session:
            for _ in range(20):
                close_to(session(x), tiny.reference(x))


def test_a_read_error_leaves_the_session_usable(tiny, in_memory, x, budgets):
    for nth in range(1, len(tiny.program.rungs[0].loads) + 1):
        with hooks.load(tiny.library, budgets[0], weights=in_memory, fail_read_at=nth) as session:
            with pytest.raises(StorageError, match="Input/output error"):
                for _ in range(2):
                    session(x)
            close_to(session(x), tiny.reference(x))


def test_a_file_cut_short_is_told(tiny, in_memory, x, budgets):
    with flexcomp.load(tiny.library, budgets[0], weights=in_memory) as session:
        close_to(session(x), tiny.reference(x))
        os.truncate(in_memory, os.path.getsize(in_memory) // 2)
        with pytest.raises(StorageError, match="was changed while the session had it open: open the model again"):
            session(x)
