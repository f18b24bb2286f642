"""The application without commands; and a command: few options in `--help`, all in sections with `--help-all`, old names too."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from flexcomp.renamed import OPTIONS
from flexcomp.version import __version__

_ALL = "flexcomp.help_all"
_COLUMN = 30  # characters of an option; longer ones have lines of their own


def _show_all(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        ctx.meta[_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool, typer.Option("--help-all", is_eager=True, callback=_show_all, show_default=False, help="Show all options and exit.")
]


class Command(TyperCommand):
    """Options with a `rich_help_panel` are shown by `--help-all` only, in sections with these names."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_new_names(" ".join(ctx.command_path.split()[1:]), args))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            panel = getattr(param, "rich_help_panel", None)
            if record is not None and (panel is None or ctx.meta.get(_ALL)):
                usual = "Arguments" if param.param_type_name == "argument" else "Options"
                sections.setdefault(panel or usual, []).append(record)
        _write(formatter, sections)


class Group(TyperGroup):
    """Commands are listed in sections, by their `rich_help_panel`."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        width = formatter.width - 6 - max(map(len, commands))
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in commands.items():
            if command is not None and not command.hidden:
                panel = getattr(command, "rich_help_panel", None)
                sections.setdefault(panel or "Commands", []).append((name, command.get_short_help_str(width)))
        _write(formatter, sections)


def new_app(kind: type[Group] = Group) -> typer.Typer:
    """`flexcomp`, to which commands are added."""
    app = typer.Typer(
        name="flexcomp", cls=kind, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    app.callback()(_options)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flexcomp {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Compile neural networks to run in a small memory budget."""


def with_new_names(command: str, args: list[str]) -> list[str]:
    """The arguments of a command, old names of options replaced; a line on stderr tells of each."""
    table, found, rest = OPTIONS.get(command, {}), [], list(args)
    while rest and rest[0] != "--":
        word, equals, value = rest.pop(0).partition("=")
        new = table.get(word)
        if new is None:
            found.append(word + equals + value)
            continue
        typer.echo(f"warning: {word} is now called {new.name}; the old name ends with this version", err=True)
        if not equals and rest:
            value = rest.pop(0)
        found += [*([new.name] if new.name.startswith("-") else []), _converted(new.convert, value)]
    return found + rest


def _converted(convert: Any, text: str) -> str:
    """The text of an option's new value; text that is no number is left for the option to refuse."""
    try:
        return f"{convert(float(text)):.15g}" if convert(1.0) != 1.0 else text
    except ValueError:
        return text


def _write(formatter: Any, sections: dict[str, list[tuple[str, str]]]) -> None:
    longest = max((len(first) for records in sections.values() for first, _ in records), default=0)
    width = min(longest, _COLUMN)  # the same in all sections
    for name, records in sections.items():
        if records:
            with formatter.section(name):
                formatter.write_dl([(first.ljust(width), text) for first, text in records])
