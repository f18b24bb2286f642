"""Calls of the command line, each in a process of its own, forked from one that has imported the compiler: that takes longer
than most of what they do.

`python -m tests.cli.calls` is that process: it takes calls as lines of JSON, and answers with their statuses.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from flexcomp.cli import main


class Caller:
    """Calls `flexcomp` with the working directory and the environment that this process has at that moment."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.cli.calls"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
        )

    def call(self, *args: str | Path) -> subprocess.CompletedProcess[str]:
        command = ["flexcomp", *map(str, args)]
        with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
            asked = [command, os.getcwd(), dict(os.environ), out.name, err.name]
            print(json.dumps(asked), file=self._process.stdin, flush=True)
            status = int(self._process.stdout.readline())
            return subprocess.CompletedProcess(command, status, out.read().decode(), err.read().decode())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def _serve() -> None:
    import_module("flexcomp.cli.app")
    import_module("flexcomp.compiler.builder")
    gc.freeze()  # what is not looked at is not copied
    answers = os.dup(1)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return _become(*json.loads(line))
        _, status = os.waitpid(child, 0)
        os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    return None


def _become(command: list[str], folder: str, environment: dict[str, str], out: str, err: str) -> None:
    for number, (path, flags) in enumerate([(os.devnull, os.O_RDONLY), (out, os.O_WRONLY), (err, os.O_WRONLY)]):
        descriptor = os.open(path, flags)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = command
    main()


if __name__ == "__main__":
    _serve()
