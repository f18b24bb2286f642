"""Fails where a room of the C++ sources includes a header of a room above it: the rooms stand here from the bottom up."""

from __future__ import annotations

import re
import sys
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "runtime_ext"
ROOMS = ("src/base", "src/program", "src/threads", "src/memory", "src/storage", "src/kernels", "src/cuda", "src/session", "pool",
         "library", "watch", "api", "runner")
# The rooms that each may include besides itself.
APART = {"include": (), "cmake": (), "planner": (), "json": (), "server": ("src/base",)}
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def header(name: str, source: Path) -> Path | None:
    """The included file; None if no folder that compilers search has it."""
    folders = (source.parent, SOURCES / "src", SOURCES)
    return next(((folder / name).resolve() for folder in folders if (folder / name).is_file()), None)


def room(path: Path) -> str:
    """The folder of a source that stands in `ROOMS` or `APART`."""
    return path.parent.relative_to(SOURCES).as_posix()


def faults() -> list[str]:
    """A line for each include that the order forbids, and each source that lies in no room."""
    found = []
    for source in sorted([*SOURCES.rglob("*.cc"), *SOURCES.rglob("*.h")]):
        own = room(source)
        if own not in ROOMS and own not in APART:
            found.append(f"{source.relative_to(SOURCES)}: its folder stands in no list of {Path(__file__).name}")
            continue
        below = ROOMS[: ROOMS.index(own) + 1] if own in ROOMS else (*APART[own], own)
        for name in INCLUDE.findall(source.read_text()):
            included = header(name, source)
            if included is None or room(included) not in below:
                found.append(f'{source.relative_to(SOURCES)} includes "{name}", which is not in {", ".join(below)}')
    return found


if __name__ == "__main__":
    lines = faults()
    print("\n".join(lines) if lines else "includes: kept", file=sys.stderr if lines else sys.stdout)
    sys.exit(bool(lines))
