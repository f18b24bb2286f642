"""The commands, together."""

from __future__ import annotations

from flexcomp.cli.bench import bench
from flexcomp.cli.build import build
from flexcomp.cli.cache import cache
from flexcomp.cli.command import Command, new_app
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

app = new_app()
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
