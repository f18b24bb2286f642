"""Machine code of kernels for GPUs: an object file for the target's CPU, in which a kernel is data."""

from __future__ import annotations

import hashlib
import inspect
from functools import cache
from pathlib import Path
from typing import Protocol

import tvm
import tvm_ffi
from tvm import tirx

from flexcomp.device import CompileTarget
from flexcomp.program import DeviceKernel, Image, Kind, device_kernel
from flexcomp.schedules.cuda import Architecture, architecture, arithmetic, emit, instructions

from . import cuda_code, data_object, nvcc
from .cuda_code import CudaCode

# As the loader of libraries looks for functions; the runtime looks for a kernel's data under the same name.
_PREFIX = "__tvm_ffi_"
_MAKER_MODULES = (cuda_code, data_object, nvcc, device_kernel, architecture, arithmetic, emit, instructions)
_MAKERS = tuple(Path(inspect.getfile(module)) for module in _MAKER_MODULES)


class Toolkit(Protocol):
    """A compiler of CUDA C to machine code."""

    def require(self, architecture: Architecture) -> None:
        """Raise TargetError for an architecture that this compiler lacks."""

    def version(self) -> str:
        """The key that tells its machine code from that of others."""

    def images(self, code: CudaCode, architecture: Architecture) -> tuple[Image, ...]:
        """Machine code of a kernel."""


def write_device_object(symbol: str, kernel: tirx.PrimFunc, target: CompileTarget, toolkit: Toolkit, path: Path) -> None:
    """Write an object file that defines `symbol`: the kernel's machine code, and its launches."""
    path.write_bytes(device_object(symbol, kernel, target, toolkit))


def device_object(symbol: str, kernel: tirx.PrimFunc, target: CompileTarget, toolkit: Toolkit) -> bytes:
    """That object file."""
    assert target.gpu is not None
    code = cuda_code.cuda_code(kernel, target.gpu)
    described = DeviceKernel(code.launches, code.integers, toolkit.images(code, target.gpu))
    return data_object.data_object(_PREFIX + symbol, device_kernel.encode(described), target)


def code_nbytes(code: bytes) -> int:
    """Bytes of machine code in such an object file, for its architecture."""
    kernel = device_kernel.decode(data_object.data_in(code))
    return sum(len(image.code) for image in kernel.images if image.kind == Kind.CUBIN)


@cache
def version(toolkit: str) -> str:
    """A hash of the code that makes such objects with a toolkit of that version."""
    tools = f"{tvm.__version__} {tvm_ffi.__version__} {toolkit}"
    sources = (Path(__file__), *_MAKERS)
    return hashlib.sha256(b"".join([tools.encode(), *(path.read_bytes() for path in sources)])).hexdigest()[:16]
