"""`flexcomp plan`: where a plan keeps every byte, and when it computes and loads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flexcomp.cli.common import CANNOT_RUN, checked_budget, exit_on_error, parse_extents
from flexcomp.cli.pictures import require_picture
from flexcomp.files import require_writable


def plan(
    library: Annotated[Path, typer.Argument(help="A library written by `flexcomp build`.")],
    budget: Annotated[
        str | None, typer.Option(callback=checked_budget, help="The budget whose plan is shown; by default the smallest.")
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(metavar="NAME=16", help="The shape to show, of several; by default the largest.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw addresses over steps, and the timelines: .png or .svg.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write the timelines for Perfetto, as JSON.")] = None,
    measured: Annotated[bool, typer.Option("--measured", help="Run LIBRARY, and show measured times, too.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Compute threads of --measured.")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Inferences of --measured; the picture shows the median one.")] = 11,
) -> None:
    """Show the memory plan of LIBRARY, and when it computes and loads."""
    extents = parse_extents(shape or [])
    with exit_on_error(CANNOT_RUN):
        from flexcomp.errors import ArtifactError
        from flexcomp.program import decode_shapes
        from flexcomp.report import select_rung, select_shape, timeline
        from flexcomp.runtime import read_program

        if picture is not None:
            require_picture(picture, library)
        if trace is not None:
            require_writable(trace, reading=[library, library.with_suffix(".weights")])
        programs = decode_shapes(read_program(library))
        program = select_shape(programs, extents)
        rung = program.rungs[0] if budget is None else select_rung(program, budget)
        timelines = [lanes] if (lanes := timeline.predicted(program, rung)) else []
        if measured:
            from flexcomp.profiling import Library

            inferences = Library(library, programs.index(program)).traces(rung.budget, threads, repeat)
            rung, inference = program.rungs[inferences.rung], inferences.median
            timelines = [lanes] if (lanes := timeline.predicted(program, rung)) else []
            timelines.append(timeline.measured(program, inference))
        if not timelines:
            raise ArtifactError(
                f"{library} does not hold the times its plans assume: build it again, or add --measured"
            )
        if picture is not None:
            from flexcomp.report import draw_plan

            draw_plan(program, rung, picture, timelines)
        if trace is not None:
            from flexcomp.report import write_trace

            write_trace(program, rung, timelines, trace)
    from flexcomp.report import shared_processor, stdout_console, timeline_table

    console = stdout_console()
    console.print(timeline_table(program, rung, timelines))
    for lanes in timelines:
        if (shared := shared_processor(lanes.latency * 1e3, lanes.core_wait_ms)) is not None:
            console.print(shared, markup=False, highlight=False)
    for path, words in ((picture, "drawn in"), (trace, "written to")):
        if path is not None:
            console.print(f"{words} {path}", markup=False, highlight=False)
