"""Seconds of `python -m tests.sanitize.everything`, which goes on for as long as one likes."""

from __future__ import annotations

import pytest

from tests.sanitize import everything
from tests.sanitize.threads import why_not


@pytest.mark.parametrize(("pool", "seed", "kinds"), [(False, 3, 8), (True, 2, 5), (True, 3, 5)])
def test_no_thread_races_with_another(tmp_path, pool, seed, kinds):
    """Of sessions, of a pool with one lane, and with two."""
    if reason := why_not(tmp_path):
        pytest.skip(reason)
    done = everything.run(tmp_path, seconds=2, seed=seed, pool=pool)
    assert done.returncode == 0 and not done.stderr, done.stderr[:6000]
    counts = {name: int(count) for name, count in (line.split(": ") for line in done.stdout.splitlines())}
    assert len(counts) == kinds and min(counts.values()) > 0, counts
