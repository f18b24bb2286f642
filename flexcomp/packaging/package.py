"""Everything a device needs to run a model, in one folder or archive: no Python, no TVM, nothing to install."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

from flexcomp.errors import InputError
from flexcomp.files import beside, require_folder, require_writable
from flexcomp.generation import encoder_library, pooling_files
from flexcomp.generation.tokenizer import FILES, TOKENIZER
from flexcomp.program import require_library

from .device_files import LIBRARY, RUNNER, device_files

_ARCHIVE = ".tar.gz"

_README = """{model}, compiled for {machine} Linux. In this folder:

    ./{runner} ./{library}

draws random inputs and prints what an inference takes. Inputs and outputs are NumPy's .npy files:

    ./{runner} ./{library} --budget 32MB --input NAME=FILE.npy --output-dir out

--help lists the options. {library} and {weights} belong together; {tvm_ffi} is tvm-ffi's, unchanged.
The system must provide glibc 2.28 or later and libstdc++.
"""
_TEXT = """
The tokenizer and its settings are here, too. With Python (pip install 'flexcomp-runtime[text]', of flexcomp's wheels):

    flexcomp generate {library} --budget min --prompt 'TEXT'
"""
_CHAT = """    flexcomp generate {library} --budget min --chat
"""
_PAIR = """
{encoder} runs before {library}, and {encoder_weights} is its weights.
"""


def package(library: str | os.PathLike[str], output: str | os.PathLike[str], compiler: str | None = None) -> list[str]:
    """Put a library, its weights, the runner, libflexcomp, libtvm_ffi and a README into `output`; returns the names of the files.

    Where a tokenizer lies next to the library, all files for text go along, and with NAME.so also NAME.encoder.so and its
    weights. `output` is a folder, new or empty, or an archive NAME.tar.gz, whose files lie in a folder NAME; the output
    appears only when complete. The machine is the library's; the runtime of another one is compiled by `compiler`, or
    MACHINE-linux-gnu-g++. Raises InputError, ArtifactError, or TargetError for a machine or compiler that is missing.
    """
    library, output = Path(library), Path(output)
    weights = library.with_suffix(".weights")
    machine = require_library(library, weights)
    require_new(output)
    text = _README.format(
        model=library.stem, machine=machine, runner=RUNNER, library=library.name, weights=weights.name, tvm_ffi=LIBRARY
    )
    files = {library.name: library, weights.name: weights}
    encoder = encoder_library(library)
    if is_pair := encoder.exists():
        encoder_weights = encoder.with_suffix(".weights")
        if (its_machine := require_library(encoder, encoder_weights)) != machine:
            raise InputError(f"{encoder} is for {its_machine}, and {library} for {machine}: build both anew")
        files |= {encoder.name: encoder, encoder_weights.name: encoder_weights}
        text += _PAIR.format(library=library.name, encoder=encoder.name, encoder_weights=encoder_weights.name)
    files |= device_files(machine, compiler)
    if texts := _texts(library.resolve().parent):
        files |= texts
        text += (_TEXT if is_pair else _TEXT + _CHAT).format(library=library.name)
    return write_package(output, files, text)


def require_new(output: Path) -> None:
    """Raise InputError if something lies where a package shall be written, and OSError if none can be written there."""
    if output.exists() and (_is_archive(output) or not output.is_dir() or any(output.iterdir())):
        raise InputError(f"{output} exists already: name another one, or an empty folder")
    require_folder(output) if output.is_dir() else require_writable(output)


def write_package(output: Path, files: Mapping[str, Path], readme: str) -> list[str]:
    """Copy files, under the names that are their keys, and a README into a folder or archive; returns all names."""
    with beside(output) as scratch:
        folder = scratch / output.name.removesuffix(_ARCHIVE)
        folder.mkdir()
        for name, source in files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(source, folder / name)
        (folder / "README").write_text(readme, encoding="utf-8")
        names = sorted([*files, "README"])
        if _is_archive(output):
            archive = scratch / "archive"
            with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
                tar.add(folder, folder.name)
            archive.replace(output)
        else:
            folder.replace(output)
    return names


def _texts(folder: Path) -> dict[str, Path]:
    """The files for text in the folder of a library; none without a tokenizer."""
    if not (folder / TOKENIZER).exists():
        return {}
    names = [name for name in FILES if (folder / name).exists()]
    return {name: folder / name for name in (*names, *pooling_files(folder))}


def _is_archive(output: Path) -> bool:
    return output.name.endswith(_ARCHIVE)
