"""A compiled network in the compiler's process: printable, and exportable as two files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import tvm

from flexcomp import runtime_ext
from flexcomp.arguments import checked_path, checked_text
from flexcomp.deferred import Array
from flexcomp.device import CompileTarget
from flexcomp.errors import InputError, TargetError
from flexcomp.files import beside
from flexcomp.program import PROGRAM_KIND, Program, WeightsDigest, encode_shapes, write_weights
from flexcomp.report import Progress, describe
from flexcomp.runtime import Session, ladder_html, load
from flexcomp.units import enough

from .linked_object import network_symbol, write_object
from .linker import compiler_for, linker_for
from .machine_code import static_library


@dataclass(frozen=True, repr=False)
class Artifact:
    """The result of `build`: the program, its kernels and its weights."""

    program: Program  # of the only shape, or of the largest
    kernels: dict[str, bytes]  # object files by symbol
    weights: tuple[tuple[str, Array, int], ...]  # name, array, offset in the data section
    target: CompileTarget
    others: tuple[Program, ...] = ()  # for smaller shapes of the inputs, on the same weights
    _linked: list[bytes] = field(default_factory=list, init=False, compare=False)  # the library of sessions, after the first one

    @property
    def programs(self) -> tuple[Program, ...]:
        """The program of each shape, the largest shape first."""
        return (self.program, *self.others)

    def summary(self) -> str:
        """Layers, kernels and slices, and peak and predicted latency of every plan, as text."""
        from flexcomp.report import summary

        return summary(self.program)

    def __repr__(self) -> str:
        first, *_, last = self.program.rungs[:1] + self.program.rungs
        return (
            f"<Artifact {self.program.model}: {len(self.program.layers)} layers, {len(self.program.rungs)} plans from "
            f"{enough(first.budget)} ({first.predicted_ms:.1f} ms predicted) to {enough(last.budget)} "
            f"({last.predicted_ms:.1f} ms){f', the largest of {len(self.programs)} shapes' * bool(self.others)}>"
        )

    def _repr_html_(self) -> str:
        return ladder_html(f"{self.program.model}: plans for {self.program.target}", describe(self.program)["ladder"])

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise InputError("an artifact cannot be pickled or copied: export_library writes it, and flexcomp.load opens it")

    def session(
        self,
        budget: int | float | str | None = None,
        threads: int | None = None,
        *,
        folder: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Session:
        """Open a session in this process, without a library to keep. Arguments and errors are those of `flexcomp.load`.

        The library and its weights are written to a new folder inside `folder` (None: where temporary files go), and vanish with
        the session. In a file system in memory, weights take memory besides the budget: give a folder on a disk.
        """
        if folder is not None:
            folder = checked_path(folder, "folder")
        with tempfile.TemporaryDirectory(prefix="flexcomp-", dir=folder) as place:
            library = Path(place) / "model.so"
            if self._linked:
                self.write_weights(library.with_suffix(".weights"))
                library.write_bytes(self._linked[0])
            else:
                self.export_library(library)
                self._linked.append(library.read_bytes())
            return load(library, budget, threads, **options)

    def export_library(
        self,
        path: str | os.PathLike[str],
        compiler: str | None = None,
        *,
        progress: Progress = lambda phase, done, total: None,
    ) -> None:
        """Write the library `path`, NAME.so, and its weights, NAME.weights, into the same folder.

        NAME.o is an object file for a program in C, which calls `flexcomp_open_linked`. Libraries for other machines are linked
        by the cross compiler TRIPLE-g++, or by `compiler`. Both files appear only when both are complete. `progress` is called as
        for `flexcomp.build`, while the weights are packed.

        Raises InputError for another ending, and TargetError if the library cannot be linked, mostly because that compiler is
        missing.
        """
        path = checked_path(path, "the library")
        link = self._linking(path, compiler)
        with beside(path) as folder:
            library, weights = folder / path.name, folder / path.with_suffix(".weights").name
            link(library, self.write_weights(weights, progress))
            weights.replace(path.with_suffix(".weights"))
            library.replace(path)

    def write_weights(
        self, path: str | os.PathLike[str], progress: Progress = lambda phase, done, total: None
    ) -> WeightsDigest:
        """Write the weights file alone. Every library for this file needs the result."""
        return write_weights(
            path, self.weights, model=self.program.model, data_nbytes=self.program.weights_nbytes,
            report=lambda done, total: progress("writing", done, total),
        )  # fmt: skip

    def write_library(self, path: str | os.PathLike[str], weights: WeightsDigest, compiler: str | None = None) -> None:
        """Write the library alone, for a weights file that this artifact, or another one with the same weights, wrote.

        Raises the errors of `export_library`.
        """
        path = checked_path(path, "the library")
        link = self._linking(path, compiler)
        with beside(path) as folder:
            library = folder / path.name
            link(library, weights)
            library.replace(path)

    def _linking(self, path: Path, compiler: str | None) -> Callable[[Path, WeightsDigest], None]:
        """What writes a file called so; errors come before the work."""
        compiler = None if compiler is None else checked_text(compiler, "compiler")
        if path.suffix == ".so":
            linker = linker_for(self.target, compiler)

            def link(library: Path, weights: WeightsDigest) -> None:
                module = _checked(encode_shapes(self.programs, weights))
                for symbol, code in sorted(self.kernels.items()):
                    module.import_module(static_library(symbol, code, library.parent))
                options = linker.options_for(library.name)
                try:
                    module.export_library(str(library), fcompile=linker.compile, addons=[str(linker.runtime)], options=options)
                except RuntimeError as error:
                    raise TargetError(f"cannot link {library.name}: {_reason(error)}") from error

            return link
        if path.suffix != ".o":
            raise InputError(f"a library is called NAME.so, or NAME.o for a program in C, not {path.name}")
        if self.target.gpu is not None:
            raise TargetError("networks for GPUs cannot be linked with a program: write NAME.so")
        network_symbol(path)
        command = compiler_for(self.target, compiler)

        def write(library: Path, weights: WeightsDigest) -> None:
            program = encode_shapes(self.programs, weights)
            _checked(program)
            write_object(library, program, self.kernels, command)

        return write


def _checked(program: bytes) -> tvm.runtime.Module:
    return runtime_ext.function(f"{PROGRAM_KIND}.create")(program)


def _reason(error: Exception) -> str:
    """The line of the linker's output that says most; TVM puts the whole output and the command into its error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and line != "Compilation error:"]
    return next((line for line in lines if "error" in line and not line.startswith("Command line")), lines[-1])
