"""A few seconds of `python -m tests.sanitize.everything`."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.sanitize import everything


def why_not(folder) -> str | None:
    """Why programs with ThreadSanitizer cannot be run here, if so."""
    if shutil.which("setarch") is None:
        return "there is no setarch, and ThreadSanitizer wants addresses that are not random"
    source, program = folder / "nothing.cc", folder / "nothing"
    source.write_text("int main() { return 0; }\n")
    for command in (["g++", "-fsanitize=thread", source, "-o", program], ["setarch", "-R", program]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"{command[0]}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}"
    return None


@pytest.mark.parametrize(("pool", "seed", "kinds"), [(False, 3, 7), (True, 2, 5), (True, 3, 5)])
def test_no_thread_races_with_another(tmp_path, pool, seed, kinds):
    """Of sessions, of a pool with one lane, and with two."""
    if reason := why_not(tmp_path):
        pytest.skip(reason)
    done = everything.run(tmp_path, seconds=4, seed=seed, pool=pool)
    assert done.returncode == 0 and not done.stderr, done.stderr[:6000]
    counts = {name: int(count) for name, count in (line.split(": ") for line in done.stdout.splitlines())}
    assert len(counts) == kinds and min(counts.values()) > 0, counts
