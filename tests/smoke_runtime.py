"""Tries an installed flexcomp-runtime, as on a board: no compiler, no TVM, NumPy and tvm_ffi only.

    python smoke_runtime.py FOLDER [EMULATOR OPTIONS...]

FOLDER is where smoke_wheel.py left its network, an input and the output. An emulator that runs this interpreter is named
again, for flexcomp-run. Run by .ci/run; not collected by pytest.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import pkgutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np

import flexcomp

NEEDED = {"flexcomp-runtime", "numpy", "apache-tvm-ffi", "typing_extensions"}
OF_THE_ENVIRONMENT = {"pip", "setuptools", "wheel"}


def main(folder: Path, emulator: list[str]) -> None:
    """Fail with an assertion if anything is not as it should be."""
    installed = {distribution.name for distribution in importlib.metadata.distributions()}
    assert installed - OF_THE_ENVIRONMENT == NEEDED, installed
    for module in pkgutil.walk_packages(flexcomp.__path__, "flexcomp."):
        if not module.name.startswith(("flexcomp.cli.", "flexcomp.__main__")):  # which need the extra
            importlib.import_module(module.name)
    refused = subprocess.run([*emulator, sys.executable, "-m", "flexcomp", "generate"], capture_output=True, text=True)
    assert refused.returncode == 1 and "pip install 'flexcomp-runtime[text]'" in refused.stderr, refused
    try:
        flexcomp.build("dense.onnx")
    except ImportError as error:
        assert str(error).startswith("flexcomp.build is a part of the package flexcomp, and only flexcomp-runtime is"), error
    else:
        raise AssertionError("there is a compiler")

    x, expected = np.load(folder / "x.npy"), np.load(folder / "outputs/y.npy")
    close = {"rtol": 0, "atol": 1e-4 * float(np.abs(expected).max())}
    library = folder / "dense.so"
    with flexcomp.load(library, budget=0.5) as session:
        np.testing.assert_allclose(np.asarray(session.run({"x": x})["y"]), expected, **close)
        with session.watch(lambda: 10**9, interval_ms=60_000):
            pass
    with flexcomp.Pool("64MB") as pool:
        pool.add("dense", library)
        np.testing.assert_allclose(np.asarray(pool.run("dense", {"x": x})["y"]), expected, **close)

    command = [*emulator, f"{sysconfig.get_path('scripts')}/flexcomp-run", str(library), "--budget", "0.5"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    assert report["arena_bytes"] <= report["budget_bytes"]
    print(f"flexcomp-runtime works: {', '.join(sorted(NEEDED))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
