"""The command line: `flexcomp build`, `run`, `inspect` and `demo`.

Exit codes: 2 wrong usage, 3 the model cannot be built, 4 the library cannot be run.
"""

from __future__ import annotations

import typer

from flexcomp.cli.build import build
from flexcomp.cli.demo import demo
from flexcomp.cli.inspect import inspect
from flexcomp.cli.run import run

app = typer.Typer(
    name="flexcomp",
    help="Compile neural networks to run in a small memory budget.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for command in (build, run, inspect, demo):
    app.command()(command)


def main() -> None:
    """Entry point of the console script."""
    app()
