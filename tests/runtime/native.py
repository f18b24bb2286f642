"""Programs in C++ that try a part of the runtime by itself, compiled from its sources."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import tvm_ffi

from flexcomp import runtime_ext
from tests.kept import compiler, made

SRC = Path(runtime_ext.__file__).parent / "src"
_FFI = Path(tvm_ffi.__file__).parent
# What the loader is made of.
LOADER = ("storage/loader.cc", "storage/read_errors.cc", "memory/fresh_pages.cc", "threads/cpu_set.cc")
# What reads programs.
READER = (
    *("program/plans.cc", "program/reader.cc", "program/check.cc", "program/tapes.cc"),
    "base/crc32.cc",
)


def compile(
    folder: Path, source: str, parts: Sequence[str] = (), options: Sequence[str] = (), *, sources: Path = SRC
) -> Path:
    """The program made of `source`, which lies beside this file, and these files of the runtime, or of a copy of it."""
    # Half the time goes on headers that all of them include.
    text = "".join(f'#include "{_place(part, source, sources)}"\n' for part in (source, *parts))
    command = [*_command(options, sources), "-x", "c++", "-", "-x", "none"]
    command += [f"-L{_FFI / 'lib'}", f"-Wl,-rpath,{_FFI / 'lib'}", "-ltvm_ffi", "-ldl"]
    said = [one.replace(str(sources), "") for one in (text, *command)]  # a copy may lie anywhere
    own = Path(__file__).parent.glob("*.[ch]*")
    read = (*sorted(sources.rglob("*.h")), *sorted(sources.rglob("*.cc")), *sorted(own))

    def make(path: Path) -> None:
        subprocess.run([*command, "-o", path], input=text, text=True, check=True)

    program = folder / Path(source).stem
    shutil.copy(made(program.name, (*said, *read, compiler()), make), program)
    return program


def _command(options: Sequence[str], sources: Path) -> list[str]:
    command = ["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-pthread", "-D_FILE_OFFSET_BITS=64", "-D_GNU_SOURCE"]
    return [*command, *(options or ["-O1"]), f"-I{sources}", f"-I{_FFI / 'include'}"]


def _place(part: str, source: str, sources: Path) -> Path:
    return Path(__file__).with_name(part) if part == source else sources / part


def run(program: Path, *args: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs it; another status than this fails the test with what it wrote."""
    done = subprocess.run([program, *map(str, args)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == status, f"{done.returncode}: {done.stdout}{done.stderr}"
    return done
