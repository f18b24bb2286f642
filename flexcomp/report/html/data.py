"""The figures of a report: those of `flexcomp inspect --json`, and every plan."""

from __future__ import annotations

from collections.abc import Mapping

from flexcomp.program import Prediction, Program, Rung, from_program
from flexcomp.report.gains import gains
from flexcomp.report.memory_map import KINDS, boxes
from flexcomp.report.one_plan import plan_facts
from flexcomp.report.timeline import predicted
from flexcomp.version import __version__

_PER_MS = 10_000  # times of steps and loads are whole tenths of a microsecond


def report_data(program: Program, facts: dict, asked: Rung | None = None) -> dict:
    """`facts` are those of `describe`; the report opens with the plan `asked`, without it with the smallest."""
    names = dict.fromkeys([layer.name for layer in program.layers])
    names |= dict.fromkeys([value.name for value in program.values]) | {"": None}  # of loads that no step needs
    numbers = {name: index for index, name in enumerate(names)}
    return {
        "version": __version__,
        "facts": facts,
        "shown": program.rungs.index(asked) if asked else 0,
        "gains": gains(program, asked),
        "storage": _storage(from_program(program)),
        "kinds": list(KINDS),
        "names": list(names),
        "per_ms": _PER_MS,
        "plans": [_plan(program, rung, numbers) for rung in program.rungs],
    }


def _storage(assumed: Prediction | None) -> dict | None:
    if assumed is None:
        return None
    return {"bytes_per_s": assumed.storage.bandwidth, "single_ms": assumed.storage.single_s * 1e3}


def _plan(program: Program, rung: Rung, names: Mapping[str, int]) -> dict:
    """Columns: who occupies what, steps, loads, and layers as the plan turns to them; names by their numbers."""
    lanes = predicted(program, rung)
    loads = lanes.loading if lanes else ()
    prepared = {one.load for one in rung.tapes.repeated if one.prepare}
    found = boxes(program, rung)
    layers = plan_facts(program, rung, lanes)["layers"]
    return {
        "boxes": {
            "kind": [KINDS.index(box.kind) for box in found],
            "name": [names[box.name] for box in found],
            "start": [box.start for box in found],
            "end": [box.end for box in found],
            "address": [box.address for box in found],
            "bytes": [box.nbytes for box in found],
        },
        "steps": {
            "layer": [step.layer for step in rung.steps],
            "first": [step.first for step in rung.steps],
            "count": [step.count for step in rung.steps],
            "start": [_ticks(bar.start) for bar in lanes.computing] if lanes else None,
            "end": [_ticks(bar.end) for bar in lanes.computing] if lanes else None,
        },
        "loads": {
            "name": [names[bar.name] for bar in loads],
            "bytes": [bar.facts["bytes"] for bar in loads],
            "prepared": [bar.facts["load"] in prepared for bar in loads],
            "start": [_ticks(bar.start) for bar in loads],
            "end": [_ticks(bar.end) for bar in loads],
        },
        "layers": {
            "layer": [names[layer["name"]] for layer in layers],
            **{key: [layer[key] for layer in layers] for key in ("steps", "kept_bytes", "loaded_bytes")},
            "computing": [_ticks(layer["predicted_ms"] / 1e3) for layer in layers] if lanes else None,
            "waiting": [_ticks(layer["waiting_ms"] / 1e3) for layer in layers] if lanes else None,
        },
    }


def _ticks(seconds: float) -> int:
    return round(seconds * 1e3 * _PER_MS)
