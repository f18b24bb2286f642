"""Weights that are written to while a session has them open."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import flexcomp
from flexcomp.device.copies import cache_of_copies
from flexcomp.errors import ArtifactError, StorageError

CHANGED = "was changed while the session had it open: open the model again"


@pytest.fixture(params=["disk", "page cache", "memory"])
def opened(request, copy):
    """Opens the copy with its weights on a disk or in a tmpfs, and names the weights file."""
    library, weights = copy
    options = {"direct": request.param != "page cache"}
    if request.param != "memory":
        yield (lambda **more: flexcomp.load(library, weights=weights, **options, **more)), weights
        return
    if not os.access("/dev/shm", os.W_OK) or not cache_of_copies("/dev/shm"):
        pytest.skip("/dev/shm is no tmpfs")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        weights = Path(shutil.copy(weights, folder))
        yield (lambda **more: flexcomp.load(library, weights=weights, **options, **more)), weights


def overwrite(tiny, weights, *, keep_time=False):
    """Other values for all matrices, in place."""
    status = weights.stat()
    with open(weights, "r+b") as file:
        file.seek(tiny.digest.header_nbytes)
        file.write(np.full(tiny.matrices.size, 0.5, "f4").tobytes())
    if keep_time:
        os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("rung", [0, 1])
def test_a_change_is_seen_by_every_inference_that_reads(tiny, opened, x, budgets, rung):
    load, weights = opened
    with load(budget=budgets[rung]) as session:
        expected = session(x)
        overwrite(tiny, weights)
        for _ in range(3):
            with pytest.raises(StorageError, match=CHANGED):
                session(x)
    with load(budget=budgets[rung]) as session:  # there is no telling that from a network of its own, without `verify`
        assert not np.array_equal(session(x), expected)
    with pytest.raises(ArtifactError, match="is damaged"):
        load(budget=budgets[rung], verify=True)


def test_a_change_in_the_middle_of_an_inference_is_seen(tiny, copy, x):
    library, weights = copy
    with flexcomp.load(library, "min", weights=weights, read_bandwidth=20e6) as session:
        worker = threading.Timer(0.03, lambda: overwrite(tiny, weights))
        worker.start()
        with pytest.raises(StorageError, match=CHANGED):  # its reads take 80 ms
            session(x)
        worker.join()


def test_what_is_resident_stays_right(tiny, opened, x):
    load, weights = opened
    with load(budget="all") as session:
        expected = session(x)
        overwrite(tiny, weights)
        for _ in range(3):
            np.testing.assert_array_equal(session(x), expected)
        session.set_budget("min")
        with pytest.raises(StorageError, match=CHANGED):
            session(x)


def test_a_change_before_all_is_resident_is_seen(tiny, opened, x):
    load, weights = opened
    with load(budget="all") as session:
        overwrite(tiny, weights)
        with pytest.raises(StorageError, match=CHANGED):
            session(x)


def test_another_file_of_the_same_name_changes_nothing(tiny, other, opened, x, budgets):
    load, weights = opened
    with load(budget=budgets[0]) as session:
        expected = session(x)
        os.link(weights, weights.with_suffix(".link"))
        np.testing.assert_array_equal(session(x), expected)
        weights.chmod(0o600)
        shutil.copy(other.weights, weights.with_suffix(".new"))
        os.replace(weights.with_suffix(".new"), weights)
        np.testing.assert_array_equal(session(x), expected)
        weights.with_suffix(".link").unlink()
        weights.unlink()
        np.testing.assert_array_equal(session(x), expected)


@pytest.mark.parametrize("rung", [0, 1])
def test_verified_weights_are_verified_when_they_are_read(tiny, opened, x, budgets, rung):
    """Also where the time of the change says nothing."""
    load, weights = opened
    with load(budget=budgets[rung], verify=True) as session:
        expected = session(x)
        np.testing.assert_array_equal(session(x), expected)
        raw = weights.read_bytes()
        overwrite(tiny, weights, keep_time=True)
        with pytest.raises(StorageError, match=r"no longer holds what was verified .* \(load \d+\): open the model again"):
            for _ in range(2):  # what was read ahead was read before
                session(x)
        status = weights.stat()
        weights.write_bytes(raw)
        os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
        np.testing.assert_array_equal(session(x), expected)


def test_every_page_is_verified(tiny, copy, x, budgets):
    library, weights = copy
    raw = weights.read_bytes()
    status = weights.stat()
    with flexcomp.load(library, budgets[0], weights=weights, verify=True) as session:
        session(x)
        for at in range(tiny.digest.header_nbytes + 17, len(raw), 64 * 1024):
            damaged = bytearray(raw)
            damaged[at] ^= 1
            for data, context in [(damaged, pytest.raises(StorageError, match="no longer holds")), (raw, None)]:
                with open(weights, "r+b") as file:
                    file.write(data)
                os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
                if context is None:
                    session(x)
                    continue
                with context:
                    for _ in range(2):
                        session(x)


def test_a_file_that_was_just_written_is_watched_all_the_same(tiny, opened, x):
    """Two changes within one tick of the file system's clock have the same time: opening waits for the next tick."""
    load, weights = opened
    raw = weights.read_bytes()
    for _ in range(20):
        weights.write_bytes(raw)
        with load(budget="min") as session:
            overwrite(tiny, weights)
            with pytest.raises(StorageError, match=CHANGED):
                session(x)


def test_file_systems_that_count_seconds_are_waited_for(copy):
    library, weights = copy
    written = int(time.time())
    os.utime(weights, (written, written))
    flexcomp.load(library, weights=weights).close()
    assert time.time() >= written + 2
