"""What a device needs besides a model's library: the runner, and libtvm_ffi for its architecture."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from . import runtime_ext
from .errors import TargetError
from .linker import cross_compiler, runtime_cache

LIBRARY = "libtvm_ffi.so"
RUNNER = "flexcomp-run"
# Machines that tvm-ffi has wheels for: what pip calls them, and the interpreter, whose version does not matter here.
_WHEELS = {"aarch64": "manylinux_2_28_aarch64", "x86_64": "manylinux_2_28_x86_64"}
_PYTHON = "3.11"


def device_files(machine: str, compiler: str | None = None) -> tuple[Path, Path]:
    """The runner and libtvm_ffi for a machine, "aarch64" or "x86_64".

    This machine's come with flexcomp. Another's runner is compiled by the cross compiler, and its libtvm_ffi taken from
    the wheel of the version that is installed here; both are kept in the user's cache. Raises TargetError.
    """
    if machine == platform.machine() and compiler is None:
        return runtime_ext.runner(), runtime_ext.tvm_ffi_library() / LIBRARY
    if machine not in _WHEELS:
        raise TargetError(f"no libtvm_ffi for {machine}: there is one for {', '.join(_WHEELS)}")
    compiler = cross_compiler(machine, compiler)
    folder = runtime_cache(compiler) / f"device-{_identity()}"
    runner, library = folder / RUNNER, folder / LIBRARY
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        if not library.exists():
            _fetch_library(machine, Path(scratch)).replace(library)
        if not runner.exists():
            _compile_runner(compiler, folder, Path(scratch) / RUNNER).replace(runner)
    return runner, library


def _runner_sources() -> list[Path]:
    folder = Path(runtime_ext.__file__).parent / "runner"
    return sorted([*folder.glob("*.cc"), *folder.glob("*.h")])


def _identity() -> str:
    identity = hashlib.sha256(importlib.metadata.version("apache-tvm-ffi").encode())
    for source in _runner_sources():
        identity.update(source.read_bytes())
    return identity.hexdigest()[:16]


def _fetch_library(machine: str, folder: Path) -> Path:
    version = importlib.metadata.version("apache-tvm-ffi")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--platform", _WHEELS[machine], "--python-version", _PYTHON]
    done = subprocess.run(
        [*command, "--dest", str(folder), f"apache-tvm-ffi=={version}"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
        raise TargetError(f"cannot fetch libtvm_ffi for {machine} with pip: {reason}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(f"/{LIBRARY}"))
        with archive.open(name) as source, open(folder / LIBRARY, "wb") as target:
            shutil.copyfileobj(source, target)
    return folder / LIBRARY


def _compile_runner(compiler: str, libraries: Path, output: Path) -> Path:
    from tvm_ffi.libinfo import find_include_path

    sources = [source for source in _runner_sources() if source.suffix == ".cc"]
    command = [*compiler.split(), "-std=c++20", "-O2", f"-I{find_include_path()}", *map(str, sources), "-o", str(output)]
    command += [f"-L{libraries}", "-ltvm_ffi", "-lpthread", "-static-libstdc++", "-static-libgcc", "-Wl,-rpath,$ORIGIN"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TargetError(f"cannot compile the runner with {compiler}: {done.stderr.strip().splitlines()[-1]}")
    return output
