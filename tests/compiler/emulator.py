"""Networks compiled for aarch64, run in an emulator."""

from __future__ import annotations

import shutil

import pytest

from flexcomp.packaging.device_files import device_files
from flexcomp.runtime import runner

SYSROOT = "/usr/aarch64-linux-gnu"
needs_emulator = pytest.mark.skipif(
    shutil.which("aarch64-linux-gnu-g++") is None or shutil.which("qemu-aarch64") is None,
    reason="needs aarch64-linux-gnu-g++ and qemu-aarch64: apt-get install g++-aarch64-linux-gnu qemu-user",
)


def emulated(*options: str) -> runner.Emulator:
    files = device_files("aarch64")
    folders = [str(path.parent) for path in files.values()]
    environment = f"LD_LIBRARY_PATH={':'.join([*folders, f'{SYSROOT}/lib'])}"
    return runner.Emulator(("qemu-aarch64", *options, "-L", SYSROOT, "-E", environment), files["flexcomp-run"])
