"""The command line: `flexcomp build`, `run`, `serve` and the other commands of `app.py`; flexcomp-runtime's are in `board.py`.

Exit codes: 2 wrong usage, 3 the model cannot be built, 4 the library cannot be run; 130 interrupted.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from importlib.util import find_spec

from flexcomp.cli.supervise import supervise

_COMPLETING = "_FLEXCOMP_COMPLETE"  # in the environment of a shell's question for completions


def main() -> None:
    """Entry point of the console script."""
    if find_spec("typer") is None:
        sys.exit("error: the command needs the package typer: pip install 'flexcomp-runtime[text]'")
    if _COMPLETING not in os.environ:
        supervise()
    from flexcomp.cli.common import call

    try:
        call(_app)
    except SystemExit as ending:
        _end(ending.code)
        raise


def _end(code: str | int | None) -> None:
    """End the process with this number, or return, for an interpreter that ends in its own way.

    Python takes every module apart at its end, which is a fifth of a second of a command with a compiler.
    """
    if isinstance(code, str) or threading.active_count() > 1:
        return
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with suppress(OSError):
            stream.flush()
    os._exit(code or 0)


def _app() -> int | None:
    try:
        from flexcomp.cli.app import app
    except ModuleNotFoundError as error:
        if error.name != "flexcomp.cli.app":
            raise
        from flexcomp.cli.board import app
    return app(prog_name="flexcomp", standalone_mode=False)
