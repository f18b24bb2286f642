"""Libraries for another machine: linked here with a cross compiler, run under an emulator."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import flexcomp
from flexcomp.compiler import linker_for
from flexcomp.device import resolve_target
from flexcomp.packaging.package import package
from tests.exporters.genai import Form, decoder, greedy

from .small import network
from .written import Written, built

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
def device(library, tmp_path_factory) -> Path:
    """What is copied to a device."""
    folder = tmp_path_factory.mktemp("device") / "tiny"
    package(library, folder)
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


def test_the_runner_generates_the_tokens_of_the_model_there(device, tmp_path):
    form, prompt = Form(), [3, 1, 4]
    caches = {f"present.0.{part}": f"past_key_values.0.{part}" for part in ("key", "value")}
    flexcomp.build(decoder(form, 1), target="llvm -mtriple=aarch64", state=caches).export_library(tmp_path / "decoder.so")
    command = [EMULATOR, "-L", SYSROOT, "-E", f"LD_LIBRARY_PATH={device}:{SYSROOT}/lib", device / "flexcomp-run"]
    arguments = [tmp_path / "decoder.so", "--budget", "min", "--generate", "3,1,4", "--tokens", "5"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    line, report = done.stdout.splitlines()
    assert list(map(int, line.split(","))) == greedy(form, prompt, 5)
    assert json.loads(report)["inferences"] == len(prompt) + 4


def test_the_package_runs_from_a_folder_of_its_own(library, tmp_path):
    """Unpacked elsewhere and started as its README says, in an environment that knows neither Python nor TVM."""
    names = package(library, tmp_path / "tiny.tar.gz")
    assert names == ["README", "flexcomp-run", "libflexcomp.so.1", "libtvm_ffi.so", "tiny.so", "tiny.weights"]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with tarfile.open(tmp_path / "tiny.tar.gz") as archive:
        archive.extractall(elsewhere)
    folder = elsewhere / "tiny"
    assert "    ./flexcomp-run ./tiny.so" in (folder / "README").read_text()
    command = [shutil.which(EMULATOR), "-L", SYSROOT, "./flexcomp-run", "./tiny.so"]
    done = subprocess.run(command, cwd=folder, env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["arena_bytes"] > 0


def test_a_package_for_a_gpu_needs_nothing_but_the_driver(tmp_path):
    """No Python, no TVM, none of CUDA's libraries; and where there is no driver, that is what is said."""
    built("jetson-orin", Written()).export_library(tmp_path / "tiny.so")
    folder = tmp_path / "package"
    programs = ["flexcomp-run", "libflexcomp.so.1", "libtvm_ffi.so", "tiny.so"]
    assert package(tmp_path / "tiny.so", folder) == ["README", *programs, "tiny.weights"]
    needed = set()
    for name in programs:
        text = subprocess.run(["readelf", "-h", "-d", folder / name], capture_output=True, text=True, check=True).stdout
        assert "AArch64" in text
        needed |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))
    of_the_system = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-aarch64.so.1"}
    assert needed - of_the_system <= {"libflexcomp.so.1", "libtvm_ffi.so", "libstdc++.so.6", "libgcc_s.so.1"}
    command = [shutil.which(EMULATOR), "-L", SYSROOT, "./flexcomp-run", "./tiny.so"]
    done = subprocess.run(command, cwd=folder, env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 4 and done.stdout == ""
    assert done.stderr.startswith("error: the library was built for a GPU, and there is no CUDA driver here: libcuda.so.1: ")


def test_what_cannot_be_packaged_is_named(library, tmp_path):
    with pytest.raises(flexcomp.InputError, match="exists already"):
        package(library, library.parent)
    shutil.copy(library, tmp_path / "alone.so")
    with pytest.raises(flexcomp.ArtifactError, match=r"alone\.weights is missing"):
        package(tmp_path / "alone.so", tmp_path / "out")
    (tmp_path / "text.so").write_text("not a library, but long enough")
    with pytest.raises(flexcomp.ArtifactError, match="no shared library"):
        package(tmp_path / "text.so", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_missing_cross_compiler_is_named(tmp_path):
    artifact = flexcomp.build(network(), target="llvm -mtriple=aarch64")
    with pytest.raises(flexcomp.TargetError, match=r"no-such-g\+\+ is missing.*apt-get install g\+\+-aarch64-linux-gnu"):
        artifact.export_library(tmp_path / "tiny.so", compiler="no-such-g++")


def test_the_runtime_is_compiled_with_further_options(monkeypatch):
    """And not found again where it was compiled with others."""
    monkeypatch.setenv("FLEXCOMP_CXXFLAGS", "--no-such-option")
    with pytest.raises(flexcomp.TargetError, match=r"cannot compile the runtime with .*no-such-option"):
        linker_for(resolve_target("llvm -mtriple=aarch64"))
