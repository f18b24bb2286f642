"""Options of `build` and `tune` for the element types of weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flexcomp.cli.names import completed, require_known
from flexcomp.compiler.known import DEFAULT_MAX_ERROR, WEIGHTS

Weights = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TYPE | PATTERN=TYPE",
        autocompletion=completed([*WEIGHTS, "auto"]),
        help=f"The type of weights in the file and in memory: {', '.join(WEIGHTS)}, or auto: for each layer the fewest bits "
        "that keep outputs within --max-error. PATTERN=TYPE, e.g. '/head/*=float32', is for layers of these ONNX nodes; "
        "the last match counts. By default no weight is rounded.",
    ),
]
MaxError = Annotated[
    float | None,
    typer.Option(
        rich_help_panel="Weights",
        help="For --weights auto and --arithmetic in fewer bits: the largest error of outputs, as a part of the largest output; "
        f"{DEFAULT_MAX_ERROR} by default.",
    ),
]
Calibration = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.npz",
        rich_help_panel="Weights",
        help="For --weights auto and --arithmetic in fewer bits: inputs by name, one or several of each; by default random.",
    ),
]


def weight_types(given: list[str]) -> str | dict[str, str] | None:
    """TYPE and PATTERN=TYPE as build takes them, TYPE for all layers."""
    if given == ["auto"]:
        return "auto"
    if "auto" in given:
        raise typer.BadParameter("auto chooses the types of all layers: give it alone", param_hint="'--weights'")
    return types_by_pattern(given, WEIGHTS, "--weights", [*WEIGHTS, "auto"])


def types_by_pattern(given: list[str], known: Sequence[str], option: str, alone: Sequence[str] = ()) -> dict[str, str] | None:
    """TYPE and PATTERN=TYPE, TYPE for all; `alone` are the types that there are without a pattern, if others."""
    types: dict[str, str] = {}
    for text in given:
        pattern, _, kind = text.rpartition("=")
        try:
            require_known(kind, known if pattern else alone or known)
        except typer.BadParameter as error:
            raise typer.BadParameter(error.message, param_hint=f"'{option}'") from None
        types[pattern or "*"] = kind
    return types or None
