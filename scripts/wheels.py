"""Makes the wheels flexcomp-runtime and flexcomp, for this machine's own use or for publishing.

    python -m scripts.wheels OUTPUT [--here]

Published wheels are compiled by zig, for glibc 2.28 or later, on x86-64 and on aarch64. With --here this machine's C++ compiler
makes them, for this machine. Run by the interpreter of an environment of `scripts/environment.sh`, with `ziglang` for zig.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scripts.split_wheel import split_wheel

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Print the names of the wheels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--here", action="store_true", help="for this machine, by this machine's C++ compiler")
    chosen = parser.parse_args()
    chosen.output.mkdir(parents=True, exist_ok=True)
    if chosen.here:
        print(*make(chosen.output, f"linux_{platform.machine()}"), sep="\n")
        return
    from flexcomp.compiler.zig import GLIBC, MACHINES

    for machine in MACHINES:
        tag = f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
        print(*make(chosen.output, tag, zig_settings(machine)), sep="\n", flush=True)


def make(output: Path, tag: str, settings: Sequence[str] = ()) -> tuple[Path, Path]:
    """Compile with scikit-build-core's `settings`; returns the wheels of the runtime and of the compiler."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
        options = [f"--config-settings={setting}" for setting in settings]
        subprocess.run([*command, "--no-build-isolation", *options, "--wheel-dir", scratch, str(ROOT)], check=True)
        (complete,) = Path(scratch).glob("flexcomp-*.whl")
        return split_wheel(complete, output, tag)


def zig_settings(machine: str) -> list[str]:
    """Settings of scikit-build-core for a build by zig, whose files lie in build/zig-MACHINE."""
    from flexcomp.compiler.zig import zig
    from flexcomp.packaging import LIBRARY, library_for

    folder = ROOT / "build" / f"zig-{machine}"
    compiler = zig(machine)
    if compiler is None:
        raise SystemExit("zig is missing: pip install ziglang, or make wheels for this machine with --here")
    defines = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": machine,
        "CMAKE_CXX_COMPILER": compiler,
        "CMAKE_CXX_FLAGS": "-g0",  # zig's own default is -g
        "CMAKE_EXE_LINKER_FLAGS": "-s",
        "CMAKE_SHARED_LINKER_FLAGS": "-s",
        "CMAKE_UNITY_BUILD": "ON",
        "CMAKE_UNITY_BUILD_BATCH_SIZE": "0",
        "FLEXCOMP_CXX_ARCHIVES": ";".join(["-Wl,--strip-debug", *cxx_archives(compiler)]),
        "FLEXCOMP_TVM_FFI_LIBRARY": library_for("apache-tvm-ffi", LIBRARY, machine),
    }
    settings = [f"cmake.define.{name}={value}" for name, value in defines.items()]
    return [f"build-dir={folder}/cmake", "install.strip=false", *settings]


def cxx_archives(compiler: str) -> list[str]:
    """zig's C++ library for a machine, as it links it into shared libraries."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [compiler, "-O2", "-shared", "-x", "c++", os.devnull, "-o", f"{scratch}/empty.so"]
        shown = os.environ | {"ZIG_VERBOSE_LINK": "1"}
        done = subprocess.run(command, env=shown, capture_output=True, text=True, check=True)
    link = shlex.split(done.stderr.splitlines()[-1])
    found = [word for word in link if word.endswith(("/libc++abi.a", "/libc++.a", "/libunwind.a"))]
    if len(found) != 3:
        raise SystemExit(f"zig does not show how it links a C++ library: {done.stderr}")
    return found


if __name__ == "__main__":
    main()
