"""Two pictures of the types that `weights="auto"` chose: error over bytes, and the layers in the order of narrowing."""

from __future__ import annotations

from collections.abc import Sequence

from flexcomp.program import Narrowing, WeightErrors

_MB = 1e6
_COLOURS = {"int4": "#e45756", "int8": "#f58518", "float16": "#4c78a8", "bfloat16": "#54a24b"}
_LINE, _CHOICE, _LIMIT = "#666666", "#7b3294", "#c0392b"
_PALE = 0.3  # of narrowings that were not made
_NAME_WIDTH = 0.17  # inches that a name takes, upright
_LETTERS = 28  # of a name; its end says more than its beginning


def draw_errors(axes, found: WeightErrors) -> None:
    """The error of the outputs over the bytes of all weights: as the sum of the layers' errors, and as measured."""
    way = [(n.nbytes / _MB, n.error) for n in found.narrowings if n.error]
    axes.plot(*_columns(way), color=_LINE, linewidth=1, drawstyle="steps-post", label="as the errors of layers add up")
    tried = [(nbytes / _MB, error) for nbytes, error in found.tried if error]
    axes.plot(*_columns(tried), "o", color=_LINE, markersize=4, label="measured")
    axes.axhline(found.max_error, color=_LIMIT, linestyle="--", label=f"allowed: {found.max_error:g}")
    if found.error:
        label = f"chosen: {found.error:.1e} in {found.nbytes / _MB:.2f} MB"
        axes.plot([found.nbytes / _MB], [found.error], "*", color=_CHOICE, markersize=15, zorder=3, label=label)
        axes.set_yscale("log")
    else:
        axes.axvline(found.nbytes / _MB, color=_CHOICE, label=f"chosen: no error in {found.nbytes / _MB:.2f} MB")
    axes.set_xlim(0, 1.02 * found.float32_nbytes / _MB)
    axes.set_xlabel("weights of these layers [MB]; at the right end all of them are float32")
    axes.set_ylabel("error, part of the largest output")
    axes.grid(alpha=0.2)
    axes.legend(fontsize=8, frameon=False)


def draw_order(axes, found: WeightErrors, width: float) -> None:
    """Bytes that every narrowing saves, in their order, for axes of a width in inches; those not made are pale."""
    from matplotlib.patches import Patch

    before = [found.float32_nbytes, *(n.nbytes for n in found.narrowings)]
    saved = [(old - n.nbytes) / _MB for old, n in zip(before, found.narrowings, strict=False)]
    for index, (narrowing, size) in enumerate(zip(found.narrowings, saved, strict=True)):
        axes.bar(index, size, color=_COLOURS[narrowing.dtype], alpha=1 if narrowing.done else _PALE)
    named = _with_room(saved, int(width / _NAME_WIDTH))
    axes.set_xticks(named, [_short(found.narrowings[index]) for index in named], rotation=90, fontsize=8)
    hidden = len(saved) - len(named)
    more = f" ({hidden} names have no room)" if hidden else ""
    axes.set_xlabel(f"layers in the order of narrowing, least error per saved byte first{more}")
    axes.set_ylabel("saved [MB]")
    axes.set_xlim(-1, max(len(saved), 1))
    used = [kind for kind in _COLOURS if any(n.dtype == kind for n in found.narrowings)]
    handles = [Patch(color=_COLOURS[kind], label=f"to {kind}") for kind in used]
    if not all(n.done for n in found.narrowings):
        handles.append(Patch(color="#000000", alpha=_PALE, label="not done: it would err by too much"))
    if handles:
        axes.legend(handles=handles, fontsize=8, frameon=False)


def _with_room(saved: Sequence[float], room: int) -> list[int]:
    """The numbers of the narrowings that are named: those that save most, as far as there is room."""
    apart, named = len(saved) / max(room, 1), []
    for index in sorted(range(len(saved)), key=lambda index: (-saved[index], index)):
        if all(abs(index - other) >= apart for other in named):
            named.append(index)
    return sorted(named)


def _short(narrowing: Narrowing) -> str:
    name = narrowing.layer
    return name if len(name) <= _LETTERS else f"…{name[1 - _LETTERS :]}"


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
