"""Tables for people, out of the facts of `flexcomp.report`."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table


def human_bytes(nbytes: float) -> str:
    """1234567 → "1.18 MiB"."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.2f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.2f} GiB"


def stdout_console() -> Console:
    """A console on stdout, wide enough for our tables where no terminal says how wide it is."""
    console = Console()
    return console if console.is_terminal else Console(width=140)


def as_text(*tables: Table, width: int = 120) -> str:
    """The tables as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    for table in tables:
        console.print(table)
    return console.file.getvalue().rstrip("\n")


def layer_table(facts: dict) -> Table:
    """One row for each layer of `flexcomp.report.describe`."""
    table = Table(title=f"{facts['model']}: layers")
    for name in ("layer", "computes", "kernel", "MFLOP", "weights", "scratch", "slices", "budgets"):
        table.add_column(name, justify="left" if name in ("layer", "computes", "kernel") else "right", overflow="fold")
    for layer in facts["layers"]:
        slices = [count for count in layer["slices"] if count]
        fewest, most = min(slices), max(slices)
        budgets = "all" if len(slices) == len(layer["slices"]) else f"{len(slices)} of {len(layer['slices'])}"
        table.add_row(
            layer["name"],
            layer["description"],
            layer["implementation"],
            f"{layer['flops'] / 1e6:.1f}",
            human_bytes(layer["weights_bytes"]) if layer["weights_bytes"] else "",
            human_bytes(layer["scratch_bytes"]) if layer["scratch_bytes"] else "",
            str(fewest) if fewest == most else f"{fewest} to {most}",
            budgets,
        )
    return table


def ladder_table(facts: dict) -> Table:
    """One row for each budget of `flexcomp.report.describe`."""
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
