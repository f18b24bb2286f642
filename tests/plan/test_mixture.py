"""The choice of kernels for one budget."""

from dataclasses import replace
from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flexcomp.plan import PAGE, Buffer, Layer, Mixture, Problem, Storage, Weights, latency_bound, layer_bounds

from .problems import choices


def picked(problem: Problem, options: list[list[Layer]], picks) -> Problem:
    return replace(problem, layers=tuple(layers[pick] for layers, pick in zip(options, picks, strict=True)))


@given(choices(), st.integers(0, 40))
def test_the_choice_fits_and_is_no_worse_than_the_smallest_kernels(case, spare) -> None:
    problem, options = case
    budget = max(layer_bounds(problem)) + spare * PAGE
    picks = Mixture(problem, options).best(budget)
    chosen = picked(problem, options, picks)
    needs = layer_bounds(chosen)
    assert all(not pick or need <= budget for pick, need in zip(picks, needs, strict=True))
    assert latency_bound(chosen, budget) <= latency_bound(problem, budget) * (1 + 1e-9)


def test_the_choice_is_near_the_best_one() -> None:
    """Of random networks of seven layers; all choices are tried."""
    draw = np.random.default_rng(0)
    ratios = []
    for _ in range(40):
        offset, options = 0, []
        for _ in range(7):
            blocks, seconds = int(draw.integers(1, 200)), float(draw.uniform(0, 5e-3))
            kernels = []
            for speed, size in ((1.0, 1.0), (0.5, 1.8), (0.3, 4.0)):
                kernels.append(Layer("layer", 0, Weights(offset, int(blocks * size) + 1, PAGE), seconds * speed))
                offset += PAGE * kernels[-1].blocks
            options.append(kernels[: int(draw.integers(1, 4))])
        buffers = tuple(Buffer(f"{i}", PAGE * int(draw.integers(1, 100)), i, i + 2) for i in range(6))
        problem = Problem(tuple(kernels[0] for kernels in options), buffers, Storage(714e6, 25e-6))
        budget = PAGE * int(draw.integers(300, 800))
        bounds = [latency_bound(picked(problem, options, p), budget) for p in product(*map(range, map(len, options)))]
        ratios.append(latency_bound(picked(problem, options, Mixture(problem, options).best(budget)), budget) / min(bounds))
    assert np.mean(ratios) < 1.01 and max(ratios) < 1.1


def two_phases() -> tuple[Problem, list[list[Layer]]]:
    """Eight convolutions that compute, with three kernels each, and one layer that only loads."""
    mb = 1_000_000 // 64 * 64
    offset, options = 0, []
    for index in range(8):
        kernels = []
        for kernel, (seconds, size) in enumerate([(36e-3, 9), (16e-3, 16), (10e-3, 36)]):
            kernels.append(Layer(f"conv{index}.{kernel}", 0, Weights(offset, 64, size * mb // 64 // 64 * 64), seconds))
            offset += 40 * mb
        options.append(kernels)
    options.append([Layer("dense", 0, Weights(offset, 4096, 400 * mb // 4096 // 64 * 64), 1e-3)])
    return Problem(tuple(layers[0] for layers in options), (), Storage(714e6, 25e-6)), options


def test_kernels_in_a_phase_that_computes_balance_it_and_no_more() -> None:
    """Direct kernels compute for 288 ms, while the loader idles; the fastest load for 403 ms; the ones between do neither."""
    problem, options = two_phases()
    bounds = [latency_bound(picked(problem, options, [kernel] * 8 + [0]), 8 << 20) for kernel in range(3)]
    picks = Mixture(problem, options).best(8 << 20)
    found = latency_bound(picked(problem, options, picks), 8 << 20)
    assert found <= min(bounds) and found < 0.9 * bounds[0] and 1 in picks


def test_with_memory_for_everything_the_fastest_is_taken() -> None:
    problem, options = two_phases()
    assert Mixture(problem, options).best(1 << 30) == [2] * 8 + [0]


def test_what_does_not_fit_is_not_taken() -> None:
    problem, options = two_phases()
    options = [[layers[0], *(replace(layer, scratch=1 << 20) for layer in layers[1:])] for layers in options]
    assert Mixture(problem, options).best(1 << 30, limit=1 << 20) == [0] * 9
