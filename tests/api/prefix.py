"""An installed prefix, from what the environment's installation compiled."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.conftest import ROOT


def _build() -> Path:
    native = os.environ.get("FLEXCOMP_NATIVE")
    (build,) = [Path(native)] if native else [path.parent for path in ROOT.glob("build/py3-*/cmake_install.cmake")]
    return build


def cmake(*arguments: str | Path) -> None:
    """The CMake of the installation, which may be in no folder of PATH."""
    (found,) = re.findall(r"^CMAKE_COMMAND:INTERNAL=(.*)$", (_build() / "CMakeCache.txt").read_text(), re.MULTILINE)
    subprocess.run([found, *arguments], check=True, stdout=subprocess.DEVNULL)


def install(folder: Path) -> Path:
    """`cmake --install` into `folder`."""
    cmake("--install", _build(), "--prefix", folder)
    return folder


def environment(prefix: Path) -> dict[str, str]:
    """That of a user whose system does not know the prefix."""
    return os.environ | {"PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig"), "LD_LIBRARY_PATH": str(prefix / "lib")}
