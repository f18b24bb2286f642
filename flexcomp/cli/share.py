"""`flexcomp share`: how several compiled networks share one budget."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from flexcomp.cli.common import CANNOT_RUN, checked_budget, exit_on_error
from flexcomp.cli.names import known_option, library_names, numbers_of
from flexcomp.errors import BudgetError
from flexcomp.report import new_table, stdout_console
from flexcomp.runtime import (
    SHARING,
    ShareRung,
    Shares,
    ladder_of,
    least_bytes,
    parse_budget,
    read_info,
    resolve,
    shares,
)
from flexcomp.units import Units, human_bytes


def share(
    libraries: Annotated[list[Path], typer.Argument(help="Libraries of `flexcomp build`; NAME is the file's name without .so.")],
    budget: Annotated[str, typer.Option(callback=checked_budget, help="Memory of all libraries together.")],
    urgency: Annotated[
        list[str] | None, typer.Option(metavar="NAME=2", help="Cost of a second of a network's latency; by default 1.")
    ] = None,
    rate: Annotated[list[str] | None, typer.Option(metavar="NAME=30", help="Inferences in a second; by default 1.")] = None,
    sharing: Annotated[
        str, known_option(SHARING, "Networks take turns in one working range, or each has bytes of its own by SwapNet's rule")
    ] = "exact",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show how several LIBRARIES would share one budget."""
    with exit_on_error(CANNOT_RUN):
        names = library_names(libraries)
        urgencies = list(numbers_of(urgency or [], names, "'--urgency'", default=1.0).values())
        rates = list(numbers_of(rate or [], names, "'--rate'", default=1.0).values())
        weights = [a * b for a, b in zip(urgencies, rates, strict=True)]
        ladders = [ladder_of(read_info(library)) for library in libraries]
        units = parse_budget(budget).units
        largest = [max(ladder, key=lambda rung: rung.nbytes) for ladder in ladders]
        together = max(rung.working_bytes for rung in largest) + sum(rung.kept_bytes for rung in largest)
        nbytes = resolve(budget, least_bytes(ladders, sharing=sharing), together, together)
        found = shares(ladders, weights, nbytes, sharing=sharing, units=units)
        apart, note = found, ""
        if sharing != "swapnet":
            try:
                apart = shares(ladders, weights, nbytes, sharing="swapnet", units=units)
                note = "apart: each with bytes of its own, by SwapNet's rule"
            except BudgetError as error:
                apart, note = None, f"apart: {error}"
    models = [
        {"name": name, "urgency": urgencies[i], "rate": rates[i]}
        | _rung(ladders[i], found.rungs[i])
        | {"apart_ms": ladders[i][apart.rungs[i]].predicted_ms if apart else None}
        for i, name in enumerate(names)
    ]
    facts = {
        "budget_bytes": nbytes,
        "sharing": sharing,
        "strategy": sharing,  # the old name, for one more version
        "bytes": found.nbytes,
        "weighted_ms": found.weighted_ms,
        "apart_weighted_ms": apart.weighted_ms if apart else None,
        "models": models,
    }
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        stdout_console().print(_table(facts, found, note, units))


def _rung(ladder: Sequence[ShareRung], index: int) -> dict:
    rung = ladder[index]
    return {
        "rung": index,
        "rungs": len(ladder),
        "working_bytes": rung.working_bytes,
        "kept_bytes": rung.kept_bytes,
        "predicted_ms": rung.predicted_ms,
    }


def _table(facts: dict, found: Shares, note: str, units: Units) -> Table:
    used = f"{human_bytes(found.nbytes, units)} of {human_bytes(facts['budget_bytes'], units)}"
    manner = "they take turns in the largest working range" if facts["sharing"] == "exact" else "each has bytes of its own"
    table = new_table(f"{used}; {manner}", note or None)
    table.add_column("network")
    for heading in ("weight", "rung", "working", "kept", "predicted", *(["apart"] if note else [])):
        table.add_column(heading, justify="right")
    for model in facts["models"]:
        apart = "" if model["apart_ms"] is None else f"{model['apart_ms']:.2f} ms"
        table.add_row(
            model["name"],
            f"{model['urgency'] * model['rate']:g}",
            f"{model['rung'] + 1} of {model['rungs']}",
            human_bytes(model["working_bytes"], units),
            human_bytes(model["kept_bytes"], units),
            f"{model['predicted_ms']:.2f} ms",
            *([apart] if note else []),
        )
    apart = "" if facts["apart_weighted_ms"] is None else f"{facts['apart_weighted_ms']:.2f} ms"
    table.add_row("weight · time", "", "", "", "", f"{facts['weighted_ms']:.2f} ms", *([apart] if note else []))
    return table
