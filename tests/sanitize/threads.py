"""Whether programs with ThreadSanitizer can be run here."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def why_not(folder: Path) -> str | None:
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
