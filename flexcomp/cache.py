"""Object files of kernels that were compiled before, in a folder that all builds of a user share.

An entry is a file KEY.o: a checksum, then the object. It appears by renaming, so that readers and other writers see all of it
or nothing; what is torn, damaged or foreign does not have its checksum, and is compiled again. The folder is
kept about below a bound: what was not used for longest goes. Looking through it takes longer than a small build, so that is done
when enough was added since the last time: a file beside the folder, to whose end all write, is as long as that is many KiB.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path

MOST_NBYTES = 512 << 20
_KEPT = 0.75  # of these, where entries are removed
_ADDED = 0.05  # of these, before the folder is looked through again
_ENTRY = re.compile(r"[\w.]+\.o")
_UNFINISHED = re.compile(r"\.[\w.]+\.[0-9a-f]{16}")
_ABANDONED_S = 3600.0  # after which an unfinished file has nobody who will finish it
_DIGEST_NBYTES = 32


def cache_root() -> Path:
    """The folder of all that is compiled or fetched once: FLEXCOMP_CACHE, or `flexcomp` in the user's folder for caches."""
    if given := os.environ.get("FLEXCOMP_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flexcomp"


class KernelCache:
    """The entries in a folder, which is made when there is something to keep."""

    def __init__(self, folder: str | os.PathLike[str] | None = None, most_nbytes: int = MOST_NBYTES) -> None:
        self.folder = Path(folder) if folder is not None else cache_root() / "kernels"
        self._most_nbytes = most_nbytes
        self._added = self.folder.with_name(f"{self.folder.name}-added")

    def find(self, key: str) -> bytes | None:
        """The object with this key, or None; that it was used is noted."""
        path = self._path(key)
        try:
            raw = path.read_bytes()
        except OSError:
            return None
        digest, code = raw[:_DIGEST_NBYTES], raw[_DIGEST_NBYTES:]
        if digest != _digest(key, code):
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):  # somebody else's folder may be read
            os.utime(path)
        return code

    def keep(self, key: str, code: bytes) -> None:
        """Add an object. Where it cannot be written it is not: a cache saves time and nothing else."""
        scratch = self.folder / f".{key}.{secrets.token_hex(8)}"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            scratch.write_bytes(_digest(key, code) + code)
            scratch.replace(self._path(key))
            with self._added.open("ab") as added:
                added.write(bytes(-(-len(code) // 1024)))
        except OSError:
            with suppress(OSError):
                scratch.unlink()

    def trim(self) -> None:
        """Remove what was not used for longest, and what killed writers left, until the folder is well below its bound.

        Not before a part of the bound was added since that was done last.
        """
        try:
            if self._added.stat().st_size * 1024 < _ADDED * self._most_nbytes:
                return
            self._added.unlink()
        except OSError:  # nothing was added, or another process looks through it
            return
        entries = []
        for path, status in self._files():
            if _UNFINISHED.fullmatch(path.name) and status.st_mtime < time.time() - _ABANDONED_S:
                _remove(path)
            elif _ENTRY.fullmatch(path.name):
                entries.append((status.st_mtime, status.st_size, path))
        nbytes = sum(size for _, size, _ in entries)
        if nbytes <= self._most_nbytes:
            return
        for _, size, path in sorted(entries):
            if nbytes <= _KEPT * self._most_nbytes:
                break
            _remove(path)
            nbytes -= size

    def size(self) -> tuple[int, int]:
        """How many entries there are, and their bytes."""
        sizes = [status.st_size for path, status in self._files() if _ENTRY.fullmatch(path.name)]
        return len(sizes), sum(sizes)

    def clear(self) -> tuple[int, int]:
        """Remove all entries; how many they were, and their bytes. Other files in the folder stay."""
        count = nbytes = 0
        for path, status in self._files():
            if _ENTRY.fullmatch(path.name) or _UNFINISHED.fullmatch(path.name):
                _remove(path)
                count, nbytes = count + 1, nbytes + status.st_size
        _remove(self._added)
        return count, nbytes

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.o"

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        found = []
        with suppress(OSError):
            for path in self.folder.iterdir():
                with suppress(OSError):  # another process trims, too
                    found.append((path, path.lstat()))
        return found


def _digest(key: str, code: bytes) -> bytes:
    """Of an entry: the key is in it, so that one file in another's place is not taken for it."""
    return hashlib.sha256(key.encode() + b"\0" + code).digest()


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
