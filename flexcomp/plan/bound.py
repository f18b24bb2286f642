"""How fast could any plan be? A lower bound on the latency under a budget, to judge plans by."""

from __future__ import annotations

import numpy as np

from .problem import Problem
from .slicing import live_bytes


def latency_bound(problem: Problem, budget: int) -> float:
    """Seconds below which no plan for `budget` bytes gets, in the steady state, on the predicted times.

    A cut argument. When the last step of layer i ends, the weights in the arena, pinned or preloaded,
    are at most the budget less the tensors live in layer i. Of the weights of layers i + 1 to j the
    rest must be read after that, and the layers behind j are computed after that again. Before the
    first layer only pinned weights are there, and they share the arena with every layer's tensors.
    The bound is the largest over all i < j; it knows nothing of pages, overheads and fragmentation.
    """
    if not problem.layers:
        return 0.0
    live = np.array(live_bytes(problem), dtype=np.int64)
    seconds = np.concatenate([[0.0], np.cumsum([layer.seconds for layer in problem.layers])])
    sizes = [layer.weights.nbytes if layer.weights else 0 for layer in problem.layers]
    nbytes = np.concatenate([[0], np.cumsum(np.array(sizes, dtype=np.int64))])
    held = np.maximum(0, budget - np.concatenate([[live.max()], live]))
    bound = seconds[-1]
    for i in range(len(seconds)):
        read = np.maximum(0, nbytes[i:] - nbytes[i] - held[i]) / problem.storage.bandwidth
        bound = max(bound, float(np.max(seconds[i] + read + seconds[-1] - seconds[i:])))
    return float(bound)
