"""Machine code for the GPU of tests: CUDA C compiled for the CPU, as `cuModuleLoadData` of `driver.cc` takes it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from flexcomp.schedules.cuda.arithmetic import PREAMBLE
from tests.cuda.on_cpu import emulator
from tests.kept import compiler, made

_HERE = Path(emulator.__file__).parent
# Modules are open at the same time: none shares the state of another's grid.
_FLAGS = ("-std=c++20", "-O1", "-w", "-fPIC", "-fno-gnu-unique", "-fno-strict-aliasing", "-mf16c", "-mfma")
_PTX = b"// PTX \n"  # which is not code of one architecture
_FUNCTION = """
extern "C" {{ extern const unsigned OnDeviceParameters_{name} = {count}; }}
extern "C" void OnDevice_{name}(void** taken, const unsigned* size, unsigned seed, char* error) {{
  try {{
    const Dim grid = {{size[0], size[1], size[2]}}, block = {{size[3], size[4], size[5]}};
    on_cpu::Grid(grid, block, [&] {{ {name}({arguments}); }}, seed, -1).Run();
  }} catch (const std::exception& failed) {{
    std::strncpy(error, failed.what(), 255);
  }}
}}
"""


@cache
def prepared_header() -> Path:
    """A folder with `cuda.h`, compiled: reading it took three quarters of a small kernel's time."""

    def make(header: Path) -> None:
        subprocess.run(["g++", *_FLAGS, "-x", "c++-header", str(_HERE / "cuda.h"), "-o", str(header)], check=True)

    return made("cuda.h.gch", _of(), make).parent


def _of(*parts: str) -> tuple[str | Path, ...]:
    """The parts of machine code."""
    return (*parts, *_FLAGS, *sorted(_HERE.glob("*.h")), compiler())


def image(source: str, functions: Sequence[str]) -> bytes:
    """Device functions of some CUDA C, whose parameters are pointers and int64."""
    text, _ = emulator.numbered(source)
    parts = ['#include "cuda.h"', "#define __device__", "#define __forceinline__ inline", PREAMBLE, text]
    parts += [_function(name, text) for name in dict.fromkeys(functions)]
    unit = "\n".join(parts)

    def make(library: Path) -> None:
        command = ["g++", *_FLAGS, "-shared", f"-I{prepared_header()}", "-x", "c++", "-", "-o", str(library)]
        subprocess.run(command, input=unit, text=True, check=True)

    return made("kernel.so", _of(unit), make).read_bytes()


def as_ptx(code: bytes) -> bytes:
    """The result of `image`, as text that the driver compiles for any GPU."""
    return _PTX + code + b"\0"


def _function(name: str, source: str) -> str:
    parameters = re.search(rf"\b{name}\(([^)]*)\)", source)[1].split(",")
    types = [re.match(r"\s*(.*?)\s*(?:__restrict__)?\s*\w+\s*$", parameter)[1] for parameter in parameters]
    arguments = ", ".join(f"*({kind}*)taken[{i}]" for i, kind in enumerate(types))
    return _FUNCTION.format(name=name, count=len(types), arguments=arguments)
