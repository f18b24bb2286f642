"""Kernels in C: compiled for the target, linked to the PrimFuncs that call them, and tried on this machine.

A trial runs the kernel once on random numbers, in memory that ends where each tensor ends.
"""

from __future__ import annotations

import functools
import hashlib
import math
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import tvm
from tvm import tirx

from flexcomp.cache import KernelCache
from flexcomp.device import CompileTarget, resolve_target
from flexcomp.errors import TargetError, UnsupportedModelError
from flexcomp.frontend import CKernel, node_of
from flexcomp.passes.attributes import C_SOURCE
from flexcomp.passes.ir import bindings, operator
from flexcomp.passes.weights import weight_vars

from .linker import compiler_for, compiler_version

_LANGUAGE = ("-x", "c", "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-Werror=implicit-function-declaration")
# Features of x86-64 that compilers call as the target does, and that decide how loops are compiled.
_FEATURES = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_TRIAL = Path(__file__).with_name("c_trial.c")
_TRIAL_S = 20  # a kernel that takes longer is not tried


def source_of(kernel: tirx.PrimFunc) -> CKernel | None:
    """The function in C that a kernel calls."""
    text = kernel.attrs.get(C_SOURCE) if kernel.attrs is not None else None
    return None if text is None else CKernel.decode(str(text))


def version(target: CompileTarget) -> str:
    """The key that distinguishes machine code of the same C for the same target."""
    made = f"{compiler_version(compiler_for(target))}\n{_LANGUAGE}\n{_FEATURES}"
    return hashlib.sha256(made.encode()).hexdigest()[:16]


def add_code(kernel: CKernel, target: CompileTarget, path: Path) -> None:
    """Link the function's code to the object file at `path`, where it becomes the file's own: other files may have such names."""
    compiler = compiler_for(target)
    with tempfile.TemporaryDirectory() as folder:
        own, joint = Path(folder) / "function.o", Path(folder) / "joint.o"
        own.write_bytes(_compiled(kernel, compiler, _features(target)))
        _run([*compiler.split(), "-r", "-nostdlib", str(path), str(own), "-o", str(joint)])
        _run([_objcopy(compiler), "--localize-hidden", str(joint), str(path)])


def require_right(mod: tvm.IRModule, target: CompileTarget, cache: KernelCache | None) -> None:
    """Raise UnsupportedModelError that names the node for a kernel in C that is not compiled, or does wrong in a trial."""
    constants = weight_vars(mod["main"])
    for binding in bindings(mod["main"]):
        call = binding.value
        kernel = mod[call.args[0]] if operator(call) == "call_tir" else None
        function = source_of(kernel) if isinstance(kernel, tirx.PrimFunc) else None
        if function is None:
            continue
        try:
            if target.gpu:
                raise _WrongError("its kernel is in C, and a GPU computes: give a PrimFunc, or build for a CPU")
            if binding.var in constants:
                raise _WrongError("its inputs are constants, and its kernel is in C: make its result a constant of the model")
            _compiled(function, compiler_for(target), _features(target))
            inputs = len(call.args[1].fields)
            tensors = [(tuple(map(int, param.shape)), str(param.dtype)) for param in kernel.params]
            _try(function, tensors, inputs, cache)
        except _WrongError as error:
            where = node_of(binding.var.name) or f"kernel {function.function}"
            raise UnsupportedModelError(f"{where}: {error}") from None


class _WrongError(Exception):
    """What is wrong with a kernel."""


def _features(target: CompileTarget) -> tuple[str, ...]:
    return tuple(f"-m{name}" for name in _FEATURES if target.arch == "x86" and name in target.features)


@functools.lru_cache(maxsize=64)
def _compiled(kernel: CKernel, compiler: str, features: tuple[str, ...]) -> bytes:
    """The object file of the function. Raises _WrongError with the compiler's first error."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "function.o"
        command = [*compiler.split(), *_LANGUAGE, *features, *kernel.options, "-c", "-", "-o", str(path)]
        done = subprocess.run(command, input=kernel.source, capture_output=True, text=True, check=False)
        if done.returncode:
            raise _WrongError(f"its kernel in C is not compiled: {_reason(done.stderr)}")
        return path.read_bytes()


def _reason(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["the compiler gives no reason"]
    telling = (line for word in ("undefined reference", "error") for line in lines if word in line)
    return next(telling, lines[-1]).removeprefix("<stdin>:")


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise TargetError(f"cannot link a kernel in C: {command[0]}: {error.strerror}") from None
    if done.returncode:
        raise TargetError(f"cannot link a kernel in C: {_reason(done.stderr)}")


@functools.cache
def _objcopy(compiler: str) -> str:
    asked = [*compiler.split(), "-print-prog-name=objcopy"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _try(kernel: CKernel, tensors: Sequence[tuple[tuple[int, ...], str]], inputs: int, cache: KernelCache | None) -> None:
    """Run the kernel on this machine, if it can be compiled for it. Raises _WrongError with what it does wrong."""
    try:
        host = resolve_target("native")
        compiler = compiler_for(host)
        identity = (kernel.encode(), tensors, inputs, version(host), _TRIAL.read_text())
        key = f"trial_{hashlib.sha256(repr(identity).encode()).hexdigest()[:32]}"
        if cache is not None and cache.find(key) is not None:
            return
        code = _compiled(kernel, compiler, _features(host))
    except (TargetError, _WrongError):
        return  # for its target only
    results = len(tensors) - len(kernel.scratch)
    rows = []
    for i, (extents, dtype) in enumerate(tensors):
        role, number = ("input", i) if i < inputs else ("result", i - inputs) if i < results else ("scratch", i - results)
        nbytes = math.prod(extents) * tvm.DataType(dtype).itemsize
        shown = f"{role} {number}, {dtype}[{', '.join(map(str, extents))}]"
        rows.append(f'{{"{shown}", {nbytes}u, \'{role[0]}\', {int(dtype.startswith("float"))}, {tvm.DataType(dtype).itemsize}}}')
    numbers = ", ".join(f"at({i})" for i in range(len(tensors)))
    header = [
        f"#define FUNCTION {kernel.function}", f"#define TASKS {kernel.tasks}", f"#define SECONDS {_TRIAL_S}",
        f"#define TENSORS {{{', '.join(rows)}}}", f"#define ARGUMENTS {numbers}",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "function.o").write_bytes(code)
        (place / "trial.c").write_text("\n".join([*header, _TRIAL.read_text()]))
        command = [*compiler.split(), "-x", "c", "-std=gnu11", "trial.c", "-x", "none", "function.o", "-lm", "-o", "trial"]
        built = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
        if built.returncode:
            raise _WrongError(f"its kernel in C is not linked: {_reason(built.stderr)}")
        done = subprocess.run([place / "trial"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise _WrongError(f"its kernel in C {done.stdout.strip() or f'ends the process ({done.returncode})'}")
    if cache is not None:
        cache.keep(key, b"right")
