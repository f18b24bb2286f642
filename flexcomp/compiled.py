"""A compiled network in the compiler's process: printable, and exportable as two files."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm

from . import runtime_ext
from .artifact import PROGRAM_KIND, encode_program, write_weights
from .program import Program
from .target import CompileTarget


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
        """Write PATH, a self-contained shared library, and its weights beside it (suffix .weights)."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        digest = write_weights(
            path.with_suffix(".weights"), self.weights, model=self.program.model, data_nbytes=self.program.weights_nbytes
        )
        runtime_ext.register()
        create = tvm.get_global_func(f"{PROGRAM_KIND}.create")
        module = create(encode_program(self.program, digest))
        module.import_module(self.kernels)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            fresh = Path(folder) / path.name
            module.export_library(
                str(fresh), addons=[str(runtime_ext.runtime_object())], options=runtime_ext.link_options()
            )
            fresh.replace(path)
