"""Programs in C++ that try a part of the runtime by itself, compiled from its sources."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import tvm_ffi

from flexcomp import runtime_ext

SRC = Path(runtime_ext.__file__).parent / "src"
_FFI = Path(tvm_ffi.__file__).parent
# What the loader is made of.
LOADER = ("storage/loader.cc", "storage/loader_prepare.cc", "storage/fresh_pages.cc", "threads/cpu_set.cc")
# What reads programs.
READER = ("program/plans.cc", "program/reader.cc", "program/check.cc", "program/first_inference.cc", "base/crc32.cc")


def compile(
    folder: Path,
    source: str,
    parts: Sequence[str] = (),
    options: Sequence[str] = (),
    *,
    sources: Path = SRC,
    made: Mapping[str, Path] = MappingProxyType({}),
) -> Path:
    """The program made of `source`, which lies beside this file, and these files of the runtime, or of a copy of it.

    `made` are those that are there as `objects`.
    """
    program = folder / Path(source).stem
    together = program.with_suffix(".together.cc")  # half the time goes on headers that all of them include
    together.write_text("".join(f'#include "{_place(part, source, sources)}"\n' for part in (source, *parts) if part not in made))
    command = [*_command(options, sources), together, *made.values()]
    command += [f"-L{_FFI / 'lib'}", f"-Wl,-rpath,{_FFI / 'lib'}", "-ltvm_ffi", "-ldl", "-o", program]
    subprocess.run(command, check=True)
    return program


def objects(folder: Path, source: str, parts: Sequence[str] = (), options: Sequence[str] = ()) -> dict[str, Path]:
    """`source` and files of the runtime, compiled one by one."""
    made = {part: folder / f"{Path(part).stem}.o" for part in (source, *parts)}
    for part, path in made.items():
        subprocess.run([*_command(options, SRC), "-c", _place(part, source, SRC), "-o", path], check=True)
    return made


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
