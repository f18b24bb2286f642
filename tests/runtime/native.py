"""Programs in C++ that try a part of the runtime by itself, compiled from its sources."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import tvm_ffi

from flexcomp import runtime_ext

SRC = Path(runtime_ext.__file__).parent / "src"
_FFI = Path(tvm_ffi.__file__).parent
LOADER = ("storage/loader.cc", "storage/fresh_pages.cc", "threads/cpu_set.cc")  # what the loader is made of


def compile(
    folder: Path, source: str, parts: Sequence[str] = (), options: Sequence[str] = (), *, sources: Path = SRC
) -> Path:
    """The program made of `source`, which lies beside this file, and these files of the runtime, or of a copy of it."""
    options = options or ["-O1"]
    source = Path(__file__).with_name(source)
    program = folder / source.stem
    command = ["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-pthread", "-D_FILE_OFFSET_BITS=64", "-D_GNU_SOURCE"]
    command += [*options, f"-I{sources}", f"-I{_FFI / 'include'}", source, *(sources / part for part in parts)]
    command += [f"-L{_FFI / 'lib'}", f"-Wl,-rpath,{_FFI / 'lib'}", "-ltvm_ffi", "-ldl", "-o", program]
    subprocess.run(command, check=True)
    return program


def run(program: Path, *args: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs it; another status than this fails the test with what it wrote."""
    done = subprocess.run([program, *map(str, args)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == status, f"{done.returncode}: {done.stdout}{done.stderr}"
    return done
