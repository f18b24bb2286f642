"""A compiled network in the compiler's process: printable, and exportable as two files."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm
from tvm.support import cc

from . import runtime_ext
from .artifact import PROGRAM_KIND, encode_program, write_weights
from .errors import InputError, TargetError
from .program import Program
from .target import CompileTarget

_SAME_MACHINE = {"arm64": "aarch64", "amd64": "x86_64"}  # other names of an architecture


@dataclass(frozen=True)
class Artifact:
    """What `build` returns: the program, its kernels and its weights."""

    program: Program
    kernels: tvm.runtime.Module
    weights: tuple[tuple[str, np.ndarray, int], ...]  # name, array, offset in the data section
    target: CompileTarget

    def summary(self) -> str:
        """Layers, kernels, slices, peak and predicted latency per rung, as text."""
        from .report import summary

        return summary(self.program)

    def export_library(self, path: str | os.PathLike[str]) -> None:
        """Write PATH, a self-contained shared library NAME.so, and its weights beside it, NAME.weights.

        Both appear only when both are complete. Raises InputError for another ending, and TargetError if the
        library cannot be linked: for want of a C++ compiler, or because it is for another kind of machine.
        """
        path = Path(path)
        if path.suffix != ".so":
            raise InputError(f"a library is called NAME.so, not {path.name}")
        _require_linker(self.target)
        path.parent.mkdir(parents=True, exist_ok=True)
        runtime_ext.register()
        create = tvm.get_global_func(f"{PROGRAM_KIND}.create")
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            library, weights = Path(folder) / path.name, Path(folder) / path.with_suffix(".weights").name
            digest = write_weights(
                weights, self.weights, model=self.program.model, data_nbytes=self.program.weights_nbytes
            )
            module = create(encode_program(self.program, digest))
            module.import_module(self.kernels)
            try:
                module.export_library(
                    str(library), addons=[str(runtime_ext.runtime_object())], options=runtime_ext.link_options()
                )
            except RuntimeError as error:
                raise TargetError(f"cannot link {path.name}: {_reason(error)}") from error
            weights.replace(path.with_suffix(".weights"))
            library.replace(path)


def _require_linker(target: CompileTarget) -> None:
    machine, here = (_SAME_MACHINE.get(name, name) for name in (target.triple.split("-")[0], platform.machine()))
    if machine != here:
        raise TargetError(f"the library is for {machine}; on this machine ({here}) only libraries for {here} can be linked")
    compiler = cc.get_cc()
    if compiler is None or shutil.which(compiler.split()[0]) is None:
        missing = "no C++ compiler is installed" if compiler is None else f"the C++ compiler {compiler} is missing"
        raise TargetError(f"cannot link a library: {missing}; on Debian: apt-get install g++ (or set CXX=...)")


def _reason(error: Exception) -> str:
    """The line of the linker's output that says most; TVM puts the whole output and the command into its error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and line != "Compilation error:"]
    return next((line for line in lines if "error" in line and not line.startswith("Command line")), lines[-1])
