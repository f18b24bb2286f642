"""A hash of inputs, in twelve letters."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_ENDINGS = (".py", ".cc", ".h", ".c")


def digest(sources: Sequence[str], root: Path, *more: str) -> str:
    """Of the source files in folders of `root`, or files there, and of `more`."""
    return hashlib.sha256("\0".join((_of_files(tuple(sources), root), *more)).encode()).hexdigest()[:12]


@cache
def _of_files(sources: tuple[str, ...], root: Path) -> str:
    found = hashlib.sha256()
    for source in sources:
        place = root / source
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.suffix in _ENDINGS:
                found.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return found.hexdigest()
