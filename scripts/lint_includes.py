"""Fails where a folder of the C++ sources includes a header of a folder above: the folders stand here from the bottom up."""

from __future__ import annotations

import re
import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "runtime_ext"
FOLDERS = (
    "src/base", "src/program", "src/threads", "src/memory", "src/storage", "src/kernels", "src/cuda", "src/session",
    "pool", "library", "watch", "decoder", "api",
)  # fmt: skip
# Folders outside of this order, and the folders that each may include besides itself.
APART = {"include": (), "cmake": (), "planner": (), "json": (), "runner": (), "server": ("src/base",)}
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def header(name: str, source: Path) -> Path | None:
    """The included file; None if no folder that compilers search has it."""
    folders = (source.parent, SOURCES / "src", SOURCES)
    return next(((folder / name).resolve() for folder in folders if (folder / name).is_file()), None)


def folder_of(path: Path) -> str:
    """The folder of a source that stands in `FOLDERS` or `APART`."""
    return path.parent.relative_to(SOURCES).as_posix()


def faults() -> list[str]:
    """A line for each include that the order forbids, and each source in a folder that is not listed."""
    found = []
    for source in sorted([*SOURCES.rglob("*.cc"), *SOURCES.rglob("*.h")]):
        own = folder_of(source)
        if own not in FOLDERS and own not in APART:
            found.append(f"{source.relative_to(SOURCES)}: its folder is in no list of {Path(__file__).name}")
            continue
        below = FOLDERS[: FOLDERS.index(own) + 1] if own in FOLDERS else (*APART[own], own)
        for name in INCLUDE.findall(source.read_text()):
            included = header(name, source)
            if included is None or folder_of(included) not in below:
                found.append(f'{source.relative_to(SOURCES)} includes "{name}", which is not in {", ".join(below)}')
    return found


if __name__ == "__main__":
    lines = faults()
    print("\n".join(lines) if lines else "includes: kept", file=sys.stderr if lines else sys.stdout)
    sys.exit(bool(lines))
