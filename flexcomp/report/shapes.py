"""Libraries of several shapes: the facts of each, and which one is meant."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from rich.table import Table

from flexcomp.errors import InputError
from flexcomp.program import EXTENTS, Program
from flexcomp.units import enough

from .tables import new_table


def select_shape(programs: Sequence[Program], extents: Mapping[str, Sequence[int]]) -> Program:
    """The program of the shape with these extents, by name, of which each has one; the first one where none are given.

    Raises InputError if there is none, or several.
    """
    if not extents:
        return programs[0]
    found = [one for one in programs if all(_extents(one).get(name) in values for name, values in extents.items())]
    if len(found) != 1:
        there = "; ".join(_named(one) for one in programs) if len(programs) > 1 else "one shape, without names"
        asked = ", ".join(f"{name}={','.join(map(str, values))}" for name, values in extents.items())
        raise InputError(f"{'no' if not found else 'more than one'} shape is {asked}: the library holds {there}")
    return found[0]


def shape_facts(programs: Sequence[Program]) -> list[dict]:
    """Of each shape its extents by name, its inputs' shapes, its budgets in bytes and its times in milliseconds."""
    return [
        {
            "extents": _extents(one),
            "inputs": {port.name: list(port.type.shape) for port in one.inputs},
            "min_budget_bytes": one.rungs[0].budget,
            "default_budget_bytes": one.default_budget,
            "resident_bytes": one.rungs[-1].budget,
            "min_predicted_ms": one.rungs[0].predicted_ms,
            "resident_predicted_ms": one.rungs[-1].predicted_ms,
        }
        for one in programs
    ]


def shape_table(facts: dict) -> Table:
    """One row for each shape of a library, of facts with `shape_facts` as "shapes"."""
    table = new_table("shapes")
    for name in ("shape", "smallest budget", "predicted", "resident", "predicted"):
        table.add_column(name, justify="right" if name != "shape" else "left")
    for one in facts["shapes"]:
        table.add_row(
            ", ".join(f"{name}={extent}" for name, extent in one["extents"].items()),
            enough(one["min_budget_bytes"]),
            f"{one['min_predicted_ms']:.2f} ms",
            enough(one["resident_bytes"]),
            f"{one['resident_predicted_ms']:.2f} ms",
        )
    return table


def _extents(program: Program) -> dict[str, int]:
    return json.loads(program.metadata.get(EXTENTS, "{}"))


def _named(program: Program) -> str:
    return ", ".join(f"{name}={extent}" for name, extent in _extents(program).items())
