"""What a library says of itself without being loaded: that it is a compiled network, and for which machine."""

from __future__ import annotations

import mmap
from pathlib import Path

from flexcomp.errors import ArtifactError

ELF_MACHINES = {183: "aarch64", 62: "x86_64"}  # e_machine of 64-bit ELF files
_KIND = b"flexcomp.program"


def require_library(library: Path, weights: Path | None = None) -> str:
    """The machine of a library that has its weights beside it, or as `weights`. Raises ArtifactError for any other."""
    machine = machine_of(library)
    weights = weights or library.with_suffix(".weights")
    if not weights.is_file():
        raise ArtifactError(f"the weights file {weights} is missing: {library.name} cannot run without it")
    return machine


def machine_of(library: Path) -> str:
    """The machine that a compiled network was built for. Raises ArtifactError for other files."""
    if not library.is_file():
        raise ArtifactError(f"there is no library {library}")
    with open(library, "rb") as file:
        header = file.read(20)
    if len(header) < 20 or header[:5] != b"\x7fELF\x02":
        raise ArtifactError(f"{library} is no shared library of a 64-bit Linux")
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data.find(_KIND) < 0:
            raise ArtifactError(f"{library} is a library, but not a compiled network")
    number = int.from_bytes(header[18:20], "little")
    if number not in ELF_MACHINES:
        raise ArtifactError(f"{library} is for a machine (ELF number {number}) that flexcomp has no runner for")
    return ELF_MACHINES[number]
