"""Output files: complete or not there, however writing ends, and refused before the work if not writable."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = ".flexcomp-"  # of temporary folders next to outputs
_journal: Path | None = None


def keep_journal(path: Path) -> None:
    """Note incomplete outputs in a file from now on, for `remove_unfinished` in another process."""
    global _journal
    _journal = path


def remove_unfinished(journal: Path) -> None:
    """Remove incomplete outputs of a killed process that kept a journal."""
    if not journal.exists():
        return
    for name in reversed(journal.read_bytes().split(b"\0")[:-1]):
        path = Path(os.fsdecode(name))
        if path.name.startswith(_PREFIX):
            shutil.rmtree(path, ignore_errors=True)
        else:  # a folder for outputs: stays unless empty
            with suppress(OSError):
                path.rmdir()


@contextmanager
def beside(output: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary folder on the file system of `output`, for files that are renamed into place when complete.

    Folders on the way to `output` are made, and taken away again if the work fails. Raises OSError that names `output`
    where the system would name the temporary file.
    """
    output = Path(os.path.abspath(output))
    folder = output.parent / f"{_PREFIX}{secrets.token_hex(8)}"
    made: list[Path] = []
    try:
        for parent in reversed([parent for parent in output.parents if not parent.exists()]):
            note_folder(parent)
            parent.mkdir(exist_ok=True)
            made.append(parent)
        note_folder(folder)
        folder.mkdir(mode=0o700)
        yield folder
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        for parent in reversed(made):
            with suppress(OSError):
                parent.rmdir()
        if isinstance(error, OSError) and _concerns(error, folder, made):
            raise _unwritable(output, error) from error
        raise
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def replacing(output: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write to; the file there in the end replaces `output`. Raises OSError as `beside`."""
    output = Path(os.path.realpath(output))
    if output.exists() and not output.is_file() and not output.is_dir():  # a device or a pipe is not to be replaced
        try:
            yield output
        except OSError as error:
            raise _unwritable(output, error) from error
        return
    with beside(output) as folder:
        yield folder / output.name
        (folder / output.name).replace(output)


def require_writable(output: str | os.PathLike[str], reading: Iterable[str | os.PathLike[str]] = ()) -> None:
    """Raise OSError, with the reason, if `output` could not be written: there, by this user, without loss of `reading`.

    Tries it with an empty folder in the nearest folder that exists; nothing of the folder is left.
    """
    output = Path(output)
    try:
        there = output.stat()
    except FileNotFoundError:
        there = None
    except NotADirectoryError:
        folder = next(folder for folder in output.parents if _exists(folder))
        raise NotADirectoryError(f"cannot write {output}: {folder} is not a folder") from None
    except OSError as error:
        raise _unwritable(output, error) from None
    if there is not None:
        if output.is_dir():
            raise IsADirectoryError(f"cannot write {output}: it is a folder")
        if not os.access(output, os.W_OK):
            raise PermissionError(f"cannot write {output}: it is write-protected")
        if any(_exists(Path(path)) and output.samefile(path) for path in reading):
            raise OSError(f"cannot write {output}: it is what is being read")
        if not output.is_file():
            return
    _try_folder(output, Path(os.path.realpath(output)).parent)


def require_folder(folder: str | os.PathLike[str]) -> None:
    """Raise OSError, with the reason, if no files could be written into `folder`, which need not exist."""
    folder = Path(folder)
    if _exists(folder) and not folder.is_dir():
        raise NotADirectoryError(f"cannot write into {folder}: it is not a folder")
    _try_folder(folder, Path(os.path.realpath(folder)))


def require_space(output: str | os.PathLike[str], nbytes: int, what: str) -> None:
    """Raise OSError if the file system of `output` has not `nbytes` left; `what` names the data."""
    folder = next(folder for folder in Path(os.path.realpath(output)).parents if folder.exists())
    free = shutil.disk_usage(folder).free
    if free < nbytes:
        raise OSError(f"cannot write {output}: {free:,} bytes are free in {folder}, and {what} takes {nbytes:,}")


def _try_folder(output: Path, folder: Path) -> None:
    try:
        while not _exists(folder):
            folder = folder.parent
        if not folder.is_dir():
            raise NotADirectoryError(f"cannot write {output}: {folder} is not a folder")
        trial = folder / f"{_PREFIX}{secrets.token_hex(8)}"
        note_folder(trial)
        trial.mkdir(mode=0o700)
        trial.rmdir()
    except OSError as error:
        if error.strerror is None:
            raise
        raise _unwritable(output, error, f"the folder {folder} is not writable: ") from None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # for example a name that is too long
        return False


def _concerns(error: OSError, folder: Path, made: list[Path]) -> bool:
    """Whether an error is about writing: about a path that we made, or about no path, such as a full disk."""
    names = [Path(os.fsdecode(name)) for name in (error.filename, error.filename2) if isinstance(name, str | bytes | Path)]
    if error.strerror is None:  # one of ours, with a message of its own
        return False
    return not names or any(name in (folder, folder.parent, *made) or folder in name.parents for name in names)


def _unwritable(output: Path, error: OSError, why: str = "") -> OSError:
    return type(error)(f"cannot write {output}: {why}{error.strerror}")


def note_folder(path: Path) -> None:
    """As `keep_journal` says, of a folder that is removed with the process."""
    if _journal is not None:
        with open(_journal, "ab", buffering=0) as file:
            file.write(os.fsencode(os.path.abspath(path)) + b"\0")
