"""Everything at once on a build of the runtime with ThreadSanitizer.

    python -m tests.sanitize.everything --seconds 600 [--seed 1] [--pool]

Compiles the runtime, the kernels of the tiny network (tests/runtime/tiny.py) and `everything.cc` with -fsanitize=thread, once
for each state of their sources, and lets threads use sessions for so long. Prints how often each thing was done and how
many reports there were; the exit status is 1 if there was one, or an output or an error was wrong.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import numpy as np
import tvm_ffi

from flexcomp import runtime_ext
from flexcomp.program import signature
from flexcomp.program.program_bytes import PROGRAM_KIND
from flexcomp.program.weights_file import write_weights
from tests.by_hand import encode_program
from tests.kept import compiler, made
from tests.runtime import tiny

HERE = Path(__file__).parent
SOURCES = [Path(runtime_ext.__file__).parent / name for name in ("src", "pool")]
_FFI = Path(tvm_ffi.__file__).parent
_COMPILER = " ".join(
    (
        "g++ -std=c++20 -O1 -g1 -fsanitize=thread -fno-omit-frame-pointer -fPIC -fvisibility=hidden",
        "-Wall -Wno-tsan -D_FILE_OFFSET_BITS=64 -D_GNU_SOURCE",  # of fences, which tvm_ffi's headers hold
    )
)
_INCLUDES = " ".join(f"-I{folder}" for folder in runtime_ext.include_folders())
_REPORT = "WARNING: ThreadSanitizer"
_LAYERS = 4


def driver() -> Path:
    """The program, compiled unless that was done before."""
    runtime, pool = (sorted(folder.rglob("*.cc")) for folder in SOURCES)
    units = {"runtime": runtime, "pool": [*pool, HERE / "pooled.cc"], "everything": [HERE / "everything.cc"]}
    headers = [*runtime_ext.headers(), *sorted(HERE.glob("*.h"))]
    # It finds libtvm_ffi where this environment has it.

    def make(program: Path) -> None:
        objects = [program.with_name(f"{name}.o") for name in units]

        def compile_one(sources: list[Path], output: Path) -> None:
            command = f"{_COMPILER} {_INCLUDES} -isystem{_FFI / 'include'} -x c++ -c - -o".split()
            subprocess.run([*command, output], input=runtime_ext.joined(sources), text=True, check=True)

        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(compile_one, units.values(), objects))
        lib = _FFI / "lib"
        _call(_COMPILER, *objects, "-o", program, f"-L{lib}", "-ltvm_ffi", f"-Wl,-rpath,{lib}", "-ldl", "-pthread")

    return made("everything", (_COMPILER, str(_FFI), *chain(*units.values()), *headers, compiler()), make)


def run(folder: Path, seconds: float, seed: int, *, pool: bool = False) -> subprocess.CompletedProcess[str]:
    """Its files in `folder`; for so long. Reports are on standard error."""
    program = tiny.make_program(_LAYERS, "tsan_")
    random = np.random.default_rng(seed)
    matrices = (random.standard_normal((_LAYERS, tiny.N, tiny.N)) * np.sqrt(2 / tiny.N)).astype("f4")
    scale, x = (random.standard_normal(tiny.N).astype("f4") for _ in range(2))
    weights = folder / "tiny.weights"
    digest = write_weights(weights, tiny.weight_entries(matrices, scale), model="tiny")
    (folder / "program").write_bytes(encode_program(program, digest))
    x.tofile(folder / "x")
    tiny.Tiny(weights, program, digest, matrices, scale).reference(x).tofile(folder / "y")
    kernels = _kernels(program)
    command = ["setarch", "-R", driver(), folder / "program", kernels, weights, folder / "x", folder / "y", seconds, seed]
    if pool:
        (folder / "tiny.weights.other").write_bytes(weights.read_bytes())
        command.append(PROGRAM_KIND)
    environment = os.environ | {"TSAN_OPTIONS": "halt_on_error=0 exitcode=66 second_deadlock_stack=1"}
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, env=environment, timeout=seconds * 3 + 120
    )


def _kernels(program) -> Path:
    """The library of them, whose symbols say what they take."""
    symbols = {layer.kernel: signature.symbol(layer.kernel, signature.of_layer(layer)) for layer in program.layers}
    names = [f"-D{kernel.removeprefix('tsan_').upper()}=__tvm_ffi_{symbol}" for kernel, symbol in symbols.items()]
    source = HERE / "kernels.cc"

    def make(library: Path) -> None:
        _call(f"{_COMPILER} -shared -isystem{_FFI / 'include'}", *names, source, "-o", library)

    return made("kernels.so", (_COMPILER, *names, source, compiler()), make)


def _call(command: str, *args: object) -> None:
    subprocess.run([*command.split(), *map(str, args)], check=True)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pool", action="store_true", help="of a pool; an even SEED is for one lane, an odd one for two")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        done = run(Path(folder), arguments.seconds, arguments.seed, pool=arguments.pool)
    sys.stderr.write(done.stderr)
    print(done.stdout + f"reports: {done.stderr.count(_REPORT)}")
    return 1 if done.returncode or _REPORT in done.stderr else 0


if __name__ == "__main__":
    sys.exit(main())
