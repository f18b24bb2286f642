"""`flexcomp help`: of all commands, of one, or the operators that can be compiled."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from flexcomp.cli.names import completed, require_known

_OPERATORS = "operators"
_COLUMNS = 80


def _topics(ctx: typer.Context, incomplete: str) -> list[str]:
    return completed([*ctx.find_root().command.commands, _OPERATORS])(incomplete)


def help(
    ctx: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND]",
            help=f"A command, or '{_OPERATORS}' for the operators that can be compiled.",
            autocompletion=_topics,
        ),
    ] = None,
) -> None:
    """Show the help of a command, such as `flexcomp help build`."""
    if words == [_OPERATORS]:
        from flexcomp.frontend import known_operators

        typer.echo(textwrap.fill(", ".join(known_operators()), _COLUMNS))
        return
    at = ctx.find_root()
    for word in words or []:
        commands = getattr(at.command, "commands", {})
        require_known(word, [*commands, *([_OPERATORS] if at.parent is None else [])])
        at = type(ctx)(commands[word], info_name=word, parent=at)
    typer.echo(at.get_help())
