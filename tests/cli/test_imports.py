"""What importing flexcomp costs: the compiler stays away until something is built."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flexcomp.lazy_exports import lazy_exports

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


def test_no_file_stands_in_the_place_of_a_name():
    imported_by(
        "import flexcomp, types\n"
        "from importlib import import_module\n"
        "from pathlib import Path\n"
        "root = Path(flexcomp.__file__).parent\n"
        "files = [path.relative_to(root).with_suffix('').parts for path in root.rglob('[!_]*.py')]\n"
        "for parts in files: import_module('.'.join(['flexcomp', *parts]))\n"
        "for room in [flexcomp, *(import_module('flexcomp.' + parts[0]) for parts in files if parts[1:])]:\n"
        "    for name in getattr(room, '__all__', ()):\n"
        "        assert name == 'remote' or not isinstance(getattr(room, name), types.ModuleType), (room, name)\n"
    )


def test_lazy_exports_refuse_names_that_files_have():
    with pytest.raises(ValueError, match=r"called like a name that it exports: fit$"):
        lazy_exports("flexcomp.package", fit="fit", other="name")


def test_every_public_name_exists():
    imported_by("import flexcomp; [getattr(flexcomp, name) for name in dir(flexcomp)]")
