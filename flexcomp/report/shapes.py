"""Libraries of several shapes: the facts of each, and which one is meant."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.table import Table

from flexcomp.errors import InputError
from flexcomp.printable import printable
from flexcomp.program import EXTENTS, Port, Program
from flexcomp.runtime import ShapeInfo, TensorInfo, padding_of
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


def pad_facts(programs: Sequence[Program]) -> dict | None:
    """What sessions pad inputs with, and the names of the axes that are padded and cut; None for a library without padding.

    Raises ArtifactError for a record that does not fit the library.
    """
    shapes = [ShapeInfo(_extents(one), _infos(one.inputs), _infos(one.outputs)) for one in programs]
    padding = padding_of({"metadata": programs[0].metadata}, shapes)
    return None if padding is None else asdict(padding)


def pad_lines(facts: dict) -> list[str]:
    """One for each padded input, of facts with `pad_facts` as "pad"."""
    pad = facts["pad"]
    lines = []
    for name, value in pad["values"].items():
        names = ", ".join(of for of in pad["inputs"][name] if of is not None)
        lines.append(printable(f"input {name} is padded with {value} to the next {names}"))
    return lines


def _infos(ports: Sequence[Port]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(port.name, port.type.shape, port.type.dtype) for port in ports)


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
