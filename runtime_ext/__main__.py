"""Runs the native runner with libtvm_ffi on its search path: `python -m flexcomp.runtime_ext MODEL.so …`."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from flexcomp.runtime_ext import runner


def main() -> None:
    """Replace this process by the runner, so that its memory is the model's alone."""
    # Located without importing tvm_ffi, which would cost a tenth of a second.
    folder = Path(find_spec("tvm_ffi").submodule_search_locations[0]) / "lib"
    path = os.environ.get("LD_LIBRARY_PATH")
    os.environ["LD_LIBRARY_PATH"] = f"{folder}:{path}" if path else str(folder)
    os.execv(runner(), ["flexcomp-run", *sys.argv[1:]])


if __name__ == "__main__":
    main()
