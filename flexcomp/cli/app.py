"""The commands, together."""

from __future__ import annotations

from typing import Annotated

import typer

from flexcomp.cli.bench import bench
from flexcomp.cli.build import build
from flexcomp.cli.cache import cache
from flexcomp.cli.command import Command, Group
from flexcomp.cli.demo import demo
from flexcomp.cli.generate import generate
from flexcomp.cli.help import help
from flexcomp.cli.inspect import inspect
from flexcomp.cli.package import package
from flexcomp.cli.plan import plan
from flexcomp.cli.profile import profile
from flexcomp.cli.remote import app as remote
from flexcomp.cli.run import run
from flexcomp.cli.serve import serve
from flexcomp.cli.share import share
from flexcomp.cli.tune import tune
from flexcomp.version import __version__

app = typer.Typer(
    name="flexcomp",
    cls=Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flexcomp {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Compile neural networks to run in a small memory budget."""


GROUPS = {
    "Compile": (build, tune, profile, cache),
    "Run": (run, generate, serve, demo),
    "Look inside": (inspect, plan, share, bench),
    "Devices": (package,),
    "Help": (help,),
}
for group, commands in GROUPS.items():
    for command in commands:
        app.command(cls=Command, rich_help_panel=group)(command)
app.add_typer(remote, name="remote", rich_help_panel="Devices")
