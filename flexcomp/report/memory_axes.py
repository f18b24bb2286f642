"""The upper half of a picture: addresses of the arena over steps."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from flexcomp.program import Program, Rung
from flexcomp.report.marks import Neediest, Stretch, neediest, stretches
from flexcomp.report.memory_map import KINDS, boxes
from flexcomp.units import enough

_MIB = 1 << 20
_COLOURS = {
    "activation": "#4c78a8",
    "state": "#e45756",
    "weights": "#f58518",
    "pinned weights": "#b4500a",
    "preload": "#fbd0a2",
    "scratch": "#54a24b",
}
_BUDGET, _MINIMUM = "#c0392b", "#7b3294"
_EDGED = 300  # steps; thick edges of more would hide the boxes
_NAME_WIDTH = 0.17  # inches that a name takes, upright
_LETTERS = 11  # of the sentence, in an inch of the picture


def draw_memory(axes, program: Program, rung: Rung, width: float) -> None:
    """Fill axes of a width in inches."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Patch, Rectangle

    steps, found = len(rung.steps), boxes(program, rung)
    edge = 0.4 if steps <= _EDGED else 0.15  # points
    for kind in KINDS:
        shapes = [
            Rectangle((b.start, b.address / _MIB), b.end - b.start, b.nbytes / _MIB) for b in found if b.kind == kind
        ]
        axes.add_collection(PatchCollection(shapes, facecolor=_COLOURS[kind], edgecolor="white", linewidth=edge, alpha=0.9))
    budget = axes.axhline(rung.budget / _MIB, color=_BUDGET, linestyle="--", label=f"budget {enough(rung.budget)}")
    most = neediest(program, rung, found)
    _mark(axes, most, steps)
    axes.set_xlim(0, max(steps, 1))
    axes.set_ylim(0, 1.06 * rung.budget / _MIB)
    axes.set_ylabel("arena address [MiB]")
    _name_layers(axes, stretches(program, rung), int(width / _NAME_WIDTH))
    axes.set_title(textwrap.fill(str(most), int(width * _LETTERS)), fontsize=9, color=_MINIMUM)
    used = [kind for kind in KINDS if any(b.kind == kind for b in found)]
    handles = [*(Patch(color=_COLOURS[kind], label=kind) for kind in used), budget]
    title = f"{program.model} in {enough(rung.budget)}: {steps} steps, predicted {rung.predicted_ms:.1f} ms"
    axes.figure.legend(
        handles=handles, loc="outside upper center", ncols=len(handles), frameon=False, title=title, title_fontsize=13
    )


def _mark(axes, most: Neediest, steps: int) -> None:
    """A frame around the step that sets the minimum, wide enough to be seen."""
    width = max(1.0, steps / 400)
    centre = most.step + 0.5
    axes.axvspan(centre - width / 2, centre + width / 2, facecolor="none", edgecolor=_MINIMUM, linewidth=1.2, zorder=3)
    axes.plot([centre], [0.985], marker="v", markersize=8, color=_MINIMUM, transform=axes.get_xaxis_transform(), clip_on=False)


def _name_layers(axes, found: Sequence[Stretch], room: int) -> None:
    """Names below the axis, of as many stretches as have room, the longest first; and the numbers of some steps above them."""
    steps = max(found[-1].end, 1)
    apart = steps / max(room, 1)
    named: list[Stretch] = []
    for stretch in sorted(found, key=lambda s: (s.start - s.end, s.start)):
        if all(abs(_middle(stretch) - _middle(other)) >= apart for other in named):
            named.append(stretch)
    named.sort(key=_middle)
    axes.set_xticks([_middle(s) for s in named], [s.name for s in named], rotation=90, fontsize=8)
    for edge in {s.start for s in found if steps <= _EDGED}:
        axes.axvline(edge, color="#000000", alpha=0.06, linewidth=0.6, zorder=0)
    axes.secondary_xaxis("top").tick_params(labelsize=7, colors="#666666")
    hidden = len(found) - len(named)
    axes.set_xlabel("layers, over the numbers of steps" + (f" ({hidden} names have no room)" if hidden else ""))


def _middle(stretch: Stretch) -> float:
    return (stretch.start + stretch.end) / 2
