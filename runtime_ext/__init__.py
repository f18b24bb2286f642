"""Finds compiled parts: the runtime as an object linked into models, as a library and as the runner; the planner's loops.

The C++ sources next to this file are installed too, so that models for other machines can be linked with
the runtime compiled by a cross compiler.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm_ffi import Function

__all__ = [
    "build_runtime_library",
    "build_runtime_object",
    "complete_object",
    "function",
    "headers",
    "include_folders",
    "joined",
    "json_reader",
    "library_units",
    "link_options",
    "other_programs",
    "planner",
    "program_units",
    "register",
    "runner",
    "runtime_library",
    "runtime_object",
    "sources",
    "tvm_ffi_library",
]


_FOR_SIZE = "cmake/for_size.txt"
_COMPLETE = b"flexcomp_has_cxx_library"  # a symbol of cmake/complete.cc


RUNTIME_LIBRARY = "libflexcomp.so.1"


def runtime_object() -> Path:
    """The relocatable object of the runtime for this machine."""
    return _native("flexcomp_runtime.o")


def runner() -> Path:
    """The program that runs an exported model: `flexcomp-run`."""
    return _native("flexcomp-run")


@functools.cache
def register() -> None:
    """Make the module kind of programs known to this process, as loading an exported model does."""
    import tvm_ffi  # noqa: F401 - its library comes first

    ctypes.CDLL(str(runtime_library()))


def function(name: str) -> Function:
    """A function of the runtime, for this process. Raises OSError if the compiled runtime is of another version."""
    register()
    from tvm_ffi import get_global_func

    found = get_global_func(name, allow_missing=True)
    if found is None:
        checkout = Path(__file__).parents[1]
        how = f"--editable {checkout}" if (checkout / "pyproject.toml").exists() else "--force-reinstall flexcomp"
        raise OSError(f"{runtime_library()} was compiled from another version of flexcomp, without {name}: run pip install {how}")
    return found


def runtime_library() -> Path:
    """The library of the runtime, of pools and of the C interface, for this process."""
    return _native(RUNTIME_LIBRARY)


def planner() -> Path:
    """The library of the planner's inner loops, for this process: devices have no planner."""
    return _native("libflexcomp_planner.so")


def json_reader() -> Path:
    """The library that reads numbers of JSON, for this process: a server's."""
    return _native("libflexcomp_json.so")


def tvm_ffi_library() -> Path:
    """The folder of libtvm_ffi, for link and search paths."""
    from tvm_ffi.libinfo import find_libtvm_ffi

    return Path(find_libtvm_ffi()).parent


@functools.cache
def complete_object(machine: str) -> Path | None:
    """The runtime's object for a machine with the C++ library that it needs, so that a linker without one will do.

    Wheels bring it (scripts/wheels.py); a build by the machine's own compiler does not: None.
    """
    here = runtime_object()
    path = here if machine == platform.machine() else here.with_name("machines") / machine / here.name
    return path if path.exists() and _COMPLETE in path.read_bytes() else None


def other_programs(machine: str) -> Path | None:
    """The folder of the runner and its library for another machine; None where the installation brings none."""
    folder = runtime_object().with_name("machines") / machine
    return folder if folder.exists() else None


def link_options(tvm_ffi_folder: str | Path | None = None, *, complete: bool | None = None) -> list[str]:
    """Options of the C++ linker for a library that holds the runtime object.

    `tvm_ffi_folder` holds libtvm_ffi for the machine that is built for; None: this machine. `complete`: the object holds its C++
    library; None: if this machine's does.
    """
    folder = tvm_ffi_library() if tvm_ffi_folder is None else tvm_ffi_folder
    # nodelete: tvm_ffi's registry keeps pointers into the first model's code for the life of the process.
    # strip-all: names of the runtime's own functions are a tenth of a library, and LLVM's debug information for TVM's kernels,
    # about lines that nobody wrote, a fifth. Names of kernels are dynamic symbols, and stay.
    if complete is None:
        complete = complete_object(platform.machine()) is not None
    cxx = ["-lstdc++"]
    if complete:  # a C++ library of the model's own, which is nobody else's, and of which most is not needed
        cxx = [f"-Wl,--version-script,{_installed('cmake/model.map')}", "-Wl,--gc-sections"]
    return [f"-L{folder}", "-ltvm_ffi", *cxx, "-lpthread", "-ldl", "-Wl,-z,nodelete", "-Wl,--strip-all"]


def sources() -> list[Path]:
    """The files that the runtime's object is made of, in a fixed order."""
    folder = Path(__file__).parent
    return sorted([*folder.glob("src/**/*.cc"), *folder.glob("src/**/*.h"), folder / _FOR_SIZE])


def program_units(name: str) -> list[Path]:
    """The C++ files that the program "runner" or "server" is made of."""
    return _units(name)


def library_units() -> list[list[Path]]:
    """The C++ files of the runtime's library besides those of the runtime's object: lists to be joined."""
    return [_units("library", "pool", "watch"), _units("api", "decoder")]


def _units(*folders: str) -> list[Path]:
    return sorted(unit for folder in folders for unit in (Path(__file__).parent / folder).glob("*.cc"))


def headers() -> list[Path]:
    """All headers next to this file."""
    return sorted(Path(__file__).parent.rglob("*.h"))


def include_folders() -> list[Path]:
    """Where C++ files look for them."""
    folder = Path(__file__).parent
    return [folder, folder / "src", folder / "include"]


def joined(units: Iterable[Path]) -> str:
    """One C++ source made of several, in which no name of an unnamed namespace may come twice.

    A compiler spends most of its time on reading headers and instantiating templates: here once for all.
    """
    return "".join(f'#include "{unit}"\n' for unit in units)


def build_runtime_object(compiler: str, output: str | Path, options: Iterable[str] = ()) -> Path:
    """Compile the runtime with another C++ compiler, e.g. `aarch64-linux-gnu-g++`, into one object."""
    from tvm_ffi.libinfo import find_include_path

    output = Path(output)
    folder = Path(__file__).parent  # not the installed copies, which may be older than `sources`, by which caches know the object
    flags = ["-std=c++20", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden"]
    flags += ["-D_FILE_OFFSET_BITS=64", f"-I{find_include_path()}", f"-I{folder / 'src'}"]
    for_size = {folder / name for name in (folder / _FOR_SIZE).read_text().split()}
    units = {"-O2": {source for source in sources() if source.suffix == ".cc"} - for_size, "-Os": for_size}
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor() as pool:

        def compiled(level: str) -> str:
            made = f"{scratch}/runtime{level}.o"
            _run([compiler, *flags, level, *options, "-x", "c++", "-c", "-", "-o", made], joined(sorted(units[level])))
            return made

        _run([compiler, "-r", "-nostdlib", "-o", str(output), *pool.map(compiled, units)])
    return output


def build_runtime_library(compiler: str, runtime: Path, ffi: Path, output: Path, options: Iterable[str] = ()) -> Path:
    """Link the runtime's library with another C++ compiler, of the object of `build_runtime_object` and libtvm_ffi."""
    from tvm_ffi.libinfo import find_include_path

    flags = ["-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden", "-D_FILE_OFFSET_BITS=64"]
    flags += ["-D_GNU_SOURCE", *(f"-I{folder}" for folder in (find_include_path(), *include_folders()))]
    link = [f"-L{ffi.parent}", "-ltvm_ffi", "-static-libstdc++", "-static-libgcc", "-lpthread", "-ldl", "-Wl,-z,nodelete"]
    link += [f"-Wl,-soname,{RUNTIME_LIBRARY}", f"-Wl,--version-script,{Path(__file__).parent / 'api/flexcomp.map'}"]
    link += ["-Wl,--strip-all", "-Wl,-rpath,$ORIGIN"]
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor() as pool:

        def compiled(units: list[Path]) -> str:
            made = f"{scratch}/{units[0].parent.name}.o"
            _run([*compiler.split(), *flags, *options, "-x", "c++", "-c", "-", "-o", made], joined(units))
            return made

        objects = [*pool.map(compiled, library_units()), str(runtime)]
        _run([*compiler.split(), "-shared", "-o", str(output), *objects, *options, *link])
    return output


def _run(command: Sequence[str], source: str = "") -> None:
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")


def _native(name: str) -> Path:
    """A compiled file, from the folder that FLEXCOMP_NATIVE names, if set: other builds, such as with sanitizers."""
    folder = os.environ.get("FLEXCOMP_NATIVE")
    return Path(folder) / name if folder else _installed(name)


def _installed(name: str) -> Path:
    path = Path(str(files(__name__).joinpath(name)))
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: install flexcomp (pip install -e .) to build the native runtime")
    return path
