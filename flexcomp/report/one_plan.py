"""One plan, layer by layer: the kernel, the weights that stay and those that are loaded, and the time."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING

from rich.table import Table

from flexcomp.program import Program, Rung, nodes
from flexcomp.report.tables import kib, named, new_table
from flexcomp.units import enough

if TYPE_CHECKING:
    from flexcomp.report.timeline import Lanes


def plan_facts(program: Program, rung: Rung, predicted: Lanes | None) -> dict:
    """The plan of a budget; sizes in bytes, times in milliseconds, null in libraries that do not hold assumed times.

    A layer is listed as often as the plan turns to it. A load of several layers counts for the layer with most of its bytes.
    """
    from flexcomp.report.timeline import load_names

    names = load_names(program, rung)
    kept: Counter[str] = Counter()
    loaded: Counter[str] = Counter()
    for sums, deliveries in ((kept, rung.tapes.filled), (loaded, rung.tapes.repeated)):
        for one in deliveries:
            sums[names[one.load]] += one.brought[1]
    origin = nodes.read(program)
    rows, first, free = [], 0, 0.0
    for index, steps in groupby(rung.steps, key=lambda step: step.layer):
        layer, count = program.layers[index], len(list(steps))
        bars = predicted.computing[first : first + count] if predicted else ()
        computing = sum(bar.end - bar.start for bar in bars)
        rows.append(
            {
                "name": layer.name,
                "node": origin[index],
                "implementation": layer.implementation,
                "steps": count,
                "kept_bytes": kept.pop(layer.name, 0),
                "loaded_bytes": loaded.pop(layer.name, 0),
                "scratch_bytes": layer.scratch_nbytes,
                "predicted_ms": computing * 1e3 if bars else None,
                "waiting_ms": (bars[-1].end - free - computing) * 1e3 if bars else None,  # before and between its steps
            }
        )
        first, free = first + count, bars[-1].end if bars else 0.0
    return {
        "model": program.model,
        "budget_bytes": rung.budget,
        "arena_bytes": rung.arena,
        "predicted_ms": rung.predicted_ms,
        "layers": rows,
    }


def plan_table(facts: dict) -> Table:
    """One row for each time that the plan of `plan_facts` turns to a layer."""
    steps = sum(layer["steps"] for layer in facts["layers"])
    table = new_table(
        f"{facts['model']} in {enough(facts['budget_bytes'])}: {steps} steps, predicted {facts['predicted_ms']:.2f} ms",
        "sizes in KiB, times in ms; weights are kept in the arena or loaded in every inference",
    )
    for name in ("layer, node", "kernel", "steps", "kept", "loaded", "scratch", "computes", "waits"):
        left = name in ("layer, node", "kernel")
        table.add_column(name, justify="left" if left else "right", overflow="fold", no_wrap=not left)
    for layer in facts["layers"]:
        sizes = (kib(layer[f"{what}_bytes"]) for what in ("kept", "loaded", "scratch"))
        times = (_milliseconds(layer[f"{what}_ms"]) for what in ("predicted", "waiting"))
        table.add_row(named(layer["name"], layer["node"]), layer["implementation"], str(layer["steps"]), *sizes, *times)
    return table


def _milliseconds(value: float | None) -> str:
    return f"{value:.3f}" if value is not None and value >= 0.0005 else ""
