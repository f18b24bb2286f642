"""A small RPC server for devices that have no TVM: one program and two libraries, in one folder or archive."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from importlib.util import find_spec
from pathlib import Path

from tvm.support import cc

from flexcomp.compiler import cross_compiler
from flexcomp.device import resolve_target
from flexcomp.packaging import LIBRARY, ffi_library, library_for, program_for, require_new, write_package

SERVER = "flexcomp-rpc-server"
_RUNTIME = "libtvm_runtime.so"
_README = """An RPC server of TVM {tvm} for {machine} Linux. In this folder:

    ./{server} --host 0.0.0.0 --port 9090 --key-file FILE
    ./{server} --host 0.0.0.0 --tracker HOST:9190 --key NAME

On the other machine, `flexcomp remote run model.so --rpc DEVICE:9090 --rpc-key KEY` or `--rpc-tracker HOST:9190
--rpc-key NAME`. Without --host only this device reaches the server; FILE holds one line, the key that clients must name.
Sessions keep their files in the folder where the server was started, or in --work-dir: its storage is what they
measure. Whoever reaches the server and knows the key, or reaches the tracker, may do what the server's user may; nothing is
encrypted: use it in trusted networks only. `--help` says what else there is.

{ffi} and {runtime} are TVM's, unchanged. The system must provide glibc 2.28 or later and libstdc++.
"""


def package_server(output: str | os.PathLike[str], target: str = "aarch64", compiler: str | None = None) -> list[str]:
    """Put the RPC server for a target's machine, its libraries and a README into `output`; returns the files' names.

    `output` is as of `flexcomp.packaging.package.package`. The server is compiled by `compiler`, this machine's C++ compiler or
    MACHINE-linux-gnu-g++. Raises InputError, or TargetError for a machine or compiler that is missing.
    """
    output = Path(output)
    require_new(output)
    machine = resolve_target(target).triple.split("-")[0]
    server, *libraries = server_files(machine, compiler)
    version = importlib.metadata.version("apache-tvm")
    text = _README.format(tvm=version, machine=machine, server=SERVER, ffi=LIBRARY, runtime=_RUNTIME)
    return write_package(output, {path.name: path for path in (server, *libraries)}, text)


def server_files(machine: str, compiler: str | None = None) -> tuple[Path, Path, Path]:
    """The server, libtvm_ffi and libtvm_runtime for a machine, "aarch64" or "x86_64". Raises TargetError.

    Files that do not come with flexcomp are made on first use and kept in the user's cache. For another machine than this
    one libtvm_runtime comes out of TVM's wheel, about 100 MB to fetch.
    """
    if machine == platform.machine():
        tvm_ffi = ffi_library(machine, compiler)
        runtime = Path(find_spec("tvm").submodule_search_locations[0]) / "lib" / _RUNTIME
        compiler = compiler or cc.get_cc() or cross_compiler(machine)
    else:
        compiler = cross_compiler(machine, compiler)
        tvm_ffi = ffi_library(machine)
        runtime = library_for("apache-tvm", _RUNTIME, machine)
    # libtvm_runtime registers the protocol when loaded: nothing refers to the library. Its own needs are the device's affair.
    # libstdc++ is shared with libtvm_runtime: exceptions of one copy, caught by another, would end the program.
    options = ("-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined")
    return program_for("server", SERVER, compiler, [tvm_ffi, runtime], options), tvm_ffi, runtime
