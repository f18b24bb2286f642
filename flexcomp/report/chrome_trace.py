"""Timelines for Perfetto and chrome://tracing, in the JSON Trace Event format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from flexcomp.files import replacing
from flexcomp.program import Program, Rung

from .memory_map import KINDS, boxes
from .timeline import Bar, Lanes

_COMPUTING, _LOADING, _PREPARING = 1, 2, 3  # thread numbers
_CATEGORIES = {_COMPUTING: "step", _LOADING: "load", _PREPARING: "prepare"}
_MICROSECONDS = 1e6


def trace_events(program: Program, rung: Rung, timelines: Iterable[Lanes]) -> dict:
    """One process for each timeline, with a thread that computes, one that loads, one that prepares weights if any does,
    and the arena's use as counters."""
    events: list[dict] = []
    timelines = list(timelines)
    # Viewers want no negative times, and loads may begin in the inference before.
    zero = min((bar.start for lanes in timelines for bar in lanes.loading), default=0.0)
    zero = min(zero, 0.0)
    for process, lanes in enumerate(timelines, 1):
        events.append(_label("process_name", process, 0, f"{program.model}, {lanes.label}"))
        for thread, name, bars in (
            (_COMPUTING, "computing", lanes.computing),
            (_LOADING, "loading", lanes.loading),
            *([(_PREPARING, "preparing", lanes.preparing)] if lanes.preparing else []),
        ):
            events.append(_label("thread_name", process, thread, name))
            events.extend(_span(bar, process, thread, zero) for bar in bars)
        events.extend(_memory(program, rung, lanes, process, zero))
    facts = {"model": program.model, "budget_bytes": rung.budget, "arena_bytes": rung.arena}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}


def write_trace(program: Program, rung: Rung, timelines: Iterable[Lanes], path: str | Path) -> None:
    """Write `trace_events` to a file."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(trace_events(program, rung, timelines)), encoding="utf-8")


def _label(what: str, process: int, thread: int, name: str) -> dict:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _span(bar: Bar, process: int, thread: int, zero: float) -> dict:
    return {
        "ph": "X",
        "name": bar.name,
        "cat": _CATEGORIES[thread],
        "ts": (bar.start - zero) * _MICROSECONDS,
        "dur": (bar.end - bar.start) * _MICROSECONDS,
        "pid": process,
        "tid": thread,
        "args": bar.facts,
    }


def _memory(program: Program, rung: Rung, lanes: Lanes, process: int, zero: float) -> Iterator[dict]:
    """Bytes of the arena in use by kind, at the beginning of every step."""
    changes = [dict.fromkeys(KINDS, 0) for _ in range(len(rung.steps) + 1)]
    for box in boxes(program, rung):
        changes[box.start][box.kind] += box.nbytes
        changes[box.end][box.kind] -= box.nbytes
    used = dict.fromkeys(KINDS, 0)
    for bar, change in zip(lanes.computing, changes, strict=False):
        used = {kind: used[kind] + change[kind] for kind in KINDS}
        at = (bar.start - zero) * _MICROSECONDS
        yield {"ph": "C", "name": "arena", "ts": at, "pid": process, "tid": 0, "args": used}
