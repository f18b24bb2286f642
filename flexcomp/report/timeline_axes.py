"""The lower part of a picture: when a plan computes, waits and loads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flexcomp.report.timeline import Bar, Lanes

_COMPUTING, _LOADING, _PREPARING, _WAITING, _END = "#4c78a8", "#f58518", "#54a24b", "#e6c9c9", "#c0392b"
_LANE = 0.8  # of the distance between two lanes
_BARS = 400  # more of them are thinner than the eye can tell: shares of the time are shown instead
_BINS = 500
_ALIKE = 1.25  # latencies that differ by no more share a scale


def draw_timelines(all_axes: Sequence, timelines: Sequence[Lanes]) -> None:
    """Fill one of the axes for each timeline; those whose latencies are alike get the same scale."""
    longest = max(lanes.latency for lanes in timelines)
    alike = longest <= _ALIKE * min(lanes.latency for lanes in timelines)
    for axes, lanes in zip(all_axes, timelines, strict=True):
        scale = timelines if alike else [lanes]
        first = min([0.0, *(bar.start for lanes in scale for bar in lanes.loading[:1])])
        _one(axes, lanes, first * 1e3, 1.08e3 * max(lanes.latency for lanes in scale))
    own = "" if alike else ", each on a scale of its own"
    all_axes[-1].set_xlabel(f"time [ms]{own}")
    _legend(all_axes[0], any(map(_many, timelines)), any(lanes.preparing for lanes in timelines))


def _many(lanes: Lanes) -> bool:
    return max(len(lanes.computing), len(lanes.loading)) > _BARS


def _one(axes, lanes: Lanes, left: float, right: float) -> None:
    """Two lanes, or three where weights are prepared. A line marks the end of the inference."""
    end = lanes.latency * 1e3
    axes.broken_barh([(0, end)], (-_LANE / 2, _LANE), facecolors=_WAITING, linewidth=0)  # computing covers the rest
    drawn = [("computing", lanes.computing, _COMPUTING), ("loading", lanes.loading, _LOADING)]
    if lanes.preparing:
        drawn.append(("preparing", lanes.preparing, _PREPARING))
    for at, (_, bars, colour) in zip(range(0, -len(drawn), -1), drawn, strict=True):
        (_shares if _many(lanes) else _bars)(axes, at, bars, colour)
    axes.axvline(end, color=_END, linestyle="--", linewidth=1)
    words = f" {end:.1f} ms,\n waits {lanes.stalled * 1e3:.1f}"
    axes.annotate(words, (end, -0.5), color=_END, va="center", ha="left", annotation_clip=False, fontsize=9)
    axes.axvline(0, color="#999999", linewidth=0.8)  # loads to the left began in the inference before
    axes.set_yticks(range(0, -len(drawn), -1), [f"{lanes.label}: computing", *(name for name, _, _ in drawn[1:])])
    axes.set_ylim(0.4 - len(drawn), 0.6)
    axes.set_xlim(left, right)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _bars(axes, at: float, bars: Sequence[Bar], colour: str) -> None:
    """Neighbours differ in shade, so that no edge has to cover a short bar."""
    spans = [(bar.start * 1e3, (bar.end - bar.start) * 1e3) for bar in bars]
    for half, alpha in ((0, 1.0), (1, 0.62)):
        pale = [colour if alpha == 1.0 else _mixed(colour, alpha)]
        axes.broken_barh(spans[half::2], (at - _LANE / 2, _LANE), facecolors=pale, linewidth=0)


def _mixed(colour: str, part: float) -> tuple[float, ...]:
    """The colour on white: lines below must not shine through."""
    from matplotlib.colors import to_rgb

    return tuple(1 - part * (1 - channel) for channel in to_rgb(colour))


def _shares(axes, at: float, bars: Sequence[Bar], colour: str) -> None:
    """How much of each moment the lane is busy, as a height."""
    if not bars:
        return
    edges = np.linspace(min(bars[0].start, 0.0), bars[-1].end, _BINS + 1)
    share = busy_shares(bars, edges)
    bottom = at - _LANE / 2
    axes.stairs(bottom + _LANE * share, edges * 1e3, baseline=bottom, fill=True, color=colour)


def busy_shares(bars: Sequence[Bar], edges: np.ndarray) -> np.ndarray:
    """For each of the intervals between `edges` (seconds, ascending) the part that bars, which do not overlap, cover."""
    starts, ends = (np.array([getattr(bar, name) for bar in bars]) for name in ("start", "end"))
    covered = np.array([np.clip(np.minimum(ends, edge) - starts, 0, None).sum() for edge in edges])
    return np.clip(np.diff(covered) / np.diff(edges), 0, 1)


def _legend(axes, shares: bool, prepares: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    of = ", by the share of each moment" if shares else ""
    handles = [
        Patch(color=_COMPUTING, label=f"computing{of}"), Patch(color=_WAITING, label="waiting for weights"),
        Patch(color=_LOADING, label=f"loading{of}"), Line2D([], [], color=_END, linestyle="--", label="end of the inference"),
    ]  # fmt: skip
    if prepares:
        handles.insert(3, Patch(color=_PREPARING, label=f"preparing{of}"))
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
