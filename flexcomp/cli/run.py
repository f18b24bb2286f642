"""`flexcomp run`: run a compiled network in the C++ runner and report time and memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from flexcomp.cli.common import (
    CANNOT_RUN,
    budget_value,
    checked_budget,
    exit_on_error,
    parse_files,
    read_input,
)
from flexcomp.report import human_bytes, shared_processor, stdout_console, waiting


def run(
    library: Annotated[Path, typer.Argument(help="A library written by `flexcomp build`.")],
    budget: Annotated[
        str | None, typer.Option(callback=checked_budget, help="Memory; without it, everything resident.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Compute threads.")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="How many inferences.")] = 1,
    input: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FILE.npy", help="An input; without any, random ones.")
    ] = None,
    compute_cpus: Annotated[str | None, typer.Option(metavar="4-7", help="Cores for kernels; by default the big ones.")] = None,
    loader_cpu: Annotated[str | None, typer.Option(metavar="0", help="Cores for loading; by default little ones.")] = None,
    affinity: Annotated[bool, typer.Option("--affinity/--no-affinity", help="Bind threads to cores, where cores differ.")] = True,
    output_dir: Annotated[Path | None, typer.Option(help="Write each output here as NAME.npy.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run LIBRARY in a process of its own."""
    files = parse_files(input or [])
    with exit_on_error(CANNOT_RUN):
        for path in files.values():
            read_input(path)
        from flexcomp.runtime import runner

        report = runner.run(
            library,
            budget=budget_value(budget),
            threads=threads,
            repeat=repeat,
            inputs=files,
            compute_cpus=compute_cpus,
            loader_cpu=loader_cpu,
            affinity=affinity,
            output_dir=output_dir,
        )
    if as_json:
        typer.echo(json.dumps(report))
    else:
        console = stdout_console()
        console.print(_table(str(library), report))
        if (shared := shared_processor(report["median_ms"], report["core_wait_ms"])) is not None:
            console.print(shared, markup=False, highlight=False)


def _table(title: str, report: dict) -> Table:
    table = Table(title=title, show_header=False)
    for label, value in (
        ("median latency", f"{report['median_ms']:.2f} ms of {len(report['latency_ms'])}"),
        ("budget", human_bytes(report["budget_bytes"])),
        ("arena", human_bytes(report["arena_bytes"])),
        ("idle process", human_bytes(report["idle_rss_bytes"])),
        ("peak over idle", human_bytes(report["peak_rss_bytes"] - report["idle_rss_bytes"])),
        ("read from storage", human_bytes(report["bytes_read"])),
        ("waited for storage", waiting(report["stall_ms"], report["read_ms"])),
    ):
        table.add_row(label, value)
    return table
