"""Files that builds keep for other builds of a user: machine code of kernels, and files from compilers and downloads.

All of it is linked or loaded, so a folder is used only where nobody else could have written: the folder and its parent
belong to this user (or to root) and are writable by no others, and so are files, which are opened without following links. Where
that is not so, or there is no such folder, a temporary one takes its place while the process lives, and that is said once.

An entry of kernels is a file KEY.o: a checksum, then the object. It appears by renaming, so that readers and other writers see
a whole entry or none; a torn or damaged entry fails its checksum, and is compiled again. The folder is
kept about below a bound: the least recently used entries go. A scan takes longer than a small build, so one is made
when enough was added since the last time: a file in the folder, to whose end all write, is as long as that is many KiB.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import hashlib
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flexcomp.files import beside, note_folder

_log = logging.getLogger(__name__)

MOST_NBYTES = 512 << 20
_KEPT = 0.75  # of these, where entries are removed
_ADDED = 0.05  # of these, before the folder is looked through again
_ADDED_NAME = "added"
_ENTRY = re.compile(r"[\w.]+\.o")
_UNFINISHED = re.compile(r"\.[\w.]+\.[0-9a-f]{16}")
_ABANDONED_S = 3600.0  # after which an unfinished file counts as abandoned
_DIGEST_NBYTES = 32
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class UntrustedError(OSError):
    """Others could have written there."""


def cache_root() -> Path:
    """The folder of all that is compiled or fetched once: FLEXCOMP_CACHE, or `flexcomp` in the user's folder for caches."""
    if given := os.environ.get("FLEXCOMP_CACHE"):
        return Path(given).absolute()
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return Path(given if os.path.isabs(given) else Path.home() / ".cache") / "flexcomp"
    except RuntimeError:
        raise FileNotFoundError("this user has no home: make one") from None


def trusted_folder(name: str) -> Path:
    """A folder for some kept files, in `cache_root()` or, where others could write there, in a temporary one."""
    try:
        root = cache_root()
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for parent in Path(os.path.realpath(root)).parents:
            mode = parent.stat().st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                raise UntrustedError(f"anybody may rename what lies in {parent}: chmod o-w it")
        (root / name).mkdir(mode=0o700, exist_ok=True)
        with _opened(root, _OPEN & ~os.O_NOFOLLOW), _opened(root / name):
            return root / name
    except OSError as error:
        _say_once(str(error) if error.strerror is None else f"{error.filename}: {error.strerror}")
        folder = _temporary_root() / name
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder


def kept_file(folder: Path, name: str, make: Callable[[Path], Path]) -> Path:
    """A file in a trusted folder, made by `make` in a scratch folder unless the file is there with its checksum.

    Of several processes that want the file one makes it, and the others wait.
    """
    if _is_whole(folder, name):
        return folder / name
    if not os.access(folder, os.W_OK):  # root's
        folder = _temporary_root() / folder.name
        folder.mkdir(mode=0o700, exist_ok=True)
    with _turn(folder / f"{name}.lock"):
        if not _is_whole(folder, name):
            _make(folder, name, make)
    return folder / name


def _is_whole(folder: Path, name: str) -> bool:
    """Whether a file has the checksum that lies next to it."""
    with suppress(OSError), _opened(folder) as at:
        return _read(f"{name}.sha256", at).strip() == hashlib.sha256(_read(name, at)).hexdigest().encode()
    return False


def _make(folder: Path, name: str, make: Callable[[Path], Path]) -> None:
    with beside(folder / name) as scratch:
        made = make(scratch)
        made.chmod(made.stat().st_mode & ~_OTHERS_WRITE)
        noted = scratch / f"{name}.sha256"
        noted.write_text(hashlib.sha256(made.read_bytes()).hexdigest())
        noted.chmod(0o600)
        noted.replace(folder / noted.name)
        made.replace(folder / name)


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    """While no other process has its turn; all at once where the file system has no locks."""
    with _closing(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)) as opened:
        with suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield


@contextmanager
def _opened(folder: Path, how: int = _OPEN) -> Iterator[int]:
    """A descriptor of a folder where others could not have written. Raises OSError."""
    with _closing(os.open(folder, how | os.O_DIRECTORY)) as opened:
        _require_ours(opened, folder)
        yield opened


@contextmanager
def _closing(opened: int) -> Iterator[int]:
    try:
        yield opened
    finally:
        os.close(opened)


def _require_ours(opened: int, path: str | Path) -> os.stat_result:
    """Raise UntrustedError unless only this user, and root, could have written a file or folder that is open."""
    status = os.fstat(opened)
    if status.st_uid not in (os.geteuid(), 0):
        raise UntrustedError(f"{path} belongs to user {status.st_uid}: remove it")
    if status.st_mode & _OTHERS_WRITE:
        raise UntrustedError(f"others may write to {path}: chmod go-w it, once it is empty")
    return status


def _read(name: str, folder: int) -> bytes:
    """A file in a folder that is open. Raises OSError, also for a link, anything but a file, or another owner."""
    with _closing(os.open(name, _OPEN, dir_fd=folder)) as opened:
        if not stat.S_ISREG(_require_ours(opened, name).st_mode):
            raise UntrustedError(f"{name} is no file")
        with open(opened, "rb", closefd=False) as file:
            return file.read()


@functools.cache
def _say_once(why: str) -> None:
    _log.warning("nothing is kept for other builds: %s, or name another folder in FLEXCOMP_CACHE", why)


@functools.cache
def _temporary_root() -> Path:
    """For this process and its forks."""
    root, owner = Path(tempfile.mkdtemp(prefix=".flexcomp-cache-")), os.getpid()
    note_folder(root)
    atexit.register(lambda: os.getpid() == owner and shutil.rmtree(root, ignore_errors=True))
    return root


class KernelCache:
    """The entries in a folder."""

    def __init__(self, folder: str | os.PathLike[str] | None = None, most_nbytes: int = MOST_NBYTES) -> None:
        self.folder = Path(folder) if folder is not None else trusted_folder("kernels")
        self._most_nbytes = most_nbytes

    def find(self, key: str) -> bytes | None:
        """The object with this key, or None; its use is noted."""
        with suppress(OSError), _opened(self.folder) as folder:
            raw = _read(f"{key}.o", folder)
            digest, code = raw[:_DIGEST_NBYTES], raw[_DIGEST_NBYTES:]
            if digest != _digest(key, code):
                os.unlink(f"{key}.o", dir_fd=folder)
                return None
            with suppress(OSError):  # root's folder may be read
                os.utime(f"{key}.o", dir_fd=folder, follow_symlinks=False)
            return code
        return None

    def keep(self, key: str, code: bytes) -> None:
        """Add an object. Failing to write is no error: a cache only saves time."""
        scratch = f".{key}.{secrets.token_hex(8)}"
        with suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _opened(self.folder) as folder:
                try:
                    _write(scratch, os.O_EXCL, _digest(key, code) + code, folder)
                    os.replace(scratch, f"{key}.o", src_dir_fd=folder, dst_dir_fd=folder)
                except OSError:
                    _remove(scratch, folder)
                    raise
                _write(_ADDED_NAME, os.O_APPEND, bytes(-(-len(code) // 1024)), folder)

    def trim(self) -> None:
        """Remove the least recently used entries, and leftovers of killed writers, until the folder is well below its bound.

        Not before a part of the bound was added since that was done last.
        """
        with suppress(OSError), _opened(self.folder) as folder:
            if os.stat(_ADDED_NAME, dir_fd=folder, follow_symlinks=False).st_size * 1024 < _ADDED * self._most_nbytes:
                return
            os.unlink(_ADDED_NAME, dir_fd=folder)  # missing: nothing was added, or another process is scanning
            entries = []
            for name, status in _files(folder):
                if _UNFINISHED.fullmatch(name) and status.st_mtime < time.time() - _ABANDONED_S:
                    _remove(name, folder)
                elif _ENTRY.fullmatch(name):
                    entries.append((status.st_mtime, status.st_size, name))
            nbytes = sum(size for _, size, _ in entries)
            if nbytes <= self._most_nbytes:
                return
            for _, size, name in sorted(entries):
                if nbytes <= _KEPT * self._most_nbytes:
                    break
                _remove(name, folder)
                nbytes -= size

    def size(self) -> tuple[int, int]:
        """How many entries there are, and their bytes."""
        sizes = []
        with suppress(OSError), _opened(self.folder) as folder:
            sizes = [status.st_size for name, status in _files(folder) if _ENTRY.fullmatch(name)]
        return len(sizes), sum(sizes)

    def clear(self) -> tuple[int, int]:
        """Remove all entries; returns their number and bytes. Other files in the folder stay."""
        count = nbytes = 0
        with suppress(OSError), _opened(self.folder) as folder:
            for name, status in _files(folder):
                if _ENTRY.fullmatch(name) or _UNFINISHED.fullmatch(name):
                    _remove(name, folder)
                    count, nbytes = count + 1, nbytes + status.st_size
            _remove(_ADDED_NAME, folder)
        return count, nbytes


def _write(name: str, how: int, data: bytes, folder: int) -> None:
    """Append to a file, which is made if missing. Raises OSError, also for a link or another owner."""
    with _closing(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | how, 0o600, dir_fd=folder)) as opened:
        _require_ours(opened, name)
        with open(opened, "wb", closefd=False) as file:
            file.write(data)


def _files(folder: int) -> Iterator[tuple[str, os.stat_result]]:
    for name in os.listdir(folder):
        with suppress(OSError):  # another process trims, too
            yield name, os.stat(name, dir_fd=folder, follow_symlinks=False)


def _digest(key: str, code: bytes) -> bytes:
    """Of an entry: the key is in it, so that one file in another's place is not taken for it."""
    return hashlib.sha256(key.encode() + b"\0" + code).digest()


def _remove(name: str, folder: int) -> None:
    with suppress(OSError):
        os.unlink(name, dir_fd=folder)
