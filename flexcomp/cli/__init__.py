"""The command line: `flexcomp build`, `run`, `serve` and the other commands of `app.py`.

Exit codes: 2 wrong usage, 3 the model cannot be built, 4 the library cannot be run; 130 interrupted.
"""

from __future__ import annotations

import os

from flexcomp.cli.supervise import supervise

_COMPLETING = "_FLEXCOMP_COMPLETE"  # in the environment of a shell's question for completions


def main() -> None:
    """Entry point of the console script."""
    if _COMPLETING not in os.environ:
        supervise()
    from flexcomp.cli.common import call

    call(_app)


def _app() -> int | None:
    from flexcomp.cli.app import app

    return app(prog_name="flexcomp", standalone_mode=False)
