"""Makes the wheels flexcomp-runtime and flexcomp, for this machine's own use or for publishing.

    python -m scripts.wheels OUTPUT [--here]

Published wheels, for x86-64 and aarch64, work with glibc 2.28 or later: g++ compiles, and zig links with the older glibc. Their
C++ library is static. Needs on Debian g++ and g++-aarch64-linux-gnu, and `ziglang` from PyPI in the environment of
`scripts/environment.sh` whose interpreter runs this. With --here this machine's C++ compiler makes wheels for this machine.
"""

from __future__ import annotations

import argparse
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.split_wheel import split_wheel

ROOT = Path(__file__).resolve().parent.parent
RUNTIME_EXT = ROOT / "runtime_ext"
# Of libgcc_s, which libtvm_ffi needs, too: exceptions pass through both.
_UNWINDER = (
    "Backtrace DeleteException FindEnclosingFunction GetCFA GetDataRelBase GetIP GetIPInfo GetLanguageSpecificData "
    "GetRegionStart GetTextRelBase RaiseException Resume Resume_or_Rethrow SetGR SetIP"
)


def main() -> None:
    """Print the names of the wheels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--here", action="store_true", help="for this machine, by this machine's C++ compiler")
    chosen = parser.parse_args()
    chosen.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        if chosen.here:
            print(*split_wheel(complete_wheel(Path(scratch)), chosen.output, f"linux_{platform.machine()}"), sep="\n")
        else:
            publish(chosen.output, Path(scratch))


def publish(output: Path, scratch: Path) -> None:
    """Make the wheels for every machine; flexcomp's bring what links for the other machines."""
    from flexcomp.compiler.zig import GLIBC, MACHINES

    wheels = {machine: complete_wheel(scratch / machine, settings(machine)) for machine in MACHINES}
    for machine, wheel in wheels.items():
        others = {other: made for other, made in wheels.items() if other != machine}
        tag = f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
        print(*split_wheel(wheel, output, tag, others), sep="\n")


def complete_wheel(folder: Path, defines: Mapping[str, object] | None = None) -> Path:
    """The wheel that `pip wheel` makes with CMake's definitions of `settings`, in a new folder."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    options = [f"--config-settings=cmake.define.{name}={value}" for name, value in (defines or {}).items()]
    if defines is not None:
        compiler = Path(str(defines["CMAKE_CXX_COMPILER"]))
        options += [f"--config-settings=build-dir={compiler.parent}/cmake", "--config-settings=install.strip=false"]
    subprocess.run([*command, "--no-build-isolation", *options, "--wheel-dir", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("flexcomp-*.whl")
    return wheel


def build_folder(machine: str) -> Path:
    """Where the files of a machine's build are kept."""
    return ROOT / "build" / f"wheels-{machine}"


def settings(machine: str) -> dict[str, object]:
    """CMake's definitions for a build by g++ and zig."""
    from flexcomp.packaging import LIBRARY, library_for

    folder = build_folder(machine)
    folder.mkdir(parents=True, exist_ok=True)
    compiler = f"{machine}-linux-gnu-g++"
    if shutil.which(compiler) is None:
        raise SystemExit(f"{compiler} is missing")
    asked = ("-print-file-name=libstdc++.a", "-print-libgcc-file-name")
    archives = [subprocess.run([compiler, ask], capture_output=True, text=True, check=True).stdout.strip() for ask in asked]
    cxx_library = [str(folder / "complete.o"), *archives]
    subprocess.run([compiler, "-O2", "-fPIC", "-c", str(RUNTIME_EXT / "cmake/complete.cc"), "-o", cxx_library[0]], check=True)
    return {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": machine,
        "CMAKE_CXX_COMPILER": driver(folder, machine, compiler, cxx_library),
        "CMAKE_UNITY_BUILD": "ON",
        "CMAKE_UNITY_BUILD_BATCH_SIZE": "0",
        "FLEXCOMP_CXX_LIBRARY": ";".join(cxx_library),
        "FLEXCOMP_TVM_FFI_LIBRARY": library_for("apache-tvm-ffi", LIBRARY, machine),
    }


def driver(folder: Path, machine: str, compiler: str, cxx_library: Sequence[str]) -> Path:
    """A compiler for CMake: g++, but zig where a program or a library is linked."""
    from flexcomp.compiler.zig import zig

    linker = zig(machine)
    if linker is None:
        raise SystemExit("zig is missing: pip install ziglang, or make wheels for this machine with --here")
    unwinder = folder / "libgcc_s.so.1"
    source = "".join(f"void _Unwind_{name}(void) {{}}\n" for name in _UNWINDER.split())
    command = [linker, "-shared", "-nostdlib", f"-Wl,-soname,{unwinder.name}", "-x", "c", "-", "-o", str(unwinder)]
    subprocess.run(command, input=source, text=True, check=True)
    (folder / "local.map").write_text("{ global: Flexcomp*; local: *; };\n")
    path = folder / compiler
    path.write_text(f"""#!/bin/sh
map=-Wl,--version-script,{shlex.quote(str(folder / "local.map"))}
for word; do
    case $word in
    -c | -E | -r | -v | --version) exec {compiler} "$@" ;;
    *--version-script*) map= ;;
    esac
done
exec {shlex.quote(linker)} "$@" $map {shlex.join([*cxx_library, str(unwinder)])} -lm -lpthread -ldl -Wl,-z,defs -s
""")
    path.chmod(0o700)
    return path


if __name__ == "__main__":
    main()
