"""Libraries that multiply in tiles of AMX ask the kernel for these, and say so where it refuses."""

from __future__ import annotations

import dataclasses
import errno
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from flexcomp.program.program_bytes import PROGRAM_KIND
from tests.by_hand import encode_program
from tests.kept import made

_OPEN = f"""
import sys
import tvm_ffi
from flexcomp import runtime_ext
runtime_ext.register()
library = tvm_ffi.load_module(sys.argv[1] + ".so")
module = tvm_ffi.get_global_func("{PROGRAM_KIND}.create")(open(sys.argv[2], "rb").read())
try:
    module.get_function("open")(sys.argv[1] + ".weights", '{{"library_path": "' + sys.argv[1] + '.so"}}').get_function("close")()
except RuntimeError as error:
    print(error.__tvm_ffi_error__.kind, error)
"""

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="AMX is of x86-64")


@pytest.fixture(scope="module")
def system() -> Path:
    source = Path(__file__).with_name("amx_system.c")
    compiled = lambda path: subprocess.run(["cc", "-shared", "-fPIC", "-o", path, source, "-ldl"], check=True)  # noqa: E731
    return made("amx_system.so", [source], compiled)


def opened(tiny, system: Path, folder: Path, features: tuple[str, ...], answer: int) -> str:
    """What opening a library that needs these features says."""
    (folder / "program").write_bytes(encode_program(dataclasses.replace(tiny.program, features=features), tiny.digest))
    env = os.environ | {"LD_PRELOAD": str(system), "AMX_ANSWER": str(answer)}
    command = [sys.executable, "-c", _OPEN, tiny.library.with_suffix(""), folder / "program"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


def test_tiles_are_asked_for(tiny, system, tmp_path):
    assert opened(tiny, system, tmp_path, ("amx_bf16", "amx_tile"), 0) == "asked for tiles\n"
    assert opened(tiny, system, tmp_path, ("fpu",), errno.EINVAL) == ""


def test_a_kernel_that_refuses_is_named(tiny, system, tmp_path):
    said = opened(tiny, system, tmp_path, ("amx_tile",), errno.EOPNOTSUPP)
    assert 'TargetError the library was compiled for "llvm" and multiplies in tiles of AMX, which the kernel refuses' in said
    assert "Operation not supported; Linux allows them from 5.16 on" in said
