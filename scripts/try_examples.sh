#!/usr/bin/env bash
# Cross-compiles the C interface and the examples in C and C++ for aarch64, and runs them in an emulator.
#
#   scripts/try_examples.sh VENV FOLDER
#
# FOLDER keeps what is compiled, which takes some minutes the first time. Needs on Debian g++-aarch64-linux-gnu, qemu-user and pkg-config.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=$(realpath --no-symlinks "$1")/bin/python
mkdir -p "$2"
cd "$2"

library=$("$python" -c 'from flexcomp.packaging.device_files import LIBRARY, library_for
print(library_for("apache-tvm-ffi", LIBRARY, "aarch64"))')
cmake -S "$root/runtime_ext" -B build -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ -DPython_EXECUTABLE="$python" -DFLEXCOMP_TVM_FFI_LIBRARY="$library" >/dev/null
cmake --build build --parallel "$(nproc)" >/dev/null
cmake --install build --prefix prefix >/dev/null

PYTHONPATH=$root "$python" - <<'END'
import numpy as np

import flexcomp
from tests.cli.conftest import tiny_network

picture = np.random.default_rng(2).standard_normal((1, 3, 32, 32)).astype("f4")
picture.tofile("picture")
flexcomp.build(tiny_network(), threads=1, target="aarch64").export_library("tiny.so")
flexcomp.build(tiny_network(), threads=1).export_library("here.so")
with flexcomp.load("here.so") as session:
    print(f"class {int(np.argmax(session(picture)))}", file=open("expected", "w"))
END

read -ra flags <<<"$(PKG_CONFIG_PATH=prefix/lib/pkgconfig pkg-config --cflags --libs flexcomp)"
aarch64-linux-gnu-gcc -std=c11 "$root/examples/c/classify.c" "${flags[@]}" -o classify
for example in camera pool; do
    aarch64-linux-gnu-g++ -std=c++17 "$root/examples/cpp/$example.cc" "${flags[@]}" -o $example
done

try() { # PROGRAM ARGUMENTS: prints the class that Python finds here
    local lines
    lines=$(qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=prefix/lib "./$@")
    printf '%s: %s\n' "$1" "$lines"
    grep -qw "$(cat expected)" <<<"$lines" || { echo "error: not $(cat expected)" >&2; exit 1; }
}
try classify tiny.so picture
try camera tiny.so picture 2
try pool 2000000 tiny.so tiny.so picture
