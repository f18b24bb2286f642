"""Names that commands take: listed in their help, completed by shells, and listed where another one is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import typer

BUDGETS = ("min", "10%", "25%", "50%", "all")  # to start with


def require_known(given: str, known: Iterable[str]) -> None:
    """Raise BadParameter, which lists the names that are known, for another one."""
    known = list(known)
    if given not in known:
        raise typer.BadParameter(f"'{given}' is not known: it is one of {', '.join(known)}")


def known_option(known: Iterable[str], help: str, **more: Any) -> Any:
    """An option that takes one of the names `known`."""

    def check(given: str) -> str:
        require_known(given, known)
        return given

    listed = f"{help}: {', '.join(known)}."
    return typer.Option(help=listed, callback=check, autocompletion=completed(known), **more)


def completed(known: Iterable[str]) -> Callable[[str], list[str]]:
    """What shells make of the beginning of a name."""
    return lambda incomplete: [name for name in known if name.startswith(incomplete)]
