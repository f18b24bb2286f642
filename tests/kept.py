"""What tests compile, made once: by one of pytest's workers, for all of them and for later runs of the same sources."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from flexcomp.cache import kept_file

_FOLDER = Path(__file__).parents[1] / ".cache" / "tests"  # until `make clean`


def made(name: str, of: Iterable[str | bytes | Path], make: Callable[[Path], object]) -> Path:
    """The file that `make` writes to a path that it is given; paths in `of` stand for what is in these files.

    Whoever wants another place or a changed file copies it.
    """
    digest = hashlib.sha256(name.encode())
    for one in of:
        data = one.read_bytes() if isinstance(one, Path) else one.encode() if isinstance(one, str) else one
        digest.update(b"%d:" % len(data) + data)
    folder = _FOLDER / digest.hexdigest()[:32]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def written(scratch: Path) -> Path:
        make(scratch / name)
        return scratch / name

    return kept_file(folder, name, written)


@cache
def compiler(command: str = "g++") -> str:
    """Which one it is."""
    return subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
