"""Faster kernels are not chosen if what they load takes more from computing than they save."""

from __future__ import annotations

from dataclasses import replace

from flexcomp.plan import PAGE, Buffer, Layer, Problem, Storage, Weights, ladder_of


def test_loaded_bytes_count_where_kernels_are_chosen() -> None:
    def network(pages: int, seconds: float, disturbance: float) -> Problem:
        layers = tuple(Layer(f"l{i}", 0, Weights(i * pages * PAGE, 1, pages * PAGE), seconds) for i in range(8))
        return Problem(layers, (Buffer("x", PAGE, 0, 8),), Storage(1e3 * PAGE, 0.0, disturbance=disturbance))

    budget = 40 * PAGE
    for disturbance, chosen in ((0.0, 1), (4e-3 / PAGE, 0)):
        small, fast = network(2, 1.0, disturbance), network(16, 0.995, disturbance)
        assert ladder_of([small, fast], [budget])[0].index == chosen
        resident = replace(fast, storage=small.storage)
        assert ladder_of([small, resident], [200 * PAGE])[0].index == 1
