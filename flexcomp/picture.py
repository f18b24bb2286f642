"""The picture of a memory plan: addresses over steps."""

from __future__ import annotations

from pathlib import Path

from flexcomp.errors import InputError
from flexcomp.memory_map import KINDS, boxes
from flexcomp.program import Program, Rung

_MIB = 1 << 20
_COLOURS = {
    "activation": "#4c78a8",
    "weights": "#f58518",
    "pinned weights": "#b4500a",
    "preload": "#fbd0a2",
    "scratch": "#54a24b",
}


def draw_plan(program: Program, rung: Rung, path: str | Path) -> None:
    """Write the plan `rung` of `program` as a picture; the format follows from the name.

    Raises InputError for a format that matplotlib does not write.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import PatchCollection
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch, Rectangle

    steps = len(rung.steps)
    figure = Figure(figsize=(min(24.0, max(9.0, 4.0 + steps / 20)), 6.5), layout="constrained")
    formats = sorted(FigureCanvasAgg(figure).get_supported_filetypes())
    if Path(path).suffix.removeprefix(".").lower() not in formats:
        raise InputError(f"pictures are written as {', '.join(formats)}; {path} ends in none of them")
    axes = figure.add_subplot()
    edge = 0.4 if steps <= 150 else 0.15  # points; thicker lines would hide the boxes of long plans
    found = boxes(program, rung)
    for kind in KINDS:
        shapes = [
            Rectangle((b.start, b.address / _MIB), b.end - b.start, b.nbytes / _MIB)
            for b in found
            if b.kind == kind
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
        f"{program.model}: arena {rung.arena / _MIB:.2f} MiB, {steps} steps, "
        f"predicted {rung.predicted_s * 1e3:.1f} ms"
    )
    used = [kind for kind in KINDS if any(b.kind == kind for b in found)]
    figure.legend(
        handles=[*(Patch(color=_COLOURS[kind], label=kind) for kind in used), line],
        loc="outside lower center",
        ncols=len(used) + 1,
        frameon=False,
    )
    figure.savefig(path, dpi=130, metadata={"Software": None} if str(path).endswith(".png") else None)
