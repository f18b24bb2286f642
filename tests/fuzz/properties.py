"""Property tests with new examples, a part of `make fuzz`: rounds of all of them, each with the next seed and in another order.

`pytest TEST --hypothesis-profile=fuzz --hypothesis-seed=SEED` draws the same examples again; a failing one becomes an `@example`.
"""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
_LONGEST = 60.0  # seconds until a test ends that was interrupted


def files() -> list[str]:
    """The files with property tests."""
    return sorted(str(path) for path in (ROOT / "tests").rglob("test_*.py") if "hypothesis" in path.read_text())


def run(seconds: float, seed: int) -> None:
    """Draw for so long, from `seed` on; exits with the report of the first failure."""
    end, passed, examples, drawn = time.monotonic() + seconds, 0, 0, seed
    while time.monotonic() < end:
        output, over = _round(drawn, end - time.monotonic())
        passed += sum(int(count) for count in re.findall(r"(\d+) passed", output))
        examples += sum(int(count) for count in re.findall(r"- (\d+) passing", output))
        if not over:
            break
        drawn += 1
    print(f"properties: {passed} tests, {examples:,} examples, seeds {seed} to {drawn}, 0 failures", flush=True)


def _round(seed: int, seconds: float) -> tuple[str, bool]:
    """One round: what pytest said, and whether it came to its end in time."""
    chosen = files()
    random.Random(seed).shuffle(chosen)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "hypothesis", "-p", "no:cacheprovider", *chosen]
    command += ["--hypothesis-profile=fuzz", f"--hypothesis-seed={seed}", "--hypothesis-show-statistics"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            output, over = process.communicate(timeout=max(seconds, 0.0))[0], True
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                output, over = process.communicate(timeout=_LONGEST)[0], False
            except subprocess.TimeoutExpired:
                process.kill()
                output, over = process.communicate()[0], False
    # An interruption says nothing: TVM makes an error of its own of one that reaches a pass.
    if over and process.returncode:
        sys.exit(f"{output}\nseed {seed}: a property does not hold")
    return output, over
