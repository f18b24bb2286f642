"""Programs in C++ that try a part of the runtime by itself, compiled from its sources."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

import tvm_ffi

from flexcomp import runtime_ext
from flexcomp.cache import kept_file

SRC = Path(runtime_ext.__file__).parent / "src"
_FFI = Path(tvm_ffi.__file__).parent
_KEPT = Path(__file__).parents[2] / ".cache" / "tests"  # until `make clean`
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
    # Half the time goes on headers that all of them include.
    together = "".join(f'#include "{_place(part, source, sources)}"\n' for part in (source, *parts) if part not in made)
    command = [*_command(options, sources), "-x", "c++", "-", "-x", "none", *made.values()]
    command += [f"-L{_FFI / 'lib'}", f"-Wl,-rpath,{_FFI / 'lib'}", "-ltvm_ffi", "-ldl"]
    return _made(folder / Path(source).stem, command, together, sources, made.values())


def objects(folder: Path, source: str, parts: Sequence[str] = (), options: Sequence[str] = ()) -> dict[str, Path]:
    """`source` and files of the runtime, compiled one by one."""
    return {
        part: _made(folder / f"{Path(part).stem}.o", [*_command(options, SRC), "-c", "-x", "c++", "-"],
                    f'#include "{_place(part, source, SRC)}"\n', SRC)
        for part in (source, *parts)
    }  # fmt: skip


def _made(output: Path, command: Sequence[str | Path], text: str, sources: Path, made: Iterable[Path] = ()) -> Path:
    """What a compiler makes of `text`: by one of pytest's workers, for all of them and for later runs of the same sources."""
    made = [*made]
    said = [text, *(str(part) for part in command if part not in made), _compiler()]
    digest = hashlib.sha256(repr([one.replace(str(sources), "") for one in said]).encode())  # a copy may lie anywhere
    own = Path(__file__).parent.glob("*.[ch]*")
    for path in (*sorted(sources.rglob("*.h")), *sorted(sources.rglob("*.cc")), *sorted(own), *made):
        digest.update(path.read_bytes())
    folder = _KEPT / digest.hexdigest()[:32]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def make(scratch: Path) -> Path:
        subprocess.run([*command, "-o", scratch / output.name], input=text, text=True, check=True)
        return scratch / output.name

    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = kept_file(folder, output.name, make)
    shutil.copy(kept, output)
    return output


@cache
def _compiler() -> str:
    return subprocess.run(["g++", "--version"], capture_output=True, text=True, check=True).stdout


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
