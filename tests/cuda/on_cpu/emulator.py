"""Runs generated CUDA C on the CPU: compiled by g++ with `cuda.h`, threads as fibers in random order (`fibers.h`)."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from flexcomp.compiler.cuda_code import CudaCode
from flexcomp.program import Launch
from flexcomp.schedules.cuda.arithmetic import PREAMBLE
from tests.kept import compiler, made

_HERE = Path(__file__).parent
_SHARED = re.compile(r"__shared__ alignas\(\d+\) (\w+) (\w+)\[(\d+)\];")
_BARRIER = re.compile(r"(?:__sync|fetch_)(threads|warp|commit|wait)(?:<(\d+)>)?\(\)")
_EXCHANGE = re.compile(r"(__shfl_xor_sync|tf32_multiply)\(")
_EXCHANGES = {"__shfl_xor_sync": "OnCpuShuffleXor", "tf32_multiply": "OnCpuMultiply"}
_FLAGS = ("-std=c++20", "-O1", "-w", "-fPIC", "-shared", "-fno-strict-aliasing", "-mf16c", "-mfma", "-x", "c++")
# Mapped memory and calls of launches. Errors come back as text.
_ENTRY = """
extern "C" void* OnCpuAllocate(size_t nbytes) { return new on_cpu::Guarded(nbytes); }
extern "C" void* OnCpuData(void* memory) { return static_cast<on_cpu::Guarded*>(memory)->data(); }
extern "C" bool OnCpuFree(void* memory) {
  std::unique_ptr<on_cpu::Guarded> owned(static_cast<on_cpu::Guarded*>(memory));
  return owned->IsEndIntact();
}
"""
_FUNCTION = """
extern "C" void OnCpu_{name}(void** taken, const unsigned* size, unsigned seed, int skipped, char* error) {{
  try {{
    const Dim grid = {{size[0], size[1], size[2]}}, block = {{size[3], size[4], size[5]}};
    on_cpu::Grid(grid, block, [&] {{ {name}({arguments}); }}, seed, skipped).Run();
  }} catch (const std::exception& failed) {{
    std::strncpy(error, failed.what(), 255);
  }}
}}
"""


class EmulationError(Exception):
    """A fault for which a GPU would report an error, or touch memory of others."""


class Emulator:
    """Kernels, compiled together; `run` may be called as often as one likes."""

    def __init__(self, codes: Mapping[str, CudaCode], folder: Path) -> None:
        self._codes = dict(codes)
        self._barriers: dict[str, int] = {}
        parts = ['#include "cuda.h"', "#define __device__", "#define __forceinline__ inline", PREAMBLE, _ENTRY]
        for name, code in self._codes.items():
            text, self._barriers[name] = numbered(code.source)
            parts.append(text)
            parts += [_function(launch, text) for launch in code.launches]
        unit, library = "\n".join(parts), folder / "kernels.so"

        def make(path: Path) -> None:
            subprocess.run(["g++", *_FLAGS, f"-I{_HERE}", "-", "-o", str(path)], input=unit, text=True, check=True)

        # Each emulator has a copy, whose state is its own.
        shutil.copy(made(library.name, (unit, *_FLAGS, *sorted(_HERE.glob("*.h")), compiler()), make), library)
        self._library = ctypes.CDLL(str(library))
        self._library.OnCpuAllocate.restype = self._library.OnCpuData.restype = ctypes.c_void_p
        self._library.OnCpuFree.restype = ctypes.c_bool

    def barriers(self, name: str) -> int:
        """How many barriers the source of a kernel has, ends of groups of copies and waits for these too; of loops one each."""
        return self._barriers[name]

    def run(self, name: str, arguments: Sequence[np.ndarray | int], *, seed: int = 0, skipped: int = -1) -> list[np.ndarray]:
        """The contents of all buffers after a kernel; the arguments do not change.

        Threads run in an order that `seed` gives, without the barrier number `skipped`. EmulationError if they leave their
        buffers or wait for ever.
        """
        code = self._codes[name]
        assert code.integers == {i for i, argument in enumerate(arguments) if isinstance(argument, int)}
        count = int(arguments[max(code.integers)]) if code.integers else 0
        buffers = {i: _Buffer(self._library, a) for i, a in enumerate(arguments) if i not in code.integers}
        numbers = {i: ctypes.c_int64(arguments[i]) for i in code.integers}
        try:
            for launch in code.launches:
                taken = [ctypes.byref(numbers[i]) if i in numbers else ctypes.c_void_p(buffers[i].data) for i in launch.arguments]
                pointers = (ctypes.c_void_p * len(taken))(*(ctypes.cast(t, ctypes.c_void_p) for t in taken))
                size = [*(extent.of(count) for extent in launch.blocks), *launch.threads]
                error = ctypes.create_string_buffer(256)
                run = getattr(self._library, f"OnCpu_{launch.function}")
                run(pointers, (ctypes.c_uint * 6)(*size), ctypes.c_uint(seed), skipped, error)
                if error.value:
                    raise EmulationError(f"{launch.function}: {error.value.decode()}")
            results = [buffers[i].array() for i in sorted(buffers)]
        finally:
            intact = [buffer.free() for buffer in buffers.values()]
        if not all(intact):
            raise EmulationError(f"{name}: a thread writes behind the end of a buffer")
        return results


class _Buffer:
    """A copy of an array, with no accessible memory after its end."""

    def __init__(self, library: ctypes.CDLL, array: np.ndarray) -> None:
        self._library, self._like = library, array
        self._memory = ctypes.c_void_p(library.OnCpuAllocate(ctypes.c_size_t(array.nbytes)))
        self.data = library.OnCpuData(self._memory)
        ctypes.memmove(self.data, np.ascontiguousarray(array).ctypes.data, array.nbytes)

    def array(self) -> np.ndarray:
        result = np.empty(self._like.shape, self._like.dtype)
        ctypes.memmove(result.ctypes.data, self.data, result.nbytes)
        return result

    def free(self) -> bool:
        return self._library.OnCpuFree(self._memory)


def numbered(source: str) -> tuple[str, int]:
    """The source with numbered barriers, warp functions and shared arrays, and how many barriers there are.

    Barriers include those of warps, and instructions that end groups of copies or wait for these.
    """
    barriers, exchanges, arrays = iter(range(10**6)), iter(range(10**6)), iter(range(10**6))
    text = _BARRIER.sub(lambda m: f"ON_CPU_{m[1].upper()}({next(barriers)}{f', {m[2]}' if m[2] else ''})", source)
    text = _EXCHANGE.sub(lambda m: f"{_EXCHANGES[m[1]]}({next(exchanges)}, ", text)
    text = _SHARED.sub(lambda m: f"ON_CPU_SHARED({next(arrays)}, {m[1]}, {m[2]}, {m[3]});", text)
    assert "__shared__" not in text, "a shared array is declared in a way that the emulator does not know"
    return text, next(barriers)


def _function(launch: Launch, source: str) -> str:
    parameters = re.search(rf"\b{launch.function}\(([^)]*)\)", source)[1].split(",")
    types = [re.match(r"\s*(.*?)\s*(?:__restrict__)?\s*\w+\s*$", parameter)[1] for parameter in parameters]
    arguments = [f"({kind})taken[{i}]" if kind.endswith("*") else f"*({kind}*)taken[{i}]" for i, kind in enumerate(types)]
    return _FUNCTION.format(name=launch.function, arguments=", ".join(arguments))
