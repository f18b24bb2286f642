"""Pictures of a plan: addresses over steps, and when it computes and loads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flexcomp.errors import InputError
from flexcomp.files import replacing
from flexcomp.program import Program, Rung
from flexcomp.report.timeline import Lanes

_NARROWEST, _WIDEST = 11.0, 24.0  # inches
_PER_STEP = 1 / 20  # inches


def draw_plan(program: Program, rung: Rung, path: str | Path, timelines: Sequence[Lanes] = ()) -> None:
    """Write the plan `rung` of `program` as a picture, above its `timelines`; the format follows from the name.

    Raises InputError for a format that matplotlib does not write.
    """
    import matplotlib
    from matplotlib.figure import Figure

    from flexcomp.report.memory_axes import draw_memory
    from flexcomp.report.timeline_axes import draw_timelines

    kind = picture_format(path)
    width = min(_WIDEST, max(_NARROWEST, 4.0 + _PER_STEP * len(rung.steps)))
    heights = [6.5, *(1.5 for _ in timelines)]
    figure = Figure(figsize=(width, sum(heights) + 1.2), layout="constrained")
    above, *below = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    draw_memory(above, program, rung, width)
    if below:
        draw_timelines(below, timelines)
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
