"""Everything a device needs to run a model, in one folder or archive: no Python, no TVM, nothing to install."""

from __future__ import annotations

import mmap
import os
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

from .device_files import LIBRARY, RUNNER, device_files
from .errors import ArtifactError, InputError
from .files import beside

ELF_MACHINES = {183: "aarch64", 62: "x86_64"}  # e_machine of 64-bit ELF files
_KIND = b"flexcomp.program"
_ARCHIVE = ".tar.gz"

_README = """{model}, compiled for {machine} Linux. In this folder:

    LD_LIBRARY_PATH=. ./{runner} ./{library}

draws random inputs and prints what an inference takes. Inputs and outputs are NumPy's .npy files:

    LD_LIBRARY_PATH=. ./{runner} ./{library} --budget 32MB --input NAME=FILE.npy --output-dir out

--help lists the options. {library} and {weights} belong together; {tvm_ffi} is tvm-ffi's, unchanged.
The system must provide glibc 2.28 or later and libstdc++.
"""


def package(library: str | os.PathLike[str], output: str | os.PathLike[str], compiler: str | None = None) -> list[str]:
    """Put a library, its weights, the runner, libtvm_ffi and a README into `output`; returns the names of the files.

    `output` is a folder, new or empty, or an archive NAME.tar.gz, whose files lie in a folder NAME; it appears only
    when it is complete. The machine is the library's; the runner of another one is compiled by `compiler`, or
    MACHINE-linux-gnu-g++. Raises InputError, ArtifactError, or TargetError for a machine or compiler that is missing.
    """
    library, output = Path(library), Path(output)
    weights = library.with_suffix(".weights")
    machine = machine_of(library)
    if not weights.is_file():
        raise ArtifactError(f"{weights} is missing: {library.name} cannot run without it")
    require_new(output)
    runner, tvm_ffi = device_files(machine, compiler)
    text = _README.format(
        model=library.stem, machine=machine, runner=RUNNER, library=library.name, weights=weights.name, tvm_ffi=LIBRARY
    )
    files = {library.name: library, weights.name: weights, RUNNER: runner, LIBRARY: tvm_ffi}
    return write_package(output, files, text)


def require_new(output: Path) -> None:
    """Raise InputError if something lies where a package shall be written."""
    if output.exists() and (_is_archive(output) or not output.is_dir() or any(output.iterdir())):
        raise InputError(f"{output} exists already: name another one, or an empty folder")


def write_package(output: Path, files: Mapping[str, Path], readme: str) -> list[str]:
    """Copy files, under the names that are their keys, and a README into a folder or archive; returns all names."""
    with beside(output) as scratch:
        folder = scratch / output.name.removesuffix(_ARCHIVE)
        folder.mkdir()
        for name, source in files.items():
            shutil.copy(source, folder / name)
        (folder / "README").write_text(readme, encoding="utf-8")
        names = sorted(path.name for path in folder.iterdir())
        if _is_archive(output):
            archive = scratch / "archive"
            with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
                tar.add(folder, folder.name)
            archive.replace(output)
        else:
            folder.replace(output)
    return names


def _is_archive(output: Path) -> bool:
    return output.name.endswith(_ARCHIVE)


def machine_of(library: Path) -> str:
    """The machine that a compiled network was built for. Raises ArtifactError for other files."""
    if not library.is_file():
        raise ArtifactError(f"there is no library {library}")
    with open(library, "rb") as file:
        header = file.read(20)
    if len(header) < 20 or header[:5] != b"\x7fELF\x02":
        raise ArtifactError(f"{library} is no shared library of a 64-bit Linux")
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data.find(_KIND) < 0:
            raise ArtifactError(f"{library} is a library, but not a compiled network")
    number = int.from_bytes(header[18:20], "little")
    if number not in ELF_MACHINES:
        raise ArtifactError(f"{library} is for a machine (ELF number {number}) that flexcomp has no runner for")
    return ELF_MACHINES[number]
