"""`flexcomp demo`: build networks, run them under four budgets, compare with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from flexcomp.cli.common import CANNOT_BUILD, exit_on_error
from flexcomp.cli.names import completed, require_known
from flexcomp.demo.known import DEFAULT, NAMES
from flexcomp.files import require_folder
from flexcomp.report import new_table, stdout_console
from flexcomp.report.progress import BuildProgress
from flexcomp.units import human_bytes


def demo(
    networks: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NETWORK]...", help=f"Some of {', '.join(NAMES)}.", autocompletion=completed(NAMES)),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help=f"Run all networks, instead of {', '.join(DEFAULT)}.")] = False,
    dir: Annotated[Path, typer.Option(help="The folder for libraries and pictures.")] = Path("flexcomp-demo"),
) -> None:
    """Run networks in four budgets, and compare with ONNX Runtime."""
    for name in networks or []:
        require_known(name, NAMES)
    rows = []
    with exit_on_error(CANNOT_BUILD):
        from flexcomp.demo import compare
        from flexcomp.demo import demo as demonstration

        require_folder(dir)
        compare.require_reference()
        for name in NAMES if everything else networks or DEFAULT:
            with BuildProgress(name) as progress:
                for row in demonstration.run_network(name, dir, progress):
                    progress(f"run, budget {row.measurement.label}", 1, 1)
                    rows.append(row)
    console = stdout_console()
    console.print(_table(rows))
    console.print(f"The memory plans are drawn in {dir}/*.png", markup=False, highlight=False)
    wrong = [row for row in rows if not row.agrees]
    if wrong:
        names = ", ".join(f"{row.network} at {row.measurement.label}" for row in wrong)
        typer.echo(f"error: the outputs differ from ONNX Runtime's: {names}", err=True)
        raise typer.Exit(1)


def _table(rows: list) -> Table:
    table = new_table("the same outputs in less memory", "over idle: the peak of the process, less what it takes before")
    for name in ("network", "", "budget", "over idle", "latency", "read", "max error"):
        table.add_column(name, justify="right" if name not in ("network", "") else "left")
    for index, row in enumerate(rows):
        measured = row.measurement
        new = index == 0 or rows[index - 1].network != row.network
        table.add_row(
            row.network if new else "",
            measured.label,
            human_bytes(measured.budget_nbytes),
            human_bytes(measured.overhead_nbytes),
            f"{measured.report['median_ms']:.1f} ms",
            human_bytes(measured.report["bytes_read"]),
            f"{measured.error:.1e}" + ("" if row.agrees else " WRONG"),
            end_section=index + 1 == len(rows) or rows[index + 1].network != row.network,
        )
    return table
