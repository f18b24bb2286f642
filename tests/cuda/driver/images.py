"""Machine code for the GPU of tests: CUDA C compiled for the CPU, as `cuModuleLoadData` of `driver.cc` takes it."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from flexcomp.schedules.cuda.arithmetic import PREAMBLE
from tests.cuda.on_cpu import emulator

_HERE = Path(emulator.__file__).parent
# Modules are opened beside each other: none shares the state of another's grid.
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
def prepared_header() -> tempfile.TemporaryDirectory[str]:
    """A folder with `cuda.h`, compiled: reading it took three quarters of a small kernel's time.

    Processes that this one forks have it, too, if it was asked for before.
    """
    folder = tempfile.TemporaryDirectory()
    header = str(Path(folder.name) / "cuda.h.gch")
    subprocess.run(["g++", *_FLAGS, "-x", "c++-header", str(_HERE / "cuda.h"), "-o", header], check=True)
    return folder


def image(source: str, functions: Sequence[str]) -> bytes:
    """Device functions of some CUDA C, whose parameters are pointers and int64."""
    text, _ = emulator.numbered(source)
    parts = ['#include "cuda.h"', "#define __device__", "#define __forceinline__ inline", PREAMBLE, text]
    parts += [_function(name, text) for name in dict.fromkeys(functions)]
    with tempfile.TemporaryDirectory() as folder:
        unit, library = Path(folder) / "kernel.cc", Path(folder) / "kernel.so"
        unit.write_text("\n".join(parts))
        subprocess.run(["g++", *_FLAGS, "-shared", f"-I{prepared_header().name}", str(unit), "-o", str(library)], check=True)
        return library.read_bytes()


def as_ptx(code: bytes) -> bytes:
    """What `image` gives, as text that the driver compiles for whatever GPU there is."""
    return _PTX + code + b"\0"


def _function(name: str, source: str) -> str:
    parameters = re.search(rf"\b{name}\(([^)]*)\)", source)[1].split(",")
    types = [re.match(r"\s*(.*?)\s*(?:__restrict__)?\s*\w+\s*$", parameter)[1] for parameter in parameters]
    arguments = ", ".join(f"*({kind}*)taken[{i}]" for i, kind in enumerate(types))
    return _FUNCTION.format(name=name, count=len(types), arguments=arguments)
