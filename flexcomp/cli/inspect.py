"""`flexcomp inspect`: what a library holds, as tables, JSON, or a picture of the memory plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from flexcomp.cli.common import CANNOT_RUN, budget_value, checked_budget, exit_on_error, human_bytes


def inspect(
    library: Annotated[Path, typer.Argument(help="A library written by `flexcomp build`.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Write a picture of the memory plan, e.g. plan.png.")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            callback=checked_budget, help="The budget whose plan is drawn; without it, the smallest."
        ),
    ] = None,
) -> None:
    """Show the layers, kernels, slices and budgets of LIBRARY."""
    with exit_on_error(CANNOT_RUN):
        from flexcomp.report import describe, select_rung
        from flexcomp.session import read_program

        program = read_program(str(library))
        facts = describe(program)
        if picture is not None:
            from flexcomp.picture import draw_plan

            rung = program.rungs[0] if budget is None else select_rung(program, budget_value(budget))
            draw_plan(program, rung, picture)
    if as_json:
        typer.echo(json.dumps(facts))
        return
    console = Console()
    console.print(_layers(facts))
    console.print(_ladder(facts))
    for kind in ("inputs", "outputs"):
        for port in facts[kind]:
            shape = "×".join(map(str, port["shape"]))
            console.print(
                f"{kind[:-1]} {port['name']}: {port['dtype']}[{shape}]", markup=False, highlight=False
            )
    console.print(f"target: {facts['target']}", markup=False, highlight=False)
    if picture is not None:
        console.print(f"the memory plan is drawn in {picture}", markup=False, highlight=False)


def _layers(facts: dict) -> Table:
    table = Table(title=f"{facts['model']}: layers")
    for name in ("layer", "operator", "kernel", "MFLOP", "weights", "scratch", "slices"):
        table.add_column(name, justify="left" if name in ("layer", "operator", "kernel") else "right")
    for layer in facts["layers"]:
        fewest, most = layer["slices"][-1], layer["slices"][0]
        table.add_row(
            layer["name"],
            layer["op"],
            layer["implementation"],
            f"{layer['flops'] / 1e6:.1f}",
            human_bytes(layer["weights_bytes"]) if layer["weights_bytes"] else "",
            human_bytes(layer["scratch_bytes"]) if layer["scratch_bytes"] else "",
            str(fewest) if fewest == most else f"{fewest} to {most}",
        )
    return table


def _ladder(facts: dict) -> Table:
    table = Table(title="budgets")
    for name in ("budget", "arena", "pinned", "streamed per run", "predicted", "steps"):
        table.add_column(name, justify="right")
    for rung in facts["ladder"]:
        table.add_row(
            human_bytes(rung["budget_bytes"]),
            human_bytes(rung["arena_bytes"]),
            human_bytes(rung["pinned_bytes"]),
            human_bytes(rung["streamed_bytes"]),
            f"{rung['predicted_ms']:.2f} ms",
            str(rung["steps"]),
        )
    return table
