"""Options of `build` and `tune` for the element types of weights."""

from __future__ import annotations

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
        help="For --weights auto and --arithmetic auto or int8: the largest error of outputs, as a part of the largest output; "
        f"{DEFAULT_MAX_ERROR} by default.",
    ),
]
Calibration = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.npz",
        rich_help_panel="Weights",
        help="For --weights auto and --arithmetic auto or int8: inputs by name, one or several of each; by default random.",
    ),
]


def weight_types(given: list[str]) -> str | dict[str, str] | None:
    """TYPE and PATTERN=TYPE as build takes them, TYPE for all layers."""
    if given == ["auto"]:
        return "auto"
    types: dict[str, str] = {}
    for text in given:
        if text == "auto":
            raise typer.BadParameter("auto chooses the types of all layers: give it alone", param_hint="'--weights'")
        pattern, _, kind = text.rpartition("=")
        try:
            require_known(kind, WEIGHTS if pattern else [*WEIGHTS, "auto"])
        except typer.BadParameter as error:
            raise typer.BadParameter(error.message, param_hint="'--weights'") from None
        types[pattern or "*"] = kind
    return types or None
