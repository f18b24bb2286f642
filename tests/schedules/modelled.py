"""Kernels on any processor whose instructions few have: the same kernels, with calls of models in C for AMX's tiles and bfmmla.

Calls for bfmmla are calls already, to which the compiler gives a body on processors that have it.
"""

import ctypes
import re
import subprocess
from pathlib import Path

import tvm
import tvm_ffi
from tvm import ir, tirx

from flexcomp.compiler.machine_code import compile_module, version
from flexcomp.device import CompileTarget
from tests import kept

_SOURCES = [Path(__file__).with_name(name) for name in ("amx_model.c", "matrix_model.c")]
_NAMES = ("ldtilecfg", "tilezero", "tileloadd64", "tdpbf16ps", "tilestored64", "tilerelease")


def modelled(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel, with calls of a model for instructions of AMX."""
    lookup = tvm_ffi.get_global_func("target.llvm_lookup_intrinsic_id")
    names = {int(lookup(f"llvm.x86.{name}")): name for name in _NAMES}

    def call(one: ir.Call) -> ir.Expr:
        if one.op != ir.Op.get("tirx.call_llvm_intrin") or int(one.args[0].value) not in names:
            return one
        return tirx.call_extern("int32", f"amx_model_{names[int(one.args[0].value)]}", *one.args[1:])

    return kernel.with_body(tvm_ffi.structural_map(kernel.body, (ir.Call, call)))


def library(functions: dict[str, tirx.PrimFunc], target: CompileTarget) -> tuple[tvm.runtime.Module, ctypes.CDLL]:
    """The kernels, linked with the models; and the models' own functions in that library."""
    functions = {name: modelled(function) for name, function in functions.items()}
    hashes = [f"{symbol} {tvm_ffi.structural_hash(function)}" for symbol, function in functions.items()]

    def make(path: Path) -> None:
        compile_module(functions, target).write_to_file(str(path.with_suffix(".o")))
        command = ["cc", "-O2", "-ffp-contract=off", "-shared", "-fPIC", path.with_suffix(".o"), *_SOURCES, "-lm", "-o", path]
        subprocess.run(command, check=True)

    path = kept.made("modelled.so", [version(), str(target), *_SOURCES, *hashes], make)
    return tvm.runtime.load_module(str(path)), ctypes.CDLL(str(path))


def instructions(kernel: tirx.PrimFunc, target: CompileTarget) -> str:
    """The kernel's assembly."""
    return re.sub(r"[ \t]+", " ", compile_module({"kernel": kernel}, target).inspect_source("asm"))
