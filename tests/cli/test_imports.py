"""What importing flexcomp costs: the compiler stays away until something is built."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"tvm", "matplotlib", "onnx", "onnxslim", "onnxruntime"}


def imported_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    return set(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    )


@pytest.mark.parametrize(
    "code",
    [
        "import flexcomp",
        "import flexcomp; flexcomp.load, flexcomp.Session",
        "import flexcomp.cli.app",
        "import flexcomp.runtime.runner",
    ],
)
def test_the_compiler_is_not_imported(code):
    assert not imported_by(code) & HEAVY


def test_build_stays_a_function():
    imported_by("import flexcomp.compiler.build; import flexcomp; assert callable(flexcomp.build), flexcomp.build")


def test_every_public_name_exists():
    imported_by("import flexcomp; [getattr(flexcomp, name) for name in flexcomp.__all__]")
