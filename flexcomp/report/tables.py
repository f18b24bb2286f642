"""Tables for people, out of the facts of `flexcomp.report.facts`."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flexcomp.units import enough, human_bytes

if TYPE_CHECKING:  # commands that draw no timeline need not load the planner
    from flexcomp.program import Program, Rung
    from flexcomp.report.timeline import Lanes


_NARROW = ("float16", "bfloat16", "int8", "int4")
_BYTES = ("int4", "int8")  # of weights that arithmetic in int8 multiplies
WIDTH = 80  # of a terminal, for which our tables are made


def stdout_console() -> Console:
    """A console on stdout, as wide as its terminal, or where there is none as one is."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def as_text(*tables: Table, width: int = WIDTH) -> str:
    """The tables as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    for table in tables:
        console.print(table)
    return console.file.getvalue().rstrip("\n")


def new_table(title: str, caption: str | None = None) -> Table:
    """An empty table that spends little width on itself."""
    plain = dict(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    return Table(title=title, caption=caption, title_justify="left", caption_justify="left", **plain)


def kib(nbytes: int) -> str:
    """A number of KiB, in columns that say so once; nothing for nothing."""
    return f"{nbytes / 1024:,.0f}" if nbytes >= 1024 else f"{nbytes / 1024:.1f}" if nbytes else ""


def named(first: str, second: str | None) -> Text:
    """Two names of something, one below the other."""
    return Text.assemble(first, (f"\n{second}", "dim") if second else "")


def layer_table(facts: dict) -> Table:
    """One row for each layer of `flexcomp.report.facts.describe`, and for all bands of a layer that the same budgets use."""
    note = "sizes in KiB"
    if facts["error"] is not None:
        kinds = {layer["weights_dtype"] for layer in facts["layers"] if layer["arithmetic_error"] is not None}
        by = f"arithmetic in {'int8' if kinds & {*_BYTES} else 'float16'}" if kinds else "narrow weights"
        note += f"; by {by} outputs err by {facts['error']:.1e} of the largest, by a layer's alone as it says"
    table = new_table(f"{facts['model']}: layers, in how many slices, and by how many budgets they are used", note)
    for name in ("layer, node", "computes, kernel", "MFLOP", "weights", "scratch", "slices", "used"):
        left = name in ("layer, node", "computes, kernel")
        table.add_column(name, justify="left" if left else "right", overflow="fold", no_wrap=not left)
    for layers in _with_bands_together(facts["layers"]):
        layer = layers[0]
        slices = [count for band in layers for count in band["slices"] if count] or [1]  # of first inferences only
        fewest, most = min(slices), max(slices)
        times = sum(count > 0 for count in layer["slices"])
        table.add_row(
            named(f"{layer['band_of']} in {len(layers)} bands" if layer["band_of"] else layer["name"], layer["node"]),
            named(layer["description"], layer["implementation"]),
            f"{sum(band['flops'] for band in layers) / 1e6:.1f}",
            _weights(layer),
            kib(layer["scratch_bytes"]),
            str(fewest) if fewest == most else f"{fewest}–{most}",
            "all" if times == len(layer["slices"]) else f"{times}/{len(layer['slices'])}" if times else "first",
        )
    return table


def _weights(layer: dict) -> str:
    """Bytes, the type if narrow, and its error if known; of a layer that arithmetic in fewer bits was tried in, that error."""
    kind, errors, half = layer["weights_dtype"], layer["weights_errors"] or {}, layer["arithmetic_error"]
    lines = [kib(layer["weights_bytes"])] + ([kind] if kind in _NARROW or half is not None else [])
    if half is not None:
        error = half if isinstance(half, str) else f"{half:.1e}"
        is_chosen = kind in ("float16", "bfloat16") or layer["arithmetic"] == "int8"
        return "\n".join([*lines, error if is_chosen else f"({error})"])  # in brackets what was avoided
    return "\n".join(lines + ([f"{errors[kind]:.1e}"] if errors.get(kind) else []))


def _with_bands_together(layers: list[dict]) -> Iterable[list[dict]]:
    """Every layer alone, and the bands of a layer that belong to the same budgets as one."""
    groups: dict[tuple, list[dict]] = {}
    for layer in layers:
        budgets = tuple(count > 0 for count in layer["slices"])
        key = (layer["band_of"], layer["implementation"], budgets) if layer["band_of"] else (layer["name"],)
        groups.setdefault(key, []).append(layer)
    return groups.values()


def choice_table(facts: dict) -> Table | None:
    """The kernels that layers had to choose from, and the reason for each choice; None if there was no choice.

    Layers with the same candidates, of which all budgets make the same choice, share their rows.
    """
    table = new_table(
        "choice of kernels, and what it was chosen over",
        "predicted times in ms, sizes in KiB; used by how many budgets",
    )
    for name in ("layers, kernels", "ms", "weights", "scratch", "used", "why"):
        left = name in ("layers, kernels", "why")
        ratio = {"layers, kernels": 3, "why": 2}.get(name)
        table.add_column(name, justify="left" if left else "right", overflow="fold", no_wrap=not left, ratio=ratio)
    by_name = {layer["name"]: layer for layer in facts["layers"]}
    groups: dict[str, list[dict]] = {}
    for layer in facts["layers"]:
        # Layers that can replace one another have the same candidates; the first stands for them.
        holders = [candidate["layer"] for candidate in layer["candidates"]]
        if holders and layer["name"] == next(name for name in by_name if name in holders):
            reasons = [by_name[name]["why"] if name else None for name in holders]
            candidates = [{**candidate, "layer": bool(candidate["layer"])} for candidate in layer["candidates"]]
            groups.setdefault(repr((candidates, reasons)), []).append(layer)
    for layers in groups.values():
        _choice_rows(table, layers, by_name)
    return table if groups else None


def _choice_rows(table: Table, layers: list[dict], by_name: dict[str, dict]) -> None:
    names = ", ".join(".".join(layer["name"].split(".")[:2]) for layer in layers)
    table.add_row(Text(names, "bold"))
    for position, candidate in enumerate(layers[0]["candidates"]):
        why = by_name[candidate["layer"]]["why"] if candidate["layer"] else []
        counts = Counter(reason for reason in why if reason)
        times = f"{sum(counts.values())}/{len(why)}" if counts else ""
        reasons = "; ".join(f"{reason} ({count})" if len(counts) > 1 else reason for reason, count in counts.items())
        table.add_row(
            f"  {candidate['implementation']}",
            f"{candidate['predicted_ms']:.3f}",
            kib(candidate["weights_bytes"]),
            kib(candidate["scratch_bytes"]),
            times,
            reasons or candidate["passed_over"] or "in first inferences only",
            end_section=position == len(layers[0]["candidates"]) - 1,
        )


def timeline_table(program: Program, rung: Rung, timelines: Sequence[Lanes]) -> Table:
    """The parts of one inference, one row for each timeline."""
    budget = f"{program.model} in {human_bytes(rung.budget)}"
    table = new_table(f"{budget}: {len(rung.steps)} steps, {len({one.load for one in rung.tapes.operations})} loads")
    prepares = any(lanes.preparing for lanes in timelines)
    for name in ("", "latency", "computing", "waiting", "loading", *(["preparing"] if prepares else []), "loaded"):
        table.add_column(name, justify="right" if name else "left")
    for lanes in timelines:
        loading = sum(bar.end - bar.start for bar in lanes.loading)
        seconds = (lanes.latency, lanes.busy, lanes.stalled, loading)
        nbytes = sum(bar.facts["bytes"] for bar in lanes.loading)
        texts = [f"{value * 1e3:.2f} ms" for value in seconds]
        if prepares:  # predictions count preparing within loading
            texts.append(f"{sum(bar.end - bar.start for bar in lanes.preparing) * 1e3:.2f} ms" if lanes.preparing else "")
        table.add_row(lanes.label, *texts, human_bytes(nbytes))
    return table


def ladder_table(facts: dict) -> Table:
    """One row for each budget of `flexcomp.report.facts.describe`."""
    table = new_table("budgets")
    for name in ("budget", "arena", "pinned", "streamed per run", "predicted", "steps"):
        table.add_column(name, justify="right")
    for rung in facts["ladder"]:
        table.add_row(
            enough(rung["budget_bytes"]),
            enough(rung["arena_bytes"]),
            human_bytes(rung["pinned_bytes"]),
            human_bytes(rung["streamed_bytes"]),
            f"{rung['predicted_ms']:.2f} ms",
            str(rung["steps"]),
        )
    return table
