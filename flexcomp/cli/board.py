"""The commands of flexcomp-runtime, where the package flexcomp is not installed."""

from __future__ import annotations

from typing import Any

import typer

from flexcomp.cli.command import Command, Group, new_app
from flexcomp.cli.generate import generate


class _OnBoard(Group):
    """Says where other commands are."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            raise typer.BadParameter(
                f"'{args[0]}' is no command of flexcomp-runtime, which alone is installed: pip install flexcomp", ctx
            )
        return super().resolve_command(ctx, args)


app = new_app(_OnBoard)
app.command(cls=Command, rich_help_panel="Run")(generate)
