"""Pictures of plans (addresses over steps, times of computing and loading) and of the types of weights (errors over bytes)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flexcomp.errors import ArtifactError, InputError
from flexcomp.files import replacing
from flexcomp.program import Program, Rung, weight_errors
from flexcomp.report.timeline import Lanes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NARROWEST, _WIDEST = 11.0, 24.0  # inches
_PER_STEP = 1 / 20  # inches


def draw_plan(program: Program, rung: Rung, path: str | Path, timelines: Sequence[Lanes] = ()) -> None:
    """Write the plan `rung` of `program` as a picture, above its `timelines`; the format follows from the name.

    Raises InputError for a format that matplotlib does not write.
    """
    from matplotlib.figure import Figure

    from flexcomp.report.memory_axes import draw_memory
    from flexcomp.report.timeline_axes import draw_timelines

    picture_format(path)
    width = min(_WIDEST, max(_NARROWEST, 4.0 + _PER_STEP * len(rung.steps)))
    heights = [6.5, *(1.5 for _ in timelines)]
    figure = Figure(figsize=(width, sum(heights) + 1.2), layout="constrained")
    above, *below = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    draw_memory(above, program, rung, width)
    if below:
        draw_timelines(below, timelines)
    _write(figure, path)


def draw_weights(program: Program, path: str | Path) -> None:
    """Write how the types of a program's weights were chosen as a picture: the error of the outputs over bytes, the layers in the
    order of narrowing, the allowed error and the choice; the format follows from the name.

    Raises ArtifactError if types were not chosen by errors, and InputError for a format that matplotlib does not write.
    """
    from matplotlib.figure import Figure

    from flexcomp.report.weight_axes import draw_errors, draw_order

    picture_format(path)
    found = weight_errors.read(program)
    if found is None:
        raise ArtifactError(f"the types of {program.model}'s weights were not chosen by errors: build it with --weights auto")
    width = 8.5  # inches: a page shows all of it
    figure = Figure(figsize=(width, 7.5), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[3, 2])
    figure.suptitle(f"{program.model}: weights in fewer bits, and the error of the outputs", fontsize=13)
    draw_errors(above, found)
    draw_order(below, found, width)
    _write(figure, path)


def _write(figure: Figure, path: str | Path) -> None:
    import matplotlib

    kind = picture_format(path)
    # The same figure gives the same file.
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
