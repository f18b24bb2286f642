"""Linking a library for its machine, which need not be this one."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tvm.support import cc

from flexcomp import runtime_ext
from flexcomp.cache import kept_file, trusted_folder
from flexcomp.device import CompileTarget
from flexcomp.errors import TargetError

_GOLD = "-fuse-ld=gold"
_SAME_MACHINE = {"arm64": "aarch64", "amd64": "x86_64"}  # other names of an architecture


@dataclass(frozen=True)
class Linker:
    """How to link a shared library for a target."""

    compile: Callable  # called by TVM's export_library
    runtime: Path  # the runtime's object
    options: tuple[str, ...]

    def options_for(self, name: str) -> list[str]:
        """The options for a library of this name. Without a name gold writes the output's path into the library."""
        return [*self.options, *(["-Xlinker", "-soname", "-Xlinker", name] if _GOLD in self.options else [])]


def linker_for(target: CompileTarget, compiler: str | None = None) -> Linker:
    """The linker for a target: this machine's, or a cross compiler called TRIPLE-g++ or `compiler`.

    For another machine the runtime is compiled from its sources on first use and kept in the user's cache.
    Raises TargetError if no compiler is there, naming the package to install.
    """
    machine, here = _machines(target)
    if machine == here and compiler is None:
        compiler = _require(cc.get_cc(), "g++")
        options = (*_fast(compiler), *runtime_ext.link_options())
        return Linker(_for_target(cc.create_shared, target), runtime_ext.runtime_object(), options)
    compiler = cross_compiler(machine, compiler)
    folder = runtime_cache(compiler)
    runtime = kept_file(folder, "flexcomp_runtime.o", lambda scratch: _runtime(compiler, scratch / "flexcomp_runtime.o"))
    kept_file(folder, "libtvm_ffi.so", lambda scratch: _name_only_library(compiler, scratch / "libtvm_ffi.so"))
    # The stand-in for libtvm_ffi defines nothing, so the linker would drop the dependency.
    return Linker(_for_target(compiler, target), runtime, ("-Wl,--no-as-needed", *runtime_ext.link_options(folder)))


@functools.cache
def _fast(compiler: str) -> tuple[str, ...]:
    """Options for gold, where this compiler has gold, which takes a third of the time of GNU's other linker."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [*compiler.split(), _GOLD, "-shared", "-nostdlib", "-x", "c", os.devnull, "-o", f"{scratch}/trial.so"]
        done = subprocess.run(command, capture_output=True, check=False)
    return () if done.returncode else (_GOLD,)


def _for_target(compiler: Callable | str, target: CompileTarget) -> Callable:
    """A C++ compiler for TVM, which otherwise takes the machine of the build for the machine of the library."""
    return cc.cross_compiler(compiler, get_target_triple=lambda: target.triple)


def require_linker(target: CompileTarget, compiler: str | None = None) -> None:
    """Raise TargetError if `linker_for` would find no compiler, or one that cannot make a shared library."""
    machine, here = _machines(target)
    is_native = machine == here and compiler is None
    compiler = _require(cc.get_cc(), "g++") if is_native else cross_compiler(machine, compiler)
    # Another machine's runtime is compiled from its sources, in C++20.
    source = "int flexcomp_trial;" if is_native else "#include <span>\nint flexcomp_trial;"
    with tempfile.TemporaryDirectory() as scratch:
        language = [] if is_native else ["-std=c++20"]
        command = [*compiler.split(), *language, "-shared", "-fPIC", "-x", "c++", "-", "-o", f"{scratch}/trial.so"]
        done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it gives no reason"])[-1]
        raise TargetError(f"the C++ compiler {compiler} cannot make a shared library: {reason}")


def _machines(target: CompileTarget) -> tuple[str, str]:
    """The target's, and this one."""
    machine, here = (_SAME_MACHINE.get(name, name) for name in (target.triple.split("-")[0], platform.machine()))
    return machine, here


def cross_compiler(machine: str, compiler: str | None = None) -> str:
    """`compiler`, or the one that Debian calls MACHINE-linux-gnu-g++; TargetError if missing."""
    return _require(f"{machine}-linux-gnu-g++" if compiler is None else compiler, f"g++-{machine}-linux-gnu".replace("_", "-"))


def _require(compiler: str | None, package: str) -> str:
    if compiler is None or not compiler.split() or shutil.which(compiler.split()[0]) is None:
        named = f"the C++ compiler {compiler or 'without a name'} is missing"
        missing = "no C++ compiler is installed" if compiler is None else named
        raise TargetError(f"cannot link a library: {missing}; on Debian: apt-get install {package}, or name another one")
    return compiler


def runtime_cache(compiler: str) -> Path:
    """A folder for this compiler's objects of the runtime's sources."""
    return cache_for("runtime", compiler, runtime_ext.sources())


def cache_for(what: str, compiler: str, sources: Iterable[Path]) -> Path:
    """A folder for this compiler's objects of these sources, by its options."""
    asked = subprocess.run([compiler.split()[0], "--version"], capture_output=True, text=True, check=False)
    if asked.returncode:
        raise TargetError(f"{compiler.split()[0]} is no C++ compiler: it does not understand --version")
    version = asked.stdout
    identity = hashlib.sha256(f"{compiler}\n{version}".encode())
    for source in sources:
        identity.update(source.read_bytes())
    return trusted_folder(f"{what}-{identity.hexdigest()[:16]}")


def _runtime(compiler: str, path: Path) -> Path:
    try:
        return runtime_ext.build_runtime_object(compiler, path)
    except RuntimeError as error:  # the command, and its output
        lines = [line for line in str(error).splitlines() if "error" in line] or str(error).splitlines()
        raise TargetError(f"cannot compile the runtime with {compiler}: {lines[0].strip()}") from error


def _name_only_library(compiler: str, path: Path) -> Path:
    """A library without contents: linking with this one makes a model ask for libtvm_ffi on the device."""
    command = [compiler, "-shared", "-nostdlib", f"-Wl,-soname,{path.name}", "-x", "c", os.devnull, "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TargetError(f"cannot link with {compiler}: {done.stderr.strip().splitlines()[-1]}")
    return path
