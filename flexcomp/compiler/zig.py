"""zig, PyPI's `ziglang`, as a linker and a C compiler for machines that have none, and for other machines.

Not for C++: zig's C++ library and libtvm_ffi's do not understand each other's exceptions.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import shlex
from importlib.util import find_spec
from pathlib import Path

from flexcomp.cache import kept_file, trusted_folder

# tvm_ffi's wheels are for these.
GLIBC = "2.28"
MACHINES = ("x86_64", "aarch64")


@functools.cache
def zig(machine: str) -> str | None:
    """A command that links for a machine such as "aarch64" as a C compiler does; None without zig, and for other machines.

    The command is a file in the user's cache, where zig keeps the parts of glibc that it makes on first use, too.
    """
    found = find_spec("ziglang") if machine in MACHINES else None
    if found is None:
        return None
    version = importlib.metadata.version("ziglang")
    program = Path(found.submodule_search_locations[0], "zig")
    cache = trusted_folder(f"zig-{version}")
    text = f"""#!/bin/sh
: "${{ZIG_GLOBAL_CACHE_DIR:={shlex.quote(str(cache))}}}" "${{ZIG_LOCAL_CACHE_DIR:=$ZIG_GLOBAL_CACHE_DIR}}"
export ZIG_GLOBAL_CACHE_DIR ZIG_LOCAL_CACHE_DIR
exec {shlex.quote(str(program))} cc -target {machine}-linux-gnu.{GLIBC} -O2 "$@"
"""
    folder = trusted_folder(f"zig-{hashlib.sha256(f'{version}{text}'.encode()).hexdigest()[:16]}")
    return str(kept_file(folder, f"{machine}-zig-cc", lambda scratch: _script(scratch / "zig", text)))


def is_zig(command: str) -> bool:
    """Whether `zig` returned this command."""
    return command.endswith("-zig-cc")


def _script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o700)
    return path
