"""Compiled libraries: loaded once each, under a name of their own, with errors that name the file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tvm_ffi

from flexcomp.errors import (
    ArtifactError,
    BudgetError,
    CancelledError,
    ExecutionError,
    FlexcompError,
    InputError,
    StorageError,
    TargetError,
)

from .elf import check_elf

_KIND = "flexcomp.program."  # a version number follows
_ERRORS = {
    c.__name__: c
    for c in (ArtifactError, BudgetError, CancelledError, ExecutionError, InputError, StorageError, TargetError)
}
_loaded: dict[Path, list[tuple[int, int] | None]] = {}  # device and inode of each file that was loaded from a path
_programs: dict[str, tvm_ffi.Module] = {}  # by the name of their library: tvm_ffi keeps all modules for good
_MOST_TRIES = 10  # to load a library whose file is being replaced


def read_program(path: str | os.PathLike[str]) -> bytes:
    """The encoded program inside a compiled library, for `flexcomp.program.decode_program`."""
    return bytes(load_program(Path(path).resolve())[0].get_function("blob")())


def read_info(path: str | os.PathLike[str]) -> dict:
    """The description in a compiled library, without its weights file: target, ports, ladder, layers."""
    return json.loads(load_program(Path(path).resolve())[0].get_function("info")())


def read_summary(path: str | os.PathLike[str]) -> dict:
    """The part of `read_info` that running takes."""
    return json.loads(load_program(Path(path).resolve())[0].get_function("summary")())


def load_program(path: Path) -> tuple[tvm_ffi.Module, str]:
    """The program, and the name its library was loaded by. Loaded once for each file."""
    check_elf(path)
    for _ in range(_MOST_TRIES):
        file = _file_at(path)
        name = _name_of_its_own(path, file)
        if (program := _programs.get(name)) is not None:
            return program, name
        try:
            with translated():
                program = tvm_ffi.load_module(name)
        except (ArtifactError, RuntimeError) as error:  # neither the reader nor the dynamic loader names the file
            raise ArtifactError(f"cannot load {path}: {str(error).strip().splitlines()[-1]}") from None
        if _file_at(path) != file:  # replaced meanwhile: which of the two was loaded by this name, nobody knows
            _loaded[path][_loaded[path].index(file)] = None
            continue
        if not program.kind.startswith(_KIND):
            raise ArtifactError(f"{path} is a library, but not a compiled network")
        return _programs.setdefault(name, program), name
    raise ArtifactError(f"{path} was replaced each of the {_MOST_TRIES} times that it was opened: try again")


def _file_at(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise ArtifactError(f"cannot open {path}: {error.strerror}") from None
    return status.st_dev, status.st_ino


def _name_of_its_own(path: Path, file: tuple[int, int]) -> str:
    """A spelling of `path` under which no other file was loaded.

    Libraries stay in the process, and the dynamic loader takes a known name for the file loaded before: a
    network that was built again under the same name would go on running unchanged.
    """
    files = _loaded.setdefault(path, [])
    if file not in files:
        files.append(file)
    return f"{path.parent}/{'./' * files.index(file)}{path.name}"


def function(module: tvm_ffi.Module, name: str) -> tvm_ffi.Function:
    """A function of the runtime inside a library, which may be older than this file."""
    try:
        with translated():
            return module.get_function(name)
    except AttributeError:
        raise ArtifactError(
            f'the library was built by another version of flexcomp, whose runtime has no "{name}": build it again'
        ) from None


@contextmanager
def translated() -> Iterator[None]:
    """Turn errors of the runtime, which name their class, into that class."""
    try:
        yield
    except RuntimeError as error:  # from tvm_ffi, for unknown kinds
        raised = getattr(error, "__tvm_ffi_error__", None)
        kind: type[FlexcompError] | None = _ERRORS.get(getattr(raised, "kind", ""))
        if kind is None:
            raise
        raise kind(raised.message) from None
