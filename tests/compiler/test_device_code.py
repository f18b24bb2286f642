"""Kernels for GPUs as object files: what they define, what is in it, and what is said where there is no nvcc."""

import ctypes
import subprocess
from dataclasses import replace

import onnx
import pytest

import flexcomp
from flexcomp.cache import KernelCache
from flexcomp.compiler import cross_compiler, kernel_compiler
from flexcomp.compiler.builder import prepare
from flexcomp.compiler.data_object import data_object
from flexcomp.compiler.device_code import version
from flexcomp.compiler.kernel_compiler import KernelCompiler
from flexcomp.compiler.nvcc import Nvcc
from flexcomp.compiler.options import Request
from flexcomp.device import resolve_target
from flexcomp.errors import InputError, TargetError
from flexcomp.program import CUDA, Kind
from flexcomp.program.device_kernel import decode
from flexcomp.report import closing_lines, describe
from flexcomp.runtime import parse_budget
from flexcomp.schedules.cuda import ARCHITECTURES
from flexcomp.units import enough
from tests.cli import calls
from tests.cuda.nvcc import nvcc

from .written import Written, built, network

needs_nvcc = pytest.mark.skipif(nvcc() is None, reason="there is no nvcc")


def described(code: bytes):
    """What lies at the symbol of an object file; its section of data is the first."""
    sections = int.from_bytes(code[40:48], "little")
    at, nbytes = (int.from_bytes(code[sections + 64 + i : sections + 72 + i], "little") for i in (24, 32))
    return decode(code[at : at + nbytes])


@pytest.mark.parametrize(("target", "compiler"), [("h200", None), ("jetson-orin", "aarch64")])
def test_linkers_take_objects_of_data(tmp_path, target, compiler):
    data = bytes(range(256)) * 3
    (tmp_path / "k.o").write_bytes(data_object("kernel", data, resolve_target(target)))
    try:
        linker = "g++" if compiler is None else cross_compiler(compiler)
    except TargetError:
        pytest.skip("no cross compiler is installed")
    subprocess.run([linker, "-shared", "-Wl,--fatal-warnings", "k.o", "-o", "k.so"], cwd=tmp_path, check=True)
    if compiler is None:
        library = ctypes.CDLL(str(tmp_path / "k.so"))
        found = (ctypes.c_char * len(data)).in_dll(library, "kernel")
        assert bytes(found) == data and ctypes.addressof(found) % 64 == 0


def test_a_library_for_a_gpu_holds_its_kernels_as_data():
    toolkit = Written()
    artifact = built("h200", toolkit)
    program = artifact.program
    assert program.space == CUDA and program.features == () and program.threads == 1
    assert program.target.startswith("cuda -arch=sm_90 ")
    assert len(artifact.kernels) > 1
    for symbol, code in artifact.kernels.items():
        kernel = described(code)
        assert f"__tvm_ffi_{symbol}\0".encode() in code
        (image,) = kernel.images
        assert image.architecture == 90
        for launch in kernel.launches:
            assert f" {launch.function}(".encode() in image.code
    conv = next(layer for layer in program.layers if layer.op == "conv2d")
    kernel = next(described(code) for symbol, code in artifact.kernels.items() if symbol.startswith(conv.kernel))
    assert kernel.integers == {2, 3} and any(extent.per_count for extent in kernel.launches[0].blocks)


def test_tensor_cores_multiply_where_they_are_asked_to():
    default, asked, other = (built("h200", Written(), **options) for options in ({}, {"tf32": True}, {"tf32": False}))
    sources = [b"".join(described(code).images[0].code for code in a.kernels.values()) for a in (default, asked)]
    assert [b"tf32_multiply(" in source for source in sources] == [False, True]
    assert default.kernels == other.kernels and default.kernels.keys() != asked.kernels.keys()
    (layer,) = (layer for layer in asked.program.layers if layer.op == "conv2d")
    assert layer.implementation.startswith("direct ") and layer.implementation.endswith(" tf32")


@pytest.mark.parametrize(
    ("target", "given", "error"),
    [
        ("native", True, r"tf32 is what a GPU's tensor cores compute with, and a CPU computes \(llvm"),
        ("cuda -arch=sm_75", True, r"tf32 is what GPUs from sm_80 on compute with, and this one is sm_75 \(cuda -arch=sm_75"),
        ("h200", "yes", "tf32 must be True or False, not 'yes'"),
    ],
)
def test_who_cannot_compute_with_tf32_says_so(target, given, error):
    with pytest.raises(InputError, match=error):
        flexcomp.build(network(), target, tf32=given)


def test_what_no_budget_counts_is_said(tmp_path):
    artifact = built("h200", Written())
    facts = describe(artifact.program)
    assert facts["pinned_host_bytes"] == 4 * 2**20
    assert facts["code_bytes"] == sum(len(described(code).images[0].code) for code in artifact.kernels.values()) > 0
    assert describe(replace(artifact.program, target="cuda -arch=sm_87"))["pinned_host_bytes"] == 0  # its memory is the CPU's
    code = enough(facts["code_bytes"])
    line = f"budgets are the GPU's memory; beside them it keeps {code} of machine code, and the host pins 4.00 MiB for copies"
    artifact.export_library(tmp_path / "model.so")
    assert line in artifact.summary() and line in closing_lines(artifact.programs, tmp_path / "model.so", parse_budget("min"))
    told = calls.run("-m", "flexcomp", "inspect", "model.so", cwd=tmp_path)
    assert told.returncode == 0 and line in told.stdout


def test_budgets_are_what_the_memory_is_given_in():
    """2 MiB of a GPU's own memory; pages where it is the CPU's."""
    for target, unit in (("h200", 2**21), ("jetson-orin", 4096)):
        for budget in ("min", "5MB", "all"):
            prepared = prepare(network(), target, compiler=KernelCompiler(None, Written()))
            rungs = prepared.artifacts([Request(parse_budget(budget))])[0].program.rungs
            assert all(rung.budget % unit == 0 and rung.arena <= rung.budget for rung in rungs)
    (rung,) = built("h200", Written()).program.rungs
    assert rung.budget == 2**21


def test_builds_are_the_same_bytes(tmp_path):
    one, other = (built("h200", Written()) for _ in range(2))
    assert one.kernels == other.kernels and one.program == other.program


def test_machine_code_is_kept_for_each_toolkit(tmp_path, monkeypatch):
    monkeypatch.setenv("FLEXCOMP_CACHE", str(tmp_path))
    first = built("h200", Written(), KernelCache())
    monkeypatch.setattr(kernel_compiler, "Workers", None)  # nothing is compiled
    assert built("h200", Written(), KernelCache()).kernels == first.kernels
    with pytest.raises(TypeError):
        built("h200", Written("2"), KernelCache())
    assert version("1") != version("2")


def test_what_a_toolkit_cannot_do_is_said_first(monkeypatch):
    monkeypatch.setattr("flexcomp.compiler.builder.load_shapes", None)
    with pytest.raises(TargetError, match="not for sm_75"):
        built("cuda -arch=sm_75", Written())


def test_a_gpu_has_no_threads_to_choose():
    with pytest.raises(InputError, match="threads=4: a GPU computes"):
        built("h200", Written(), threads=4)
    with pytest.raises(InputError, match="an order of kernels for CPUs"):
        built("h200", Written(), kernels="flexnn")


def test_without_nvcc(monkeypatch, tmp_path):
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("flexcomp.compiler.builder.load_shapes", None)  # said before any work
    with pytest.raises(TargetError, match=r"compiled by nvcc, which is missing: install .* CUDA toolkit .* CUDA_HOME"):
        flexcomp.build(onnx.ModelProto(), target="h200")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(TargetError, match=rf"not in CUDA_HOME={tmp_path}"):
        flexcomp.build(onnx.ModelProto(), target="h200")


@needs_nvcc
def test_an_architecture_that_nvcc_does_not_know():
    with pytest.raises(TargetError, match=r"makes no code for sm_1, only for .*sm_90"):
        Nvcc.found().require(next(iter(ARCHITECTURES.values())).__class__("sm_1", 1, 1, 1, 1, 1))


@needs_nvcc
def test_nvcc_makes_cubins_and_ptx():
    """In a process of its own, in a folder of any name, always the same."""
    first, second = (built("cuda -arch=sm_90 -mtriple=x86_64-linux-gnu", None) for _ in range(2))
    assert first.kernels == second.kernels
    for code in first.kernels.values():
        cubin, ptx = described(code).images
        assert (cubin.architecture, cubin.kind, ptx.architecture, ptx.kind) == (90, Kind.CUBIN, 90, Kind.PTX)
        assert cubin.code[:4] == b"\x7fELF" and cubin.code[18] == 190  # EM_CUDA
        assert b".target sm_90" in ptx.code and ptx.code.endswith(b"\0")
        for launch in described(code).launches:
            assert f".entry {launch.function}(".encode() in ptx.code


def test_kernels_for_gpus_are_not_tuned(tmp_path):
    with pytest.raises(TargetError, match="no choices that could be tuned"):
        flexcomp.tune(network(), target="h200", database=tmp_path / "tuning.jsonl")
