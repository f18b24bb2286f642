"""The compiler for the GPU of tests, in the place of nvcc."""

from __future__ import annotations

from pathlib import Path

import onnx

from flexcomp.compiler.builder import prepare_shapes
from flexcomp.compiler.cuda_code import CudaCode
from flexcomp.compiler.kernel_compiler import KernelCompiler
from flexcomp.compiler.options import Request, options_of
from flexcomp.compiler.prepared import artifact_of_shapes
from flexcomp.program import Image, Kind
from flexcomp.runtime import parse_budget
from flexcomp.schedules.cuda import Architecture
from tests.cuda.driver.images import image, prepared_header


class Emulated:
    """Kernels that the emulator runs."""

    def require(self, architecture: Architecture) -> None:
        """It makes code for all of them, in processes that are forked from this one."""
        prepared_header()

    def version(self) -> str:
        return "emulated"

    def images(self, code: CudaCode, architecture: Architecture) -> tuple[Image, ...]:
        functions = [launch.function for launch in code.launches]
        return (Image(int(architecture.name.removeprefix("sm_")), Kind.CUBIN, image(code.source, functions)),)


def build(model: onnx.ModelProto, target: str, library: Path, **options: object) -> Path:
    """The library of a network, by the way of `flexcomp.build`."""
    with KernelCompiler(None, Emulated()) as compiler:
        prepared = prepare_shapes(model, target, options_of(**options), compiler=compiler)
        artifact_of_shapes(prepared, Request(parse_budget("min")), lambda *_: None).export_library(library)
    return library
