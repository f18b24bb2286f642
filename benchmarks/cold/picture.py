"""First outputs of all engines, as bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.cold.networks import TITLES
from benchmarks.cold.summary import INT8, OURS, Network
from benchmarks.peers import ENGINES

_COLOURS = {
    OURS: "tab:red",
    INT8: "lightcoral",
    "ncnn": "tab:blue",
    "onnxruntime": "tab:green",
    "mnn": "tab:purple",
    "openvino": "tab:orange",
}


def draw(networks: Sequence[Network], path: Path) -> None:
    """A field for each number of threads: medians, what is possible as a line above our bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    threads = list(dict.fromkeys(one.threads for one in networks))
    figure, fields = pyplot.subplots(len(threads), 1, figsize=(13, 4 * len(threads)), squeeze=False, layout="constrained")
    for count, axis in zip(threads, fields[:, 0], strict=True):
        found = [one for one in networks if one.threads == count]
        _draw_one(axis, found)
        axis.set_title(f"{count} thread{'s' * (count > 1)}", fontsize=10)
    handles, names = fields[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=len(names), frameon=False)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _draw_one(axis, networks: Sequence[Network]) -> None:
    width = 0.85 / len(_COLOURS)
    for index, (name, colour) in enumerate(_COLOURS.items()):
        places, heights = [], []
        for place, one in enumerate(networks):
            times = next((one.times[form] for form in (name, f"{name} cached") if form in one.times), None)
            if times and times.right:
                places.append(place + (index - len(_COLOURS) / 2 + 0.5) * width)
                heights.append(times.median)
        title = ENGINES[name].title if name in ENGINES else name
        axis.bar(places, heights, width, color=colour, label=title)
    for place, one in enumerate(networks):
        if OURS in one.bounds_ms:
            bound = sorted(one.bounds_ms[OURS])[len(one.bounds_ms[OURS]) // 2]
            left = place - len(_COLOURS) / 2 * width
            axis.hlines(bound, left, left + width, color="black", linewidth=1.5, label=None if place else "possible")
    axis.set_yscale("log")
    axis.set_ylabel("first output, ms")
    titles = [TITLES.get(one.name, one.name) for one in networks]
    axis.set_xticks(range(len(networks)), titles, rotation=30, ha="right", fontsize=9)
    axis.margins(x=0.01)
    axis.set_axisbelow(True)
    axis.grid(alpha=0.3, axis="y", which="both")
