"""Checks of a library that the dynamic loader would report misleadingly, or crash on."""

from __future__ import annotations

import os
import platform
import stat
import struct
from pathlib import Path

from flexcomp.errors import ArtifactError, TargetError

_PT_LOAD = 1  # a part of an ELF file that is mapped
_ELF_MACHINES = {3: "i686", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}


def check_elf(path: Path) -> None:
    """Refuse a file that the dynamic loader would report misleadingly (another machine) or crash on (a file cut short).

    `runtime_ext/library/check_elf.cc` does the same where there is no Python.
    """
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:  # a pipe would wait
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ArtifactError(f"{path} is not a shared library, nor a file")
            nbytes = status.st_size
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)  # all at once, not page by page
            head = file.read(64).ljust(64, b"\0")
            if head[:4] != b"\x7fELF":
                raise ArtifactError(f"{path} is not a shared library")
            machine = _ELF_MACHINES.get(struct.unpack_from("<H", head, 18)[0], "another machine")
            here = platform.machine()
            if here in _ELF_MACHINES.values() and machine != here:
                raise TargetError(f"{path} was compiled for {machine}, this machine is {here}")
            entry = struct.Struct("<I4xQ16xQ" if head[4] == 2 else "<II8xI")  # of a segment: kind, offset, size
            segments_at, sections_at, nbytes_each, segments, section, sections = struct.unpack_from(
                "<32xQQ6xHHHH" if head[4] == 2 else "<28xII6xHHHH", head
            )
            # Linkers write the table of sections at the end; tools that remove the table leave the segments.
            ends = [64 if head[4] == 2 else 52, segments_at + nbytes_each * segments, sections_at + section * sections]
            if max(ends) <= nbytes and nbytes_each >= entry.size:
                file.seek(segments_at)
                table = file.read(nbytes_each * segments)
                for at in range(0, len(table), nbytes_each):
                    kind, offset, size = entry.unpack_from(table, at)
                    ends += [offset + size] if kind == _PT_LOAD else []
    except OSError as error:
        raise ArtifactError(f"cannot open {path}: {error.strerror}") from None
    if max(ends) > nbytes:
        raise ArtifactError(f"{path} is cut short: {nbytes} bytes instead of {max(ends)}")
