"""What tests compile, made once: by one of pytest's workers, for all of them and for later runs of the same sources."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path

from flexcomp import runtime_ext
from flexcomp.cache import kept_file

ROOT = Path(__file__).parents[1]
_FOLDER = ROOT / ".cache" / "tests"  # until `make clean`


def made(name: str, of: Iterable[str | bytes | Path], make: Callable[[Path], object]) -> Path:
    """The file that `make` writes to a path that it is given; paths in `of` stand for what is in these files.

    Whoever wants another place or a changed file copies it.
    """
    folder = _folder(name, of)

    def written(scratch: Path) -> Path:
        make(scratch / name)
        return scratch / name

    return kept_file(folder, name, written)


def made_folder(name: str, of: Iterable[str | bytes | Path], make: Callable[[Path], object], place: Path) -> Path:
    """`place`, a new folder: a copy of the one that `make` fills, such as a library with its weights."""
    folder = _folder(name, of)

    def packed(scratch: Path) -> Path:
        (scratch / "files").mkdir()
        make(scratch / "files")
        return Path(shutil.make_archive(str(scratch / name), "tar", scratch / "files"))

    shutil.unpack_archive(kept_file(folder, f"{name}.tar", packed), place)
    return place


def _folder(name: str, of: Iterable[str | bytes | Path]) -> Path:
    digest = hashlib.sha256(name.encode())
    for one in of:
        data = one.read_bytes() if isinstance(one, Path) else one.encode() if isinstance(one, str) else one
        digest.update(b"%d:" % len(data) + data)
    folder = _FOLDER / digest.hexdigest()[:32]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


@cache
def flexcomp_sources() -> bytes:
    """A digest of all that builds depend on."""
    digest = hashlib.sha256(version("apache-tvm").encode() + runtime_ext.runtime_object().read_bytes())
    for path in sorted(path for name in ("flexcomp", "passes", "schedules") for path in (ROOT / name).rglob("*.py")):
        digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.digest()


@cache
def compiler(command: str = "g++") -> str:
    """Which one it is."""
    return subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
