"""Kernels in C: compiled for the target, linked to the PrimFuncs that call them, and tried on this machine.

A trial runs the kernel once on random numbers, in memory that ends where each tensor ends.
"""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import tempfile
from pathlib import Path

import tvm
import tvm_ffi
from tvm import ir, tirx

from flexcomp.cache import KernelCache
from flexcomp.device import CompileTarget, resolve_target
from flexcomp.errors import TargetError, UnsupportedModelError
from flexcomp.frontend import CKernel, node_of
from flexcomp.passes.attributes import C_SOURCE, SCRATCH, WRITTEN
from flexcomp.passes.ir import bindings, operator
from flexcomp.passes.weights import weight_vars

from .linker import command_for, compiler_version

# Functions without a prototype before them would be those of other kernels of a library, too.
_LANGUAGE = (
    "-x", "c", "-std=gnu11", "-g0", "-fPIC", "-fvisibility=hidden", "-Werror=implicit-function-declaration",
    "-Werror=missing-prototypes",
)  # fmt: skip
# Features of x86-64 that compilers call as the target does, and that decide how loops are compiled.
_FEATURES = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_TRIAL = Path(__file__).with_name("c_trial.c")
_TRIAL_S = 20  # a kernel that takes longer is not tried
_TRIED = "trial_kernel"
_C_TYPES = {"float32": "float", "float64": "double", "bool": "__UINT8_TYPE__"}


def source_of(kernel: tirx.PrimFunc) -> CKernel | None:
    """The function in C that a kernel calls."""
    text = kernel.attrs.get(C_SOURCE) if kernel.attrs is not None else None
    return None if text is None else CKernel.decode(str(text))


def version(target: CompileTarget) -> str:
    """The key that distinguishes machine code of the same C for the same target."""
    made = compiler_version(command_for(target)).encode() + Path(__file__).read_bytes()
    return hashlib.sha256(made).hexdigest()[:16]


def calling(kernel: tirx.PrimFunc, symbol: str) -> tirx.PrimFunc:
    """The kernel `symbol`, which calls its function in C by a name that only this kernel has."""
    function = source_of(kernel)
    if function is None:
        return kernel

    def renamed(text: ir.StringImm) -> ir.StringImm:
        return ir.StringImm(_label(symbol)) if text.value == function.function else text

    body = tvm_ffi.structural_map(kernel.body, (ir.StringImm, renamed))
    return tirx.PrimFunc(list(kernel.params), body, kernel.ret_type, kernel.attrs)


def add_code(kernel: tirx.PrimFunc, symbol: str, target: CompileTarget, path: Path) -> None:
    """Link the code of the function in C, if the kernel calls one, to the object file at `path` of `calling`."""
    if source_of(kernel) is None:
        return
    compiler = command_for(target)
    with tempfile.TemporaryDirectory() as folder:
        function, joint = Path(folder) / "function.o", Path(folder) / "joint.o"
        function.write_bytes(_compiled(kernel, _label(symbol), compiler, _features(target)))
        command = [*compiler.split(), "-r", "-nostdlib", str(path), str(function), "-o", str(joint)]
        done = _run(command)
        if done.returncode:
            raise TargetError(f"cannot link a kernel in C: {_reason(done.stderr)}")
        path.write_bytes(joint.read_bytes())


def _label(symbol: str) -> str:
    return f"{symbol}_c"


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
            _compiled(kernel, _TRIED, command_for(target), _features(target))
            _try(kernel, len(call.args[1].fields), cache)
        except _WrongError as error:
            where = node_of(binding.var.name) or f"kernel {function.function}"
            raise UnsupportedModelError(f"{where}: {error}") from None


class _WrongError(Exception):
    """What is wrong with a kernel."""


def _features(target: CompileTarget) -> tuple[str, ...]:
    return tuple(f"-m{name}" for name in _FEATURES if target.arch == "x86" and name in target.features)


def _compiled(kernel: tirx.PrimFunc, label: str, compiler: str, features: tuple[str, ...]) -> bytes:
    """The object file of the kernel's function in C, which is called `label` there.

    Raises _WrongError with the compiler's first error.
    """
    function = source_of(kernel)
    text = f'{_prototype(kernel, function.function)} __asm__("{label}");\n#line 1 "kernel.c"\n{function.source}\n'
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "function.o"
        command = [*compiler.split(), *_LANGUAGE, *features, *function.options, "-c", "-", "-o", str(path)]
        done = _run(command, text)
        if done.returncode:
            static = "; make the function static" if "no previous prototype" in done.stderr else ""
            raise _WrongError(f"its kernel in C is not compiled: {_reason(done.stderr)}{static}")
        return path.read_bytes()


def _prototype(kernel: tirx.PrimFunc, name: str) -> str:
    """The declaration of a function for these tensors."""
    written = {int(position) for position in kernel.attrs[WRITTEN]}
    results = len(kernel.params) - len(kernel.attrs[SCRATCH])
    types = []
    for i, param in enumerate(kernel.params):
        dtype = str(param.dtype)
        constant = "" if i in written or i >= results else "const "
        types.append(f"{constant}{_C_TYPES.get(dtype, f'__{dtype.upper()}_TYPE__')} *")
    return f"void {name}({', '.join(['__INT32_TYPE__', '__INT32_TYPE__', *types])})"


def _run(command: list[str], given: str = "") -> subprocess.CompletedProcess:
    """In English."""
    environment = os.environ | {"LC_ALL": "C"}
    return subprocess.run(command, input=given, env=environment, capture_output=True, text=True, check=False)


def _reason(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["the compiler gives no reason"]
    telling = (line for word in ("undefined reference", "error") for line in lines if word in line)
    return next(telling, lines[-1])


def _try(kernel: tirx.PrimFunc, inputs: int, cache: KernelCache | None) -> None:
    """Run the kernel's function in C on this machine, if compiled for it. Raises _WrongError that says what is wrong."""
    function = source_of(kernel)
    tensors = [(tuple(map(int, param.shape)), str(param.dtype)) for param in kernel.params]
    try:
        host = resolve_target("native")
        compiler = command_for(host)
        identity = (function.encode(), tensors, inputs, version(host), _TRIAL.read_text())
        key = f"trial_{hashlib.sha256(repr(identity).encode()).hexdigest()[:32]}"
        if cache is not None and cache.find(key) is not None:
            return
        code = _compiled(kernel, _TRIED, compiler, _features(host))
    except (TargetError, _WrongError):
        return  # for its target only
    results = len(tensors) - len(function.scratch)
    rows = []
    for i, (extents, dtype) in enumerate(tensors):
        role, number = ("input", i) if i < inputs else ("result", i - inputs) if i < results else ("scratch", i - results)
        nbytes = math.prod(extents) * tvm.DataType(dtype).itemsize
        shown = f"{role} {number}, {dtype}[{', '.join(map(str, extents))}]"
        rows.append(f'{{"{shown}", {nbytes}u, \'{role[0]}\', {int(dtype.startswith("float"))}, {tvm.DataType(dtype).itemsize}}}')
    numbers = ", ".join(f"trial_at({i})" for i in range(len(tensors)))
    header = [
        f"#define FUNCTION {_TRIED}", f"#define TASKS {function.tasks}", f"#define SECONDS {_TRIAL_S}",
        f"#define TENSORS {{{', '.join(rows)}}}", f"#define ARGUMENTS {numbers}",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "function.o").write_bytes(code)
        (place / "trial.c").write_text("\n".join([*header, _TRIAL.read_text()]))
        sources = ["-x", "c", "-std=gnu11", str(place / "trial.c"), "-x", "none", str(place / "function.o")]
        command = [*compiler.split(), *sources, "-lm", "-o", str(place / "trial")]
        built = _run(command)
        if built.returncode:
            raise _WrongError(f"its kernel in C is not linked: {_reason(built.stderr)}")
        done = _run([str(place / "trial")])
    if done.returncode:
        raise _WrongError(f"its kernel in C {done.stdout.strip() or f'ends the process ({done.returncode})'}")
    if cache is not None:
        cache.keep(key, b"right")
