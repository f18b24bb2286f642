"""The tiny network of tests/runtime for a GPU: the same program, with kernels in CUDA C by hand."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi

from flexcomp import runtime_ext
from flexcomp.compiler.machine_code import signature_of
from flexcomp.program import CUDA, DeviceKernel, Extent, Image, Kind, Launch, Program, device_kernel
from flexcomp.program.program_bytes import PROGRAM_KIND
from flexcomp.program.signature import symbol
from flexcomp.program.weights_file import write_weights
from flexcomp.runtime import MINIMUM, note_minimum
from tests.by_hand import encode_program
from tests.cuda.driver.images import as_ptx, image
from tests.runtime import tiny

THREADS = 32
_HEAD = 'extern "C" __global__ void '
_SOURCES = {
    "mv": _HEAD + """mv(float* x, float* w, int64_t first, int64_t count, float* y) {
  float sum = 0;
  for (int k = 0; k < 256; ++k) sum += (x[k] > 0 ? x[k] : 0) * w[(blockIdx.x * 256 + k) * 32 + threadIdx.x];
  y[(first + blockIdx.x) * 32 + threadIdx.x] = sum;
}""",
    "mul": _HEAD + """mul(float* x, float* w, float* y) {
  const int i = blockIdx.x * 32 + threadIdx.x;
  y[i] = x[i] * w[i];
}""",
    "halve_add": _HEAD + """halve(float* a, float* s) {
  const int i = blockIdx.x * 32 + threadIdx.x;
  s[i] = a[i] * 0.5f;
}
""" + _HEAD + """add(float* b, float* y, float* s) {
  const int i = blockIdx.x * 32 + threadIdx.x;
  y[i] = s[i] + b[i];
}""",
}  # fmt: skip
_ONE, _EIGHT = Extent(1), Extent(8)


def _launch(function: str, arguments: tuple[int, ...], blocks: Extent = _EIGHT) -> Launch:
    return Launch(function, arguments, (blocks, _ONE, _ONE), (THREADS, 1, 1))


_LAUNCHES = {
    "mv": (_launch("mv", (0, 1, 2, 3, 4), Extent(0, 1)),),
    "mul": (_launch("mul", (0, 1, 2)),),
    "halve_add": (_launch("halve", (0, 3)), _launch("add", (1, 2, 3))),
}


def device_kernels(architecture: int = 80) -> dict[str, DeviceKernel]:
    """The three kernels by name."""
    return {
        name: DeviceKernel(
            launches,
            frozenset({2, 3}) if name == "mv" else frozenset(),
            (Image(architecture, Kind.CUBIN, image(_SOURCES[name], [launch.function for launch in launches])),),
        )
        for name, launches in _LAUNCHES.items()
    }


def with_ptx(kernels: Mapping[str, DeviceKernel]) -> dict[str, DeviceKernel]:
    """The kernels, with PTX next to their machine code."""

    def both(kernel: DeviceKernel) -> DeviceKernel:
        (cubin,) = kernel.images
        return replace(kernel, images=(cubin, Image(cubin.architecture, Kind.PTX, as_ptx(cubin.code))))

    return {name: both(kernel) for name, kernel in kernels.items()}


def data_object(folder: Path, symbols: Mapping[str, bytes]) -> Path:
    """An object file with these bytes at these symbols."""
    lines = [".section .rodata"]
    for number, (name, data) in enumerate(symbols.items()):
        (folder / f"{number}.bin").write_bytes(data)
        lines += [".balign 64", f".globl {name}", f".type {name}, @object", f".size {name}, {len(data)}", f"{name}:"]
        lines.append(f'.incbin "{folder / f"{number}.bin"}"')
    lines.append('.section .note.GNU-stack,"",@progbits')
    source, target = folder / "kernels.s", folder / "kernels.o"
    source.write_text("\n".join(lines) + "\n")
    subprocess.run(["g++", "-c", str(source), "-o", str(target)], check=True)
    return target


def export(
    library: Path,
    prefix: str = "",
    layers: int = 6,
    *,
    kernels: Mapping[str, DeviceKernel | bytes] | None = None,
    plan: Callable[[Program], Program] = lambda program: program,
) -> tiny.Tiny:
    """Write `library` and its weights file; `plan` changes the program."""
    rng = np.random.default_rng(0)
    matrices = (rng.standard_normal((layers, tiny.N, tiny.N)) * np.sqrt(2 / tiny.N)).astype("f4")
    scale = rng.standard_normal(tiny.N).astype("f4")
    minimum = note_minimum("mv0", {"activations": 3072, "weights": tiny.SLICE_NBYTES, "scratch": 0})
    program = replace(plan(tiny.make_program(layers, prefix, {MINIMUM: minimum})), space=CUDA, target="cuda -arch=sm_80")
    digest = write_weights(library.with_suffix(".weights"), tiny.weight_entries(matrices, scale), model="tiny")
    encoded = {
        name: kernel if isinstance(kernel, bytes) else device_kernel.encode(kernel)
        for name, kernel in (kernels or device_kernels()).items()
    }
    symbols = {symbol(prefix + name, signature_of(func)): encoded[name] for name, func in tiny.functions().items()}
    code = data_object(library.parent, {f"__tvm_ffi_{name}": data for name, data in symbols.items()})
    runtime_ext.register()
    module = tvm_ffi.get_global_func(PROGRAM_KIND + ".create")(encode_program(program, digest))
    module.import_module(tvm.runtime.load_static_library(str(code), [f"__tvm_ffi_{name}" for name in symbols]))
    module.export_library(str(library), addons=[str(runtime_ext.runtime_object())], options=runtime_ext.link_options())
    return tiny.Tiny(library, program, digest, matrices, scale)
