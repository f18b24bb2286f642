"""Splits the wheel that `pip wheel .` makes in two: flexcomp-runtime, for boards, and flexcomp, which depends on the former.

Both install into the package `flexcomp`; no file is in both. Wheels of equal contents are equal bytes.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from email import message_from_bytes
from email.message import Message
from pathlib import Path

RUNTIME = "flexcomp-runtime"
# Needs NumPy and tvm_ffi only, but for the command line, which needs the extra `text`. `tests/smoke_runtime.py` imports each of
# these files where nothing else is installed.
RUNTIME_FILES = (
    *(f"flexcomp/{name}.py" for name in ("__init__", "__main__", "arguments", "deprecated", "errors", "files", "json_text")),
    *(f"flexcomp/{name}.py" for name in ("gc_threshold", "lazy_exports", "printable", "renamed", "units", "version")),
    *(f"flexcomp/cli/{name}.py" for name in ("__init__", "board", "chat", "command", "common", "generate", "names", "supervise")),
    "flexcomp/py.typed",
    "flexcomp/generation/",
    "flexcomp/runtime/",
    "flexcomp/runtime_ext/__init__.py",
    "flexcomp/runtime_ext/flexcomp-run",
    "flexcomp/runtime_ext/libflexcomp.so.1",
)
_RUNTIME_NEEDS = ("apache-tvm-ffi", "numpy")
_TEXT, _TEXT_NEEDS = "text", ("typer",)  # an extra of both wheels, and what of flexcomp's own needs it has besides
_RUNTIME_SUMMARY = "Runs neural networks in a small memory budget, streaming their weights from storage"
_RUNTIME_README = """`flexcomp.load`, `Session`, `Pool`, `Generator` and the program `flexcomp-run`, without the compiler.
`flexcomp-runtime[text]` has the command `flexcomp generate`, too.
The package `flexcomp` compiles networks, on this machine or on another one.
"""
_NATIVE = "flexcomp/runtime_ext/"
_OF_OTHERS = ("flexcomp_runtime.o", "flexcomp-run", "libflexcomp.so.1")  # for building, and for packages for devices
_NO_DATE = (1980, 1, 1, 0, 0, 0)


def split_wheel(wheel: Path, output: Path, platform: str, others: Mapping[str, Path] | None = None) -> tuple[Path, Path]:
    """Write the halves of `wheel` to the folder `output`, for a platform such as "manylinux_2_28_x86_64": runtime, flexcomp.

    The latter gets the runtime, its library and the runner of `others`, wheels for other machines.
    """
    files = _read(wheel)
    (own,) = {name.partition("/")[0] for name in files if name.partition("/")[0].endswith(".dist-info")}
    metadata = message_from_bytes(files.pop(f"{own}/METADATA")[0])
    del files[f"{own}/RECORD"], files[f"{own}/WHEEL"]
    programs = f"{own.removesuffix('.dist-info')}.data/"

    def is_runtime(name: str) -> bool:
        return name.startswith((*RUNTIME_FILES, programs, f"{own}/entry_points.txt"))

    if unknown := [part for part in RUNTIME_FILES if not any(name.startswith(part) for name in files)]:
        raise ValueError(f"{wheel.name} has no {', '.join(unknown)}")
    runtime = {name: data for name, data in files.items() if is_runtime(name)}
    runtime |= {name: data for name, data in files.items() if name.startswith(f"{own}/licenses/")}
    rest = {name: data for name, data in files.items() if not is_runtime(name)}
    for machine, other in (others or {}).items():
        theirs = _read(other)
        rest |= {f"{_NATIVE}machines/{machine}/{name}": theirs[f"{_NATIVE}{name}"] for name in _OF_OTHERS}
    return (
        _write(output, runtime, own, _runtime_metadata(metadata), platform),
        _write(output, rest, own, _compiler_metadata(metadata), platform),
    )


def _read(wheel: Path) -> dict[str, tuple[bytes, int]]:
    """The files of a wheel, with their modes as zip archives have them."""
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: (archive.read(entry), entry.external_attr) for entry in archive.infolist()}


def _runtime_metadata(metadata: Message) -> Message:
    made = Message()
    for key, value in metadata.items():
        if key.lower() not in ("requires-dist", "provides-extra", "description-content-type"):
            made[key] = value
    made["Provides-Extra"] = _TEXT
    for need in metadata.get_all("Requires-Dist", []):
        if _is_one_of(need, _RUNTIME_NEEDS) or need.endswith(f'extra == "{_TEXT}"'):
            made["Requires-Dist"] = need
        elif _is_one_of(need, _TEXT_NEEDS):
            made["Requires-Dist"] = f'{need}; extra == "{_TEXT}"'
    made.replace_header("Name", RUNTIME)
    made.replace_header("Summary", _RUNTIME_SUMMARY)
    made["Description-Content-Type"] = "text/markdown"
    made.set_payload(_RUNTIME_README)
    return made


def _is_one_of(need: str, names: tuple[str, ...]) -> bool:
    return need.startswith(tuple(f"{name}{sign}" for name in names for sign in "<>=!~"))


def _compiler_metadata(metadata: Message) -> Message:
    metadata["Requires-Dist"] = f"{RUNTIME}=={metadata['Version']}"
    return metadata


def _write(output: Path, files: dict[str, tuple[bytes, int]], own: str, metadata: Message, platform: str) -> Path:
    """Write a wheel of `files`, whose folders named `own` get the distribution's name."""
    stem = f"{metadata['Name'].replace('-', '_')}-{metadata['Version']}"
    tag = f"py3-none-{platform}"
    before = own.removesuffix(".dist-info")
    renamed = {name.replace(f"{before}.d", f"{stem}.d", 1) if name.startswith(before) else name: f for name, f in files.items()}
    text = "\n".join(f"{key}: {value}" for key, value in metadata.items())
    about = {
        "METADATA": f"{text}\n\n{metadata.get_payload()}",
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: flexcomp\nRoot-Is-Purelib: false\nTag: {tag}\n",
    }
    renamed |= {f"{stem}.dist-info/{name}": (content.encode(), 0o100644 << 16) for name, content in about.items()}
    record = f"{stem}.dist-info/RECORD"
    lines = [f"{name},sha256={_digest(data)},{len(data)}" for name, (data, _) in sorted(renamed.items())]
    renamed[record] = ("\n".join([*lines, f"{record},,\n"]).encode(), 0o100644 << 16)
    path = output / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, (data, attributes) in sorted(renamed.items()):
            entry = zipfile.ZipInfo(name, _NO_DATE)
            entry.external_attr = attributes
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return path


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
