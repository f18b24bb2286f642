"""The smallest budget for which a plan exists, and the layer that sets that budget."""

from __future__ import annotations

from ..problem import PAGE, Minimum, Problem
from .layout import smallest_layout
from .slicing import finest_segment, live_bytes


def layer_bounds(problem: Problem) -> list[int]:
    """Per layer: live buffers, scratch and finest segment, in bytes rounded up to pages.

    No arena is smaller than the largest of these sums.
    """
    return [
        -(-(live + layer.scratch + finest_segment(layer)) // PAGE) * PAGE
        for live, layer in zip(live_bytes(problem), problem.layers, strict=True)
    ]


def minimum_budget(problem: Problem) -> Minimum:
    """The smallest budget for which strategy "best" finds a plan; every larger budget has one, too."""
    bounds = layer_bounds(problem)
    if not bounds:
        return Minimum(0, 0, "(none)", 0, 0, 0)
    worst = max(range(len(bounds)), key=lambda index: (bounds[index], -index))
    layer = problem.layers[worst]
    return Minimum(
        nbytes=smallest_layout(problem).nbytes,
        bound=bounds[worst],
        layer=layer.name,
        activations=live_bytes(problem)[worst],
        weights=finest_segment(layer),
        scratch=layer.scratch,
    )
