"""A network as an object file, to be linked with a program in C.

The object defines one name, `flexcomp_network_NAME`: a table of the program's bytes and the kernels' addresses
(`runtime_ext/src/kernels/linked_network.h`). Kernels stay hidden, so networks that share some can be linked with one program.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from flexcomp import runtime_ext
from flexcomp.errors import InputError, TargetError
from flexcomp.program import PROGRAM_KIND

# Where kernels find functions of the runtime (runtime_ext/src/threads/backend.cc), by the names that sessions look for.
_POINTERS = {
    "flexcomp_parallel_launch": "__TVMBackendParallelLaunch",
    "flexcomp_alloc_workspace": "__TVMBackendAllocWorkspace",
    "flexcomp_free_workspace": "__TVMBackendFreeWorkspace",
}


def network_symbol(path: Path) -> str:
    """The name that an object file at `path` defines; InputError where names in C cannot have it."""
    if not path.stem.isascii():
        raise InputError(f"the name of {path.name} becomes a name in C: letters, digits and _, not others of Unicode")
    return "flexcomp_network_" + re.sub(r"\W", "_", path.stem)


def write_object(path: Path, program: bytes, kernels: Mapping[str, bytes], compiler: str) -> None:
    """Write PATH; other files go next to it. Raises TargetError if the compiler cannot, or there is no objcopy."""
    folder = path.parent
    objects = []
    for symbol, code in sorted(kernels.items()):
        objects.append(folder / f"{symbol}.kernel")
        objects[-1].write_bytes(code)
    (folder / "program.bin").write_bytes(program)
    (folder / "network.c").write_text(_source(network_symbol(path), len(program), sorted(kernels)))
    command = compiler.split()
    headers = Path(runtime_ext.__file__).parent / "src" / "kernels"
    language = ["-x", "c", "-std=gnu11", "-fPIC", "-g0", f"-I{headers}"]
    _do([*command, *language, "-c", "network.c", "-o", "network.part"], folder)
    _do([*command, "-r", "-nostdlib", "-x", "none", "network.part", *(one.name for one in objects), "-o", "joined.part"], folder)
    tool = subprocess.run([*command, "-print-prog-name=objcopy"], capture_output=True, text=True, check=False).stdout.strip()
    _do([tool or "objcopy", "--strip-debug", f"--keep-global-symbol={network_symbol(path)}", "joined.part", path.name], folder)


def _source(symbol: str, nbytes: int, kernels: list[str]) -> str:
    addresses = {f"__tvm_ffi_{kernel}": f"(void *)&__tvm_ffi_{kernel}" for kernel in kernels}
    addresses |= {name: f"(void *)&{pointer}" for name, pointer in _POINTERS.items()}
    rows = "".join(f'  {{"{name}", {address}}},\n' for name, address in sorted(addresses.items()))
    return (
        '#include "linked_network.h"\n'
        '__asm__(".section .rodata\\n.balign 16\\nflexcomp_program:\\n.incbin \\"program.bin\\"\\n.text\\n");\n'
        'extern const unsigned char program[] __asm__("flexcomp_program");\n'
        + "".join(f"extern void __tvm_ffi_{kernel}(void);\n" for kernel in kernels)
        + "".join(f"__attribute__((weak)) void *{pointer};\n" for pointer in _POINTERS.values())
        + f"static const struct flexcomp_symbol symbols[] = {{\n{rows}}};\n"
        f"extern const struct flexcomp_network {symbol};\n"
        f"const struct flexcomp_network {symbol} = {{\n"
        f'  sizeof {symbol}, "{PROGRAM_KIND}", program, {nbytes}, symbols, sizeof symbols / sizeof *symbols}};\n'
    )


def _do(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise TargetError(f"cannot run {command[0]}, which makes object files: {error.strerror}") from error
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it gives no reason"])[-1]
        raise TargetError(f"cannot make an object file with {command[0]}: {reason}")
