"""The option of `build` and `tune` for custom operators."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from flexcomp.frontend import CustomOperator

Operators = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE.py",
        rich_help_panel="Operators",
        help="Use the custom operators that this Python file defines, each a flexcomp.CustomOperator. The file is run.",
    ),
]


def custom_operators(files: list[Path] | None) -> list[CustomOperator] | None:
    """The operators of all files. Raises InputError."""
    if not files:
        return None
    from flexcomp.frontend import operators_in

    return [operator for path in files for operator in operators_in(path)]
