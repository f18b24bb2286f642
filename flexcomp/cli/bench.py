"""`flexcomp bench`: how fast the kernels of a network are on this machine."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from flexcomp.cli.common import (
    CANNOT_BUILD,
    CANNOT_RUN,
    checked_budget,
    exit_on_error,
    parse_shapes,
    require_model,
)


def bench(
    model: Annotated[Path, typer.Argument(help="A library written by `flexcomp build`, or an .onnx file to build first.")],
    threads: Annotated[int, typer.Option(min=1, help="Compute threads.")] = 1,
    budget: Annotated[
        str | None, typer.Option(callback=checked_budget, help="Memory; by default the smallest that is nearly as fast as any.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Number of inferences.")] = 20,
    input: Annotated[
        list[str] | None, typer.Option(metavar="NAME:1,3,224,224", help="Shape of an input with dynamic axes.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Time every kernel of MODEL, next to the machine's rates."""
    shapes = parse_shapes(input or [])
    with tempfile.TemporaryDirectory() as folder:
        library = model
        if model.suffix == ".onnx":
            library = Path(folder) / "model.so"
            _build(model, library, threads, budget, shapes)
        with exit_on_error(CANNOT_RUN):
            from flexcomp.profiling import kernel_report
            from flexcomp.runtime import runner

            # The runtime refuses libraries that cannot run here; the kernels' times should add up to its time.
            latency = runner.run(library, budget=budget, threads=threads, repeat=repeat, warmup=2)
            report = kernel_report(library, budget, threads=threads, repeat=repeat)
            report["latency_ms"] = latency["median_ms"]
    if as_json:
        typer.echo(json.dumps(report))
        return
    from flexcomp.report import stdout_console

    console = stdout_console()
    console.print(_layers(report))
    console.print(_groups(report))
    console.print(
        f"{report['threads']} thread{'s' * (report['threads'] > 1)}: at most {report['peak_gflops']:.1f} GFLOP/s "
        f"from registers and {report['read_gb_per_s']:.1f} GB/s from memory\n"
        f"kernels {report['kernels_ms']:.2f} ms, an inference in the runtime {report['latency_ms']:.2f} ms",
        markup=False,
        highlight=False,
    )


def _build(model: Path, library: Path, threads: int, budget: str | None, shapes: dict[str, tuple[int, ...]]) -> None:
    with exit_on_error(CANNOT_BUILD):
        require_model(model)
        from flexcomp import build
        from flexcomp.compiler.probing import usually
        from flexcomp.report.progress import BuildProgress

        with BuildProgress(model.name) as progress:
            probe = library.parent if usually() else False
            shapes = shapes or None
            artifact = build(str(model), budget=budget, input_shapes=shapes, threads=threads, progress=progress, probe=probe)
            artifact.export_library(str(library))


def _layers(report: dict) -> Table:
    from flexcomp.report import named, new_table

    table = new_table(f"{report['model']}: kernels")
    _columns(table, "layer, computes, kernel", "ms")
    for layer in report["layers"]:
        what = named(layer["name"], f"{layer['description']}\n{layer['kernel']}")
        table.add_row(what, f"{layer['time_ms']:.3f}", *_rates(layer))
    return table


def _groups(report: dict) -> Table:
    from flexcomp.report import named, new_table

    table = new_table("weighted by time")
    _columns(table, "kernels, bound by", "layers", "ms")
    for group in report["groups"]:
        what = named(group["group"], group["bound_by"])
        table.add_row(what, str(group["layers"]), f"{group['time_ms']:.2f}", *_rates(group))
    return table


def _columns(table: Table, first: str, *more: str) -> None:
    table.add_column(first, overflow="fold")
    for name in (*more, "of all", "GFLOP/s", "of peak", "GB/s", "of memory"):
        table.add_column(name, justify="right", no_wrap=True)


def _rates(facts: dict) -> list[str]:
    """Five columns; a share where the share counts."""
    computing = (
        [f"{facts['gflops']:.1f}", f"{facts['peak_share']:.0%}"] if facts["bound_by"] == "computing" else ["", ""]
    )
    reading = f"{facts['read_share']:.0%}" if facts["bound_by"] == "reading" else ""
    return [f"{facts['time_share']:.1%}", *computing, f"{facts['gb_per_s']:.1f}", reading]
