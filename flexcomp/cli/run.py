"""`flexcomp run`: run a compiled network in the C++ runner and report time and memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from flexcomp.cli.command import HelpAll
from flexcomp.cli.common import (
    CANNOT_RUN,
    checked_budget,
    exit_on_error,
    parse_files,
    read_input,
)
from flexcomp.cli.names import BUDGETS, completed, known_option
from flexcomp.report import budget_rows, median_row, shared_processor, stdout_console, waiting
from flexcomp.runtime import STARTS, Budget, parse_budget
from flexcomp.units import enough, human_bytes


def run(
    library: Annotated[Path, typer.Argument(help="A library written by `flexcomp build`.")],
    budget: Annotated[
        str | None,
        typer.Option(
            callback=checked_budget,
            autocompletion=completed(BUDGETS),
            help="Memory; by default the smallest that is nearly as fast as any.",
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Compute threads; by default as built, within the cores.")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Timed inferences.")] = 1,
    warmup: Annotated[int, typer.Option(min=0, help="Inferences before the timed ones.")] = 0,
    start: Annotated[
        str, known_option(STARTS, "Load weights that stay in memory in the first inference (cold), or before (warm)")
    ] = "cold",
    input: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FILE.npy", help="An input. Other inputs are random; integers are zero.")
    ] = None,
    seed: Annotated[int, typer.Option(rich_help_panel="Inputs", min=0, max=2**64 - 1, help="The seed of random inputs.")] = 0,
    reset_state: Annotated[
        bool,
        typer.Option(
            "--reset-state",
            rich_help_panel="Inputs",
            help="Clear the network's state before every inference, instead of keeping the state.",
        ),
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", rich_help_panel="Storage", help="Check every byte of the weights at the start, and in every read."
        ),
    ] = False,
    direct: Annotated[
        bool,
        typer.Option(
            "--direct/--no-direct", rich_help_panel="Storage", help="Read weights past the page cache, where possible."
        ),
    ] = True,
    compute_cpus: Annotated[
        str | None, typer.Option(rich_help_panel="Cores", metavar="4-7", help="Cores for kernels; by default the big ones.")
    ] = None,
    loader_cpu: Annotated[
        str | None, typer.Option(rich_help_panel="Cores", metavar="0", help="Cores for loading; by default little ones.")
    ] = None,
    affinity: Annotated[
        bool,
        typer.Option("--affinity/--no-affinity", rich_help_panel="Cores", help="Bind threads to cores, where cores differ."),
    ] = True,
    output_dir: Annotated[Path | None, typer.Option(help="Write each output here as NAME.npy.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    help_all: HelpAll = False,
) -> None:
    """Run LIBRARY in a process of its own."""
    files = parse_files(input or [])
    with exit_on_error(CANNOT_RUN):
        for path in files.values():
            read_input(path)
        from flexcomp.runtime import runner

        report = runner.run(
            library,
            budget=budget,
            threads=threads,
            repeat=repeat,
            warmup=warmup,
            start=start,
            seed=seed,
            verify=verify,
            direct=direct,
            reset_state=reset_state,
            inputs=files,
            compute_cpus=compute_cpus,
            loader_cpu=loader_cpu,
            affinity=affinity,
            output_dir=output_dir,
        )
    if as_json:
        typer.echo(json.dumps(report))
    else:
        for note in report["notes"]:
            typer.echo(f"note: {note}", err=True)
        console = stdout_console()
        console.print(_table(str(library), report, parse_budget(budget)))
        if (shared := shared_processor(report["median_ms"], report["core_wait_ms"])) is not None:
            console.print(shared, markup=False, highlight=False)


def _table(title: str, report: dict, budget: Budget) -> Table:
    units = budget.units
    table = Table(title=title, show_header=False)
    for label, value in (
        median_row(report),
        *budget_rows(budget, report["asked_bytes"], report["budget_bytes"], report["next_budget_bytes"]),
        ("arena", enough(report["arena_bytes"], units)),
        ("idle process", human_bytes(report["idle_rss_bytes"], units)),
        ("peak over idle", human_bytes(report["peak_rss_bytes"] - report["idle_rss_bytes"], units)),
        ("start to ready", f"{report['start_ms']:.2f} ms"),
        *([("loading within that", f"{report['warm_ms']:.2f} ms")] if "warm_ms" in report else []),
        ("first inference", f"{report['first_ms']:.2f} ms"),
        ("read from storage", human_bytes(report["bytes_read"], units)),
        *prepared_rows(report, units),
        ("waited for storage", waiting(report["stall_ms"], report["read_ms"])),
    ):
        table.add_row(label, value)
    return table


def prepared_rows(report: dict, units: str) -> list[tuple[str, str]]:
    """Rows about prepared weights, if any were."""
    if not report["prepared_bytes"]:
        return []
    took = f"{report['prepare_ms']:.2f} ms, steps helped for {report['help_ms']:.2f} ms"
    return [("prepared weights", f"{human_bytes(report['prepared_bytes'], units)} in {took}")]
