"""A virtual environment for each engine, in the checkout's `.cache` folder: their packages do not get along."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.peers import Engine

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "peers"


class EnvironmentFailure(RuntimeError):
    """An environment could not be made."""


def python_of(engine: Engine) -> Path:
    """The interpreter that runs the engine's processes."""
    return CACHE / engine.name / "bin" / "python" if engine.requirements else Path(sys.executable)


def is_ready(engine: Engine) -> bool:
    """Whether the environment meets the engine's requirements."""
    return not engine.requirements or (_marker(engine).is_file() and _marker(engine).read_text() == _wanted(engine))


def prepare(engine: Engine) -> None:
    """Make the environment of `engine` unless ready. Raises EnvironmentFailure."""
    if is_ready(engine):
        return
    folder = CACHE / engine.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    install = [str(python_of(engine)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*install, *engine.requirements])
    if engine.unaided:
        _run([*install, "--no-deps", *engine.unaided])
    _marker(engine).write_text(_wanted(engine))


def _marker(engine: Engine) -> Path:
    return CACHE / engine.name / "requirements.json"


def _wanted(engine: Engine) -> str:
    return json.dumps([*engine.requirements, *engine.unaided, f"python {sys.version_info[0]}.{sys.version_info[1]}"])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"{command[0]} ended with code {done.returncode}"]
        raise EnvironmentFailure(next((line for line in lines if line.startswith("ERROR")), lines[-1]))
