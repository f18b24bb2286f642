"""Latency over memory: flexcomp as a curve over its budgets, the peers as points."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers import ENGINES

_MARKS = {"ncnn": "s", "onnxruntime": "o", "mnn": "^", "openvino": "D"}
_COLOURS = {"flexcomp": "tab:red", "ncnn": "tab:blue", "onnxruntime": "tab:green", "mnn": "tab:purple"}
MB = 1e6


def draw(results: Sequence[dict], path: Path) -> None:
    """One field for each network and number of threads, in the order of `results`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(2, len(results))  # a page shows it 800 pixels wide
    rows = -(-len(results) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(4.0 * columns, 2.1 * rows + 0.4), squeeze=False, layout="constrained")
    handles: dict[str, object] = {}
    for axis, result in zip(axes.flat, results, strict=False):
        handles |= _draw_one(axis, result)
    for axis in list(axes.flat)[len(results) :]:
        axis.set_visible(False)
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles), frameon=False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def by_network(runs: Sequence[Sequence[dict]]) -> list[dict]:
    """The results of several processors in one list: those of a network next to each other, in the order of the runs."""
    results = [result for run in runs for result in run]
    names = list(dict.fromkeys((result["network"], result["threads"]) for result in results))
    return sorted(results, key=lambda result: names.index((result["network"], result["threads"])))


def shown(results: Sequence[dict]) -> list[dict]:
    """The results of a comparison for the picture."""
    return [
        {
            "network": result["network"],
            "threads": result["threads"],
            "processor": result.get("processor", ""),
            "engines": {name: _place(found) for name, found in result["engines"].items()},
            "curve": [_place(point) for point in result["curve"]],
        }
        for result in results
    ]


def _place(found: dict) -> dict:
    return {key: found[key] for key in ("status", "memory_bytes", "latency_ms") if key in found}


def _draw_one(axis, result: dict) -> dict[str, object]:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    handles: dict[str, object] = {}
    curve = sorted((point["memory_bytes"] / MB, point["latency_ms"]) for point in result["curve"])
    if curve:
        (handles["flexcomp"],) = axis.plot(*zip(*curve, strict=True), "-o", color=_COLOURS["flexcomp"], markersize=4)
    for name, mark in _MARKS.items():
        found = result["engines"].get(name)
        if found and found["status"] == "ok":
            colour = _COLOURS.get(name, "tab:orange")
            place = ([found["memory_bytes"] / MB], [found["latency_ms"]])
            (handles[ENGINES[name].title],) = axis.plot(*place, mark, color=colour, markersize=7)
    threads, processor = result["threads"], result.get("processor")
    title = f"{result['network']}, {threads} thread{'s' * (threads > 1)}"
    axis.set_title(f"{title}, {processor}" if processor else title, fontsize=10)
    axis.set_xscale("log")
    axis.margins(0.08)
    axis.set_ylim(bottom=0)
    low, high = axis.get_xlim()
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low > 4 else (1, 2, 3, 4, 6, 8)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xlabel("memory, MB")
    axis.set_ylabel("latency, ms")
    axis.grid(alpha=0.3, which="both")
    return handles
