"""Files that a device needs besides a model's library: the runner, its library, and libtvm_ffi for its architecture."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from flexcomp import runtime_ext
from flexcomp.cache import kept_file, trusted_folder
from flexcomp.compiler import cache_for, compiled, cross_compiler, own_flags, runtime_object_for
from flexcomp.errors import TargetError

LIBRARY = "libtvm_ffi.so"
RUNTIME = runtime_ext.RUNTIME_LIBRARY
RUNNER = "flexcomp-run"
# Machines that tvm-ffi has wheels for: pip's names, and the interpreter, whose version does not matter here.
_WHEELS = {"aarch64": "manylinux_2_28_aarch64", "x86_64": "manylinux_2_28_x86_64"}
_PYTHON = "3.11"


def device_files(machine: str, compiler: str | None = None) -> dict[str, Path]:
    """By name: the runner, its library and libtvm_ffi for a machine, "aarch64" or "x86_64".

    This machine's come with flexcomp. Another's come with flexcomp's wheels, or are compiled by the cross compiler, and
    its libtvm_ffi is taken from the wheel of the version that is installed here. Files that were made or fetched are kept in the
    user's cache. Raises TargetError.
    """
    if compiler is None:
        folder = runtime_ext.runner().parent if machine == platform.machine() else runtime_ext.other_programs(machine)
        if folder is not None:
            return {RUNNER: folder / RUNNER, RUNTIME: folder / RUNTIME, LIBRARY: ffi_library(machine)}
    compiler = cross_compiler(machine, compiler)
    ffi = ffi_library(machine, compiler)
    runtime = _runtime_library(compiler, ffi)
    static = ("-static-libstdc++", "-static-libgcc")
    return {RUNNER: program_for("runner", RUNNER, compiler, [runtime], static), RUNTIME: runtime, LIBRARY: ffi}


def _runtime_library(compiler: str, ffi: Path) -> Path:
    made = runtime_object_for(compiler)
    units = [unit for units in runtime_ext.library_units() for unit in units]
    folder = cache_for("library", " ".join([compiler, *own_flags()]), [*units, *runtime_ext.headers(), made, ffi])

    def build(scratch: Path) -> Path:
        with compiled("the runtime's library", compiler):
            return runtime_ext.build_runtime_library(compiler, made, ffi, scratch / RUNTIME, own_flags())

    return kept_file(folder, RUNTIME, build)


def ffi_library(machine: str, compiler: str | None = None) -> Path:
    """libtvm_ffi for a machine, or for programs of this compiler. Raises TargetError."""
    if machine == platform.machine() and compiler is None:
        return runtime_ext.tvm_ffi_library() / LIBRARY
    return library_for("apache-tvm-ffi", LIBRARY, machine)


def library_for(distribution: str, library: str, machine: str) -> Path:
    """A library out of a distribution's wheel for a machine, of the version that is installed here. Raises TargetError."""
    if machine not in _WHEELS:
        raise TargetError(f"no {library} for {machine}: there is one for {', '.join(_WHEELS)}")
    version = importlib.metadata.version(distribution)
    folder = trusted_folder(f"{distribution}-{version}-{machine}")
    return kept_file(folder, library, lambda scratch: _fetch(f"{distribution}=={version}", library, machine, scratch))


def program_for(name: str, program: str, compiler: str, libraries: Sequence[Path], options: Sequence[str] = ()) -> Path:
    """Compile "runner" or "server", whose sources come with flexcomp, linked against `libraries`.

    The program looks for the libraries in its own folder. Raises TargetError.
    """
    units = runtime_ext.program_units(name)
    headers = runtime_ext.headers()
    options = [*options, *own_flags()]
    folder = cache_for(name, " ".join([compiler, *options]), [*units, *headers, *libraries])
    return kept_file(folder, program, lambda scratch: _compile(compiler, name, units, libraries, options, scratch / program))


def _fetch(requirement: str, library: str, machine: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--platform", _WHEELS[machine], "--python-version", _PYTHON]
    done = subprocess.run([*command, "--dest", str(folder), requirement], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise TargetError(f"cannot fetch {library} for {machine} with pip: {reason}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(f"/{library}"))
        with archive.open(name) as source, open(folder / library, "wb") as target:
            shutil.copyfileobj(source, target)
    return folder / library


def _compile(
    compiler: str, name: str, units: Sequence[Path], libraries: Sequence[Path], options: Sequence[str], output: Path
) -> Path:
    from tvm_ffi.libinfo import find_include_path

    command = [*compiler.split(), "-std=c++20", "-O2", "-D_FILE_OFFSET_BITS=64", f"-I{find_include_path()}"]
    command += [*(f"-I{folder}" for folder in runtime_ext.include_folders()), "-x", "c++", "-", "-o", str(output)]
    command += [*options, *(f"-L{library.parent}" for library in libraries)]
    command += [f"-l:{library.name}" for library in libraries]
    # The programs' libraries have libraries of their own.
    command += ["-lpthread", "-Wl,-rpath,$ORIGIN", "-Wl,--allow-shlib-undefined"]
    done = subprocess.run(command, input=runtime_ext.joined(units), capture_output=True, text=True, check=False)
    if done.returncode or not output.exists():
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise TargetError(f"cannot compile the {name} with {compiler}: {reason}")
    return output
