"""Names that commands take: listed in their help, completed by shells, and listed where another one is given."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import typer

from flexcomp.errors import InputError

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
    """Shell completion of the beginning of a name."""
    return lambda incomplete: [name for name in known if name.startswith(incomplete)]


def library_names(libraries: Sequence[Path]) -> list[str]:
    """A name for each file: its own, without .so. Raises InputError where two are called the same."""
    names = [library.stem for library in libraries]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"two libraries are called {twice[0]}: rename one of them, or link to it under another name")
    return names


def named_libraries(given: Sequence[Path]) -> dict[str, Path]:
    """Libraries by name, from arguments [NAME=]LIBRARY; a library without a NAME is called as its file. Raises InputError."""
    found: dict[str, Path] = {}
    for one in given:
        name, separator, rest = str(one).partition("=")
        if not separator or "/" in name or one.exists():
            name, path = one.stem, one
        else:
            path = Path(rest)
        if not name or not name.isprintable():
            raise InputError(f"{str(one)!r} is not NAME=LIBRARY, with a name that can be printed")
        if name in found:
            raise InputError(f"two libraries are called {name}: name one of them, as in other={path}")
        found[name] = path
    return found


def numbers_of(
    options: Sequence[str], names: Sequence[str] | None, hint: str, default: float | None = None
) -> dict[str, float]:
    """Numbers by name from `NAME=NUMBER` options, each above 0; `default` for the other `names`, None: for any name."""
    found = {} if default is None else dict.fromkeys(names or (), default)
    for option in options:
        name, separator, text = option.rpartition("=")
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not (separator and number > 0 and math.isfinite(number)):
            raise typer.BadParameter(f"'{option}' is not NAME=NUMBER, with a number above 0", param_hint=hint)
        if names is not None:
            require_known(name, names)
        found[name] = number
    return found
