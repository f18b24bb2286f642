"""Linking a library for its machine, which need not be this one."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tvm.support import cc

from flexcomp import runtime_ext
from flexcomp.cache import kept_file, trusted_folder
from flexcomp.device import CompileTarget
from flexcomp.errors import TargetError

from .zig import is_zig, zig

_log = logging.getLogger(__name__)
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
    """The linker for a target: `compiler`; this machine's, or a cross compiler called TRIPLE-g++; zig where that one is missing.

    For another machine a compiler makes the runtime from its sources on first use, kept in the user's cache; zig links the one of
    flexcomp's wheels. Raises TargetError if neither is there, naming the packages to install.
    """
    machine, here = _machines(target)
    command = command_for(target, compiler)
    _log.info("libraries for %s are linked by %s", machine, command)
    if machine == here and compiler is None:
        # gold would export a C++ library's functions that libtvm_ffi needs, too.
        fast = _fast(command) if runtime_ext.complete_object(here) is None else ()
        options = (*fast, *runtime_ext.link_options())
        return Linker(_for_target(command, target), runtime_ext.runtime_object(), options)
    folder = runtime_cache(command)
    complete = runtime_ext.complete_object(machine) if is_zig(command) else None
    runtime = complete or runtime_object_for(command)
    kept_file(folder, "libtvm_ffi.so", lambda scratch: _name_only_library(command, scratch / "libtvm_ffi.so"))
    # The stand-in for libtvm_ffi defines nothing, so the linker would drop the dependency.
    options = ("-Wl,--no-as-needed", *runtime_ext.link_options(folder, complete=complete is not None))
    return Linker(_for_target(command, target), runtime, options)


def command_for(target: CompileTarget, compiler: str | None = None) -> str:
    """The command that links, and compiles C, for a target: a compiler, or zig. Raises TargetError if there is none."""
    machine, here = _machines(target)
    found = cc.get_cc() if machine == here else shutil.which(f"{machine}-linux-gnu-g++")
    if found is None and compiler is None and runtime_ext.complete_object(machine) is not None:
        linker = zig(machine)
        if linker is None:
            package = "g++" if machine == here else f"g++-{machine}-linux-gnu".replace("_", "-")
            raise TargetError(
                f"cannot link a library: there is no C++ compiler for {machine}; pip install ziglang, or, on Debian, apt-get "
                f"install {package}, or name another compiler"
            )
        return linker
    return compiler_for(target, compiler)


def compiler_for(target: CompileTarget, compiler: str | None = None) -> str:
    """A compiler for a target, which knows binutils, as zig does not. Raises TargetError if there is none."""
    machine, here = _machines(target)
    if machine == here and compiler is None:
        return _require(cc.get_cc(), "g++")
    return cross_compiler(machine, compiler)


@functools.cache
def _fast(compiler: str) -> tuple[str, ...]:
    """Options for gold, where this compiler has gold, which takes a third of the time of GNU's other linker."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [*compiler.split(), _GOLD, "-shared", "-nostdlib", "-x", "c", os.devnull, "-o", f"{scratch}/trial.so"]
        done = subprocess.run(command, capture_output=True, check=False)
    return () if done.returncode else (_GOLD,)


def _for_target(command: str, target: CompileTarget) -> Callable:
    """A linker for TVM, which otherwise takes the machine of the build for the machine of the library."""
    return cc.cross_compiler(command, get_target_triple=lambda: target.triple)


def require_linker(target: CompileTarget, compiler: str | None = None) -> str | None:
    """Raise TargetError if `linker_for` would find no compiler, or one that cannot make a shared library.

    Returns a note for the user where zig takes the place of a missing compiler.
    """
    machine, here = _machines(target)
    command = command_for(target, compiler)
    links_only = is_zig(command)
    # Another machine's runtime is compiled from its sources, in C++20.
    is_own = links_only or (machine == here and compiler is None)
    source = "int flexcomp_trial;" if is_own else "#include <span>\nint flexcomp_trial;"
    with tempfile.TemporaryDirectory() as scratch:
        language = [] if is_own else ["-std=c++20"]
        language += ["-x", "c" if links_only else "c++"]
        trial = [*command.split(), *language, "-shared", "-fPIC", "-", "-o", f"{scratch}/trial.so"]
        done = subprocess.run(trial, input=source, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it gives no reason"])[-1]
        raise TargetError(f"the C++ compiler {command} cannot make a shared library: {reason}")
    return f"zig links the library: there is no C++ compiler for {machine}" if links_only else None


def _machines(target: CompileTarget) -> tuple[str, str]:
    """The target's, and this one."""
    machine, here = (_SAME_MACHINE.get(name, name) for name in (target.triple.split("-")[0], platform.machine()))
    return machine, here


def cross_compiler(machine: str, compiler: str | None = None) -> str:
    """`compiler`, or the one that Debian calls MACHINE-linux-gnu-g++; TargetError if missing."""
    wanted = f"{machine}-linux-gnu-g++" if compiler is None else compiler
    return _require(wanted, f"g++-{machine}-linux-gnu".replace("_", "-"))


def _require(compiler: str | None, package: str) -> str:
    if compiler is None or not compiler.split() or shutil.which(compiler.split()[0]) is None:
        named = f"the C++ compiler {compiler or 'without a name'} is missing"
        missing = "no C++ compiler is installed" if compiler is None else named
        raise TargetError(f"cannot link a library: {missing}; on Debian: apt-get install {package}, or name another one")
    return compiler


def runtime_cache(compiler: str) -> Path:
    """A folder for this compiler's objects of the runtime's sources."""
    return cache_for("runtime", " ".join([compiler, *own_flags()]), runtime_ext.sources())


def runtime_object_for(compiler: str) -> Path:
    """The runtime's object by another compiler, made at the first use. Raises TargetError."""

    def build(scratch: Path) -> Path:
        with compiled("the runtime", compiler):
            return runtime_ext.build_runtime_object(compiler, scratch / "flexcomp_runtime.o", own_flags())

    return kept_file(runtime_cache(compiler), "flexcomp_runtime.o", build)


def cache_for(what: str, compiler: str, sources: Iterable[Path]) -> Path:
    """A folder for this compiler's objects of these sources, by its options."""
    identity = hashlib.sha256(compiler_version(compiler).encode())
    for source in sources:
        identity.update(source.read_bytes())
    return trusted_folder(f"{what}-{identity.hexdigest()[:16]}")


@functools.cache
def compiler_version(compiler: str) -> str:
    """The command, and what the compiler says of itself."""
    asked = subprocess.run([compiler.split()[0], "--version"], capture_output=True, text=True, check=False)
    if asked.returncode:
        raise TargetError(f"{compiler.split()[0]} is no C++ compiler: it does not understand --version")
    return f"{compiler}\n{asked.stdout}"


def own_flags() -> list[str]:
    """Further options for C++ of flexcomp's own, from FLEXCOMP_CXXFLAGS: sanitizers, or less optimising."""
    return os.environ.get("FLEXCOMP_CXXFLAGS", "").split()


@contextmanager
def compiled(what: str, compiler: str) -> Iterator[None]:
    """Turn a compiler's error into TargetError with its reason."""
    try:
        yield
    except RuntimeError as error:  # the command, and its output
        lines = [line for line in str(error).splitlines() if "error" in line] or str(error).splitlines()
        raise TargetError(f"cannot compile {what} with {compiler}: {lines[0].strip()}") from error


def _name_only_library(compiler: str, path: Path) -> Path:
    """A library without contents: linking with this one makes a model ask for libtvm_ffi on the device."""
    command = [compiler, "-shared", "-nostdlib", f"-Wl,-soname,{path.name}", "-x", "c", os.devnull, "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TargetError(f"cannot link with {compiler}: {done.stderr.strip().splitlines()[-1]}")
    return path
