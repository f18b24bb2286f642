"""An installed prefix, from what the environment's installation compiled."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.conftest import ROOT


def install(folder: Path) -> Path:
    """`cmake --install` into `folder`."""
    native = os.environ.get("FLEXCOMP_NATIVE")
    (build,) = [Path(native)] if native else [path.parent for path in ROOT.glob("build/py3-*/cmake_install.cmake")]
    subprocess.run(["cmake", "--install", build, "--prefix", folder], check=True, stdout=subprocess.DEVNULL)
    return folder


def environment(prefix: Path) -> dict[str, str]:
    """That of a user whose system does not know the prefix."""
    return os.environ | {"PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig"), "LD_LIBRARY_PATH": str(prefix / "lib")}
