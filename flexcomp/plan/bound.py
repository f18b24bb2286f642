"""How fast could any plan be? A lower bound on the latency under a budget, to judge plans by."""

from __future__ import annotations

import numpy as np

from .problem import Problem
from .slicing import live_bytes


def latency_bound(problem: Problem, budget: int) -> float:
    """Seconds below which no plan for `budget` bytes gets, in the steady state, on the predicted times.

    A cut argument. When the last step of layer i ends, the weights in the arena, pinned or preloaded,
    are at most the budget less the tensors live in layer i. Of the weights of the layers behind it, up to j, the
    rest must be read after that, and the remaining layers are computed before or after that. Inferences follow
    each other, so the layers may be those of two inferences, all of them once at the most: in the steady state an
    inference takes as long as the time from a moment of it to the same moment of the next.
    The bound is the largest over all i and j; it knows nothing of pages, overheads and fragmentation.

    Without a cache that hides it, what does not fit is loaded beside computing, and slows that down, or takes longer than
    that while computing waits.
    """
    count = len(problem.layers)
    if not count:
        return 0.0
    live = np.array(live_bytes(problem), dtype=np.int64)
    seconds = np.concatenate([[0.0], np.cumsum([layer.seconds for layer in problem.layers] * 2)])
    sizes = [layer.weights.nbytes if layer.weights else 0 for layer in problem.layers] * 2
    nbytes = np.concatenate([[0], np.cumsum(np.array(sizes, dtype=np.int64))])
    compute = seconds[count]
    bound = compute
    for i in range(count):  # the layers [i, j) follow the cut, which is in the layer before
        held = max(0, budget - live[i - 1])
        upto = slice(i, i + count + 1)
        read = np.maximum(0, nbytes[upto] - nbytes[i] - held) / problem.storage.bandwidth
        bound = max(bound, float(np.max(read + compute - (seconds[upto] - seconds[i]))))
    storage = problem.storage
    if storage.cache:
        return float(bound)
    delay = storage.disturbance / (1 + storage.disturbance * storage.bandwidth)  # by a byte that is loaded beside computing
    return max(float(bound), float(compute + delay * max(0, nbytes[count] - budget)))
