"""What the commands share: exit codes, one-line errors, options in their written form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from flexcomp.budget import parse_budget
from flexcomp.errors import BudgetError, FlexcompError, InputError

USAGE = 2
CANNOT_BUILD = 3
CANNOT_RUN = 4


@contextmanager
def exit_on_error(code: int) -> Iterator[None]:
    """Turn the user's errors into one line on stderr and the exit code `code`."""
    try:
        yield
    except InputError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(USAGE) from None
    except (FlexcompError, OSError) as error:
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(code) from None


def checked_budget(text: str | None) -> str | None:
    """Option callback: refuse budgets that cannot be read; their value is judged by the plan."""
    if text is not None:
        try:
            parse_budget(budget_value(text))
        except BudgetError as error:
            raise typer.BadParameter(str(error)) from None
    return text


def budget_value(text: str | None) -> str | None:
    """What the option says, for the library: "none" means everything resident."""
    return None if text is None or text.strip().lower() == "none" else text


def parse_shapes(options: list[str]) -> dict[str, tuple[int, ...]]:
    """Read `NAME:1,3,224,224` options; a name may contain colons."""
    shapes: dict[str, tuple[int, ...]] = {}
    for option in options:
        name, _, extents = option.rpartition(":")
        try:
            shape = tuple(int(extent) for extent in extents.split(","))
        except ValueError:
            shape = ()
        if not name or not shape or min(shape) < 1:
            raise typer.BadParameter(f"'{option}' is not NAME:1,3,224,224", param_hint="'--input'")
        shapes[name] = shape
    return shapes


def parse_files(options: list[str]) -> dict[str, str]:
    """Read `NAME=FILE.npy` options."""
    files: dict[str, str] = {}
    for option in options:
        name, separator, path = option.partition("=")
        if not (name and separator and path):
            raise typer.BadParameter(f"'{option}' is not NAME=FILE.npy", param_hint="'--input'")
        files[name] = path
    return files
