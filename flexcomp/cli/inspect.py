"""`flexcomp inspect`: the contents of a library, as tables, JSON, pictures, or a report for a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from flexcomp.cli.common import CANNOT_RUN, checked_budget, exit_on_error, parse_extents
from flexcomp.cli.pictures import require_picture
from flexcomp.files import require_writable
from flexcomp.units import human_bytes


def inspect(
    library: Annotated[Path, typer.Argument(help="A library written by `flexcomp build`.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Draw addresses over steps, and the predicted timeline: .png or .svg.")
    ] = None,
    weights_picture: Annotated[
        Path | None,
        typer.Option(help="Draw how --weights auto chose types: errors over bytes, and layers in the order of narrowing."),
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(help="Write a report for a browser, e.g. report.html: all plans, kernels, and changes that would help."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(callback=checked_budget, help="Show the plan of this budget; by default a picture shows the smallest."),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=16", help="The shape to show, of several; by default the largest."),
    ] = None,
) -> None:
    """Show the layers, kernels and budgets of LIBRARY, or one plan."""
    extents = parse_extents(shape or [])
    with exit_on_error(CANNOT_RUN):
        from flexcomp.program import decode_shapes
        from flexcomp.report import describe, pad_facts, select_rung, select_shape, shape_facts
        from flexcomp.runtime import read_program

        for path in (picture, weights_picture):
            if path is not None:
                require_picture(path, library)
        if html is not None:
            require_writable(html, reading=[library, library.with_suffix(".weights")])
        programs = decode_shapes(read_program(library))
        program = select_shape(programs, extents)
        facts = describe(program)
        if len(programs) > 1:
            facts["shapes"] = shape_facts(programs)
        if (pads := pad_facts(programs)) is not None:
            facts["pad"] = pads
        rung = program.rungs[0] if budget is None else select_rung(program, budget)
        if html is not None:
            from flexcomp.report.html import report_data, write_report

            data = report_data(program, facts, None if budget is None else rung)
            write_report(data, html)
            facts["gains"] = data["gains"]  # which take seconds to plan: in the JSON of this call only
        if budget is not None:
            from flexcomp.report import plan_facts, timeline

            facts["plan"] = plan_facts(program, rung, timeline.predicted(program, rung))
        if picture is not None:
            from flexcomp.report import draw_plan, timeline

            lanes = timeline.predicted(program, rung)
            draw_plan(program, rung, picture, [lanes] if lanes else [])
        if weights_picture is not None:
            from flexcomp.report import draw_weights

            draw_weights(program, weights_picture)
    if as_json:
        typer.echo(json.dumps(facts))
        return
    from flexcomp.report import stdout_console

    console = stdout_console()
    if budget is not None:
        from flexcomp.report import plan_table

        console.print(plan_table(facts["plan"]))
    else:
        _print_all(console, facts)
    for path, words in (
        (picture, "the memory plan is drawn in"),
        (weights_picture, "the choice of weights' types is drawn in"),
        (html, "the report for a browser is"),
    ):
        if path is not None:
            console.print(f"{words} {path}", markup=False, highlight=False)


def _print_all(console: Console, facts: dict) -> None:
    from flexcomp.report import choice_table, ladder_table, layer_table, notes, pad_lines, shape_table

    console.print(layer_table(facts))
    if (choices := choice_table(facts)) is not None:
        console.print(choices)
    console.print(ladder_table(facts))
    if "shapes" in facts:
        console.print(shape_table(facts))
    for kind in ("inputs", "outputs"):
        for port in facts[kind]:
            shape = "×".join(map(str, port["shape"]))
            console.print(f"{kind[:-1]} {port['name']}: {port['dtype']}[{shape}]", markup=False, highlight=False)
    for line in pad_lines(facts) if "pad" in facts else ():
        console.print(line, markup=False, highlight=False)
    for state in facts["states"]:
        shape = "×".join(map(str, state["shape"]))
        line = f"state {state['output']} → {state['name']}: {state['dtype']}[{shape}]"
        console.print(line, markup=False, highlight=False)
    if facts["states"]:
        console.print(f"state in all: {human_bytes(facts['state_bytes'])} of every budget", markup=False, highlight=False)
    console.print(f"target: {facts['target']}", markup=False, highlight=False)
    for note in notes(facts):
        console.print(note, markup=False, highlight=False, soft_wrap=True)
