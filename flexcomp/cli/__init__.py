"""The command line: `flexcomp build`, `tune`, `run`, `inspect`, `package`, `plan`, `profile`, `remote`, `bench` and `demo`.

Exit codes: 2 wrong usage, 3 the model cannot be built, 4 the library cannot be run; 130 interrupted.
"""

from __future__ import annotations

from flexcomp.cli.supervise import supervise


def main() -> None:
    """Entry point of the console script."""
    supervise()
    from flexcomp.cli.common import call

    call(_app)


def _app() -> None:
    from flexcomp.cli.app import app

    app()
