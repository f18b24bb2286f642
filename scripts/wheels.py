"""Makes the wheels flexcomp-runtime and flexcomp, for this machine's own use or for publishing.

    python -m scripts.wheels OUTPUT [--here]

Published wheels are compiled by zig (`pip install ziglang`) for glibc 2.28 or later, on x86-64 and on aarch64. With --here this
machine's C++ compiler makes them, for this machine. Run by an interpreter that has what pyproject.toml names under
`build-system.requires`.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts.split_wheel import split_wheel

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Print the names of the wheels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--here", action="store_true", help="for this machine, by this machine's C++ compiler")
    chosen = parser.parse_args()
    chosen.output.mkdir(parents=True, exist_ok=True)
    print(*make(chosen.output, f"linux_{platform.machine()}"), sep="\n")


def make(output: Path, tag: str, settings: Sequence[str] = ()) -> tuple[Path, Path]:
    """Compile with scikit-build-core's `settings`; returns the wheels of the runtime and of the compiler."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
        options = [f"--config-settings={setting}" for setting in settings]
        subprocess.run([*command, "--no-build-isolation", *options, "--wheel-dir", scratch, str(ROOT)], check=True)
        (complete,) = Path(scratch).glob("flexcomp-*.whl")
        return split_wheel(complete, output, tag)


if __name__ == "__main__":
    main()
