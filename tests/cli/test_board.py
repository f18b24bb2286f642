"""The command line of flexcomp-runtime, from its files alone, where none of the compiler's packages can be imported."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from flexcomp import runtime_ext
from scripts.split_wheel import RUNTIME_FILES, split_wheel
from tests.cli import calls

ROOT = Path(__file__).parents[2]
OF_THE_COMPILER = (
    "cloudpickle", "matplotlib", "ml_dtypes", "onnx", "onnxruntime", "onnxslim", "psutil", "scipy", "tornado", "tvm", "xgboost",
)  # fmt: skip
# `-S`: without the finder of the editable install, by which the checkout is there.
PROGRAM = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OF_THE_COMPILER}:
            raise ModuleNotFoundError(f"blocked: {{name}}", name=name)
sys.meta_path.insert(0, Blocked())
sys.path[:0] = sys.argv.pop(1).split(":")
"""
COMMAND = PROGRAM + "from flexcomp.cli import main; sys.argv[0] = 'flexcomp'; main()"


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> str:
    """Folders for `sys.path`, of which the first has what the wheel has."""
    folder = tmp_path_factory.mktemp("board")
    for name in RUNTIME_FILES:
        inside = Path(name).relative_to("flexcomp")
        sources = ROOT / name, ROOT / inside, runtime_ext.runner().parent / inside.name
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name.rstrip("/")).symlink_to(next(one for one in sources if one.exists()))
    return f"{folder}:{sysconfig.get_path('purelib')}"


def board(installed, program, *arguments, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-S", "-c", program, installed, *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd="/", **options)


def test_text_and_chats(installed, decoder_library):
    options = [decoder_library, "--max-tokens", 6, "--threads", 1]
    done = board(installed, COMMAND, "generate", *options, "--prompt", "the cat")
    assert done.returncode == 0 and "6 tokens after" in done.stderr, done.stderr
    assert done.stdout == calls.call("generate", *options, "--prompt", "the cat").stdout
    done = board(installed, COMMAND, "generate", *options, "--chat", input="the cat\nab\n")
    assert done.returncode == 0 and done.stderr.count("6 tokens after") == 2, done.stderr


def test_a_generator(installed, decoder_library):
    program = "import flexcomp; session = flexcomp.load(sys.argv[1], threads=1); "
    program += "print(len(list(flexcomp.Generator(session).reply([1, 2], 3))))"
    assert board(installed, PROGRAM + program, decoder_library).stdout == "3\n"


def test_other_commands_are_elsewhere(installed):
    refused = board(installed, COMMAND, "build", "model.onnx")
    assert refused.returncode == 2 and "'build' is no command of flexcomp-runtime" in refused.stderr
    assert "pip install flexcomp" in refused.stderr
    listed = board(installed, COMMAND, "--help").stdout
    assert "generate" in listed and "serve" not in listed
    assert board(installed, COMMAND, "--version").stdout.startswith("flexcomp ")


def test_without_the_extra(installed):
    refused = board(installed, PROGRAM + "sys.modules['typer'] = None; from flexcomp.cli import main; main()", "generate")
    assert refused.returncode == 1 and "pip install 'flexcomp-runtime[text]'" in refused.stderr


def test_the_wheels(tmp_path):
    """No file is in both, the command is in that for boards, and its packages are an extra there."""
    whole, own = tmp_path / "flexcomp-1.0-py3-none-any.whl", "flexcomp-1.0.dist-info"
    needs = ["apache-tvm-ffi==1", "numpy>=1", "onnx>=1", "typer>=0.12,<1", 'jinja2>=3; extra == "text"', 'httpx; extra == "test"']
    metadata = ["Name: flexcomp", "Version: 1.0", "Summary: x", *(f"Requires-Dist: {one}" for one in needs)]
    names = [f"{one}x.py" if one.endswith("/") else one for one in (*RUNTIME_FILES, "flexcomp/cli/app.py")]
    with zipfile.ZipFile(whole, "w") as archive:
        for name in (*names, f"{own}/RECORD", f"{own}/WHEEL", f"{own}/entry_points.txt"):
            archive.writestr(name, "")
        archive.writestr(f"{own}/METADATA", "\n".join(metadata) + "\n\n")
    runtime, compiler = map(zipfile.ZipFile, split_wheel(whole, tmp_path, "linux_x86_64"))
    assert not {*runtime.namelist()} & {*compiler.namelist()}
    assert "flexcomp/cli/generate.py" in runtime.namelist() and "flexcomp/cli/app.py" in compiler.namelist()
    assert "flexcomp_runtime-1.0.dist-info/entry_points.txt" in runtime.namelist()
    said = message_from_bytes(runtime.read("flexcomp_runtime-1.0.dist-info/METADATA"))
    assert said.get_all("Requires-Dist") == [*needs[:2], 'typer>=0.12,<1; extra == "text"', needs[4]]
    assert said.get_all("Provides-Extra") == ["text"]
