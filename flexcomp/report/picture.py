"""Pictures of a plan: addresses over steps, and when it computes and loads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flexcomp.errors import InputError
from flexcomp.files import replacing
from flexcomp.program import Program, Rung
from flexcomp.report.memory_map import KINDS, boxes
from flexcomp.report.timeline import Bar, Lanes

_MIB = 1 << 20
_COLOURS = {
    "activation": "#4c78a8",
    "weights": "#f58518",
    "pinned weights": "#b4500a",
    "preload": "#fbd0a2",
    "scratch": "#54a24b",
}
_COMPUTING, _LOADING = "#4c78a8", "#f58518"
_LANE = 0.8  # of the distance between two lanes


def draw_plan(program: Program, rung: Rung, path: str | Path, timelines: Sequence[Lanes] = ()) -> None:
    """Write the plan `rung` of `program` as a picture, above its `timelines`; the format follows from the name.

    Raises InputError for a format that matplotlib does not write.
    """
    import matplotlib
    from matplotlib.figure import Figure

    kind = picture_format(path)
    steps = len(rung.steps)
    width = min(24.0, max(10.0, 4.0 + steps / 20))
    heights = [5.5, *([0.9 + 0.85 * len(timelines)] if timelines else [])]
    figure = Figure(figsize=(width, sum(heights) + 1.0), layout="constrained")
    above, *below = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    _memory(above, program, rung)
    if below:
        _timelines(below[0], timelines)
    # The same plan gives the same file.
    plain = {"png": {"Software": None}, "svg": {"Date": None}}.get(kind)
    with matplotlib.rc_context({"svg.hashsalt": "flexcomp"}), replacing(path) as partial:
        figure.savefig(partial, format=kind, dpi=130, metadata=plain)


def picture_format(path: str | Path) -> str:
    """How a picture of this name is written. Raises InputError for a format that matplotlib does not write."""
    from matplotlib.backend_bases import FigureCanvasBase

    kind, known = Path(path).suffix.removeprefix(".").lower(), sorted(FigureCanvasBase.get_supported_filetypes())
    if kind not in known:
        raise InputError(f"pictures are written as {', '.join(known)}; {path} ends in none of them")
    return kind


def _memory(axes, program: Program, rung: Rung) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Patch, Rectangle

    steps, found = len(rung.steps), boxes(program, rung)
    edge = 0.4 if steps <= 150 else 0.15  # points; thicker lines would hide the boxes of long plans
    for kind in KINDS:
        shapes = [
            Rectangle((b.start, b.address / _MIB), b.end - b.start, b.nbytes / _MIB) for b in found if b.kind == kind
        ]
        axes.add_collection(
            PatchCollection(shapes, facecolor=_COLOURS[kind], edgecolor="white", linewidth=edge, alpha=0.9)
        )
    line = axes.axhline(
        rung.budget / _MIB, color="#c0392b", linestyle="--", label=f"budget {rung.budget / _MIB:.2f} MiB"
    )
    axes.set_xlim(0, max(steps, 1))
    axes.set_ylim(0, 1.06 * rung.budget / _MIB)
    axes.set_xlabel("step")
    axes.set_ylabel("arena address [MiB]")
    axes.set_title(
        f"{program.model}: arena {rung.arena / _MIB:.2f} MiB, {steps} steps, predicted {rung.predicted_s * 1e3:.1f} ms"
    )
    used = [kind for kind in KINDS if any(b.kind == kind for b in found)]
    axes.figure.legend(
        handles=[*(Patch(color=_COLOURS[kind], label=kind) for kind in used), line],
        loc="outside lower center",
        ncols=len(used) + 1,
        frameon=False,
    )


def _timelines(axes, timelines: Sequence[Lanes]) -> None:
    """Lanes from top to bottom; gaps in a lane are waiting. A line marks the end of the inference."""
    labels = []
    longest = max(lanes.latency for lanes in timelines) * 1e3
    for lanes in timelines:
        for name, bars, colour in (("computing", lanes.computing, _COMPUTING), ("loading", lanes.loading, _LOADING)):
            _lane(axes, -len(labels), bars, colour)
            labels.append(f"{lanes.label}: {name}")
        end, middle = lanes.latency * 1e3, 1.5 - len(labels)
        axes.plot([end, end], [middle - 0.95, middle + 0.95], color="#c0392b", linestyle="--", linewidth=1)
        axes.annotate(
            f" {end:.1f} ms", (end, middle), color="#c0392b", va="center", ha="left", annotation_clip=False, fontsize=9
        )
    axes.axvline(0, color="#999999", linewidth=0.8)  # loads to the left of it began in the inference before
    axes.set_yticks([-i for i in range(len(labels))], labels)
    axes.set_ylim(0.6 - len(labels), 0.6)
    axes.set_xlim(min(0.0, *(bar.start * 1e3 for lanes in timelines for bar in lanes.loading[:1])), 1.08 * longest)
    axes.set_xlabel("time [ms]")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _lane(axes, at: float, bars: Sequence[Bar], colour: str) -> None:
    """Neighbours differ in shade, so that no edge has to cover a short bar."""
    spans = [(bar.start * 1e3, (bar.end - bar.start) * 1e3) for bar in bars]
    for half, alpha in ((0, 1.0), (1, 0.62)):
        axes.broken_barh(spans[half::2], (at - _LANE / 2, _LANE), facecolors=colour, alpha=alpha, linewidth=0)
