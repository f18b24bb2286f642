"""Where loads disturb computing, but hardly if they stay in a cache, plans stream through a small part of the arena."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flexcomp.plan import PAGE, Buffer, Layer, Problem, Storage, Weights, extent, plan, reuse_distances, simulate
from flexcomp.plan.problem import IN_CACHE

MEMORY = Storage(1e3 * PAGE, 0.0, disturbance=2e-4 / PAGE)  # a page takes 1 ms, and 0.2 ms from computing
CACHE = 40 * PAGE


@pytest.fixture(scope="module")
def network() -> Problem:
    """A hundred layers of 20 pages each, which take longer to compute than to load."""
    layers = tuple(Layer(f"l{i}", 0, Weights(20 * PAGE * i, 20, PAGE), 30e-3) for i in range(100))
    return Problem(layers, (Buffer("x", PAGE, 0, 100),), replace(MEMORY, cache=CACHE))


def test_loads_stay_in_the_cache(network):
    budget = 400 * PAGE
    found = plan(network, budget)
    streamed = [(one.address, one.nbytes) for one in found.segments if not one.pinned]
    assert extent(streamed) <= CACHE
    assert (reuse_distances(streamed) <= CACHE).mean() > 0.95  # where inferences meet, some come round later
    assert found.pinned_nbytes > budget / 2
    lost = IN_CACHE * 0.2e-3 * found.streamed_nbytes / PAGE
    assert simulate(network, found).latency < 1.005 * 3.0 + lost
    assert simulate(network, plan(network, budget, "flexnn")).latency > 1.05 * 3.0


def test_without_a_cache_as_little_as_possible_is_loaded(network):
    open_memory = replace(network, storage=MEMORY)
    found = plan(open_memory, 400 * PAGE)
    assert found.streamed_nbytes < 1700 * PAGE
