"""Libraries for another machine: linked here with a cross compiler, run under an emulator."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import flexcomp
from flexcomp import runtime_ext

from .test_build import network

COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = "qemu-aarch64"
SYSROOT = Path("/usr/aarch64-linux-gnu")

pytestmark = pytest.mark.skipif(
    shutil.which(COMPILER) is None or shutil.which(EMULATOR) is None,
    reason=f"needs {COMPILER} and {EMULATOR}: apt-get install g++-aarch64-linux-gnu qemu-user",
)


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("aarch64") / "tiny.so"
    flexcomp.build(network(), target="llvm -mtriple=aarch64", budget="500kB").export_library(path)
    return path


@pytest.fixture(scope="module")
def device(tmp_path_factory) -> Path:
    """What a device has: the runner, and libtvm_ffi out of the wheel for its architecture."""
    folder = tmp_path_factory.mktemp("device")
    version = subprocess.run(
        [sys.executable, "-c", "import importlib.metadata as m; print(m.version('apache-tvm-ffi'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder,
         "--platform", "manylinux_2_28_aarch64", "--python-version", "3.11", f"apache-tvm-ffi=={version}"],
        check=True,
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/libtvm_ffi.so"))
        (folder / "libtvm_ffi.so").write_bytes(archive.read(name))
    from tvm_ffi.libinfo import find_include_path

    sources = sorted((Path(runtime_ext.__file__).parent / "runner").glob("*.cc"))
    subprocess.run(
        [COMPILER, "-std=c++20", "-O1", f"-I{find_include_path()}", *sources, "-o", folder / "flexcomp-run",
         f"-L{folder}", "-ltvm_ffi", "-lpthread"],
        check=True,
    )  # fmt: skip
    return folder


def test_the_library_is_for_the_device_and_asks_for_libtvm_ffi(library):
    text = subprocess.run(["readelf", "-h", "-d", library], capture_output=True, text=True, check=True).stdout
    assert "AArch64" in text and "[libtvm_ffi.so]" in text


@pytest.mark.parametrize("budget", ["min", "500kB", "1.0"])
def test_it_computes_the_same_there(library, device, budget, tmp_path):
    x = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype("f4")
    np.save(tmp_path / "x.npy", x)
    command = [EMULATOR, "-L", SYSROOT, "-E", f"LD_LIBRARY_PATH={device}:{SYSROOT}/lib", device / "flexcomp-run"]
    arguments = [library, "--budget", budget, "--input", f"x={tmp_path / 'x.npy'}", "--output-dir", tmp_path / "out"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["arena_bytes"] <= facts["budget_bytes"]
    expected = onnxruntime.InferenceSession(network().SerializeToString()).run(None, {"x": x})[0]
    (output,) = (tmp_path / "out").glob("*.npy")
    np.testing.assert_allclose(np.load(output), expected, atol=1e-5 * abs(expected).max())


def test_a_missing_cross_compiler_is_named(tmp_path):
    artifact = flexcomp.build(network(), target="llvm -mtriple=aarch64")
    with pytest.raises(flexcomp.TargetError, match=r"no-such-g\+\+ is missing.*apt-get install g\+\+-aarch64-linux-gnu"):
        artifact.export_library(tmp_path / "tiny.so", compiler="no-such-g++")
