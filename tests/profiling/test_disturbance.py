"""What loads take from computing, from steps whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexcomp.plan import Storage
from flexcomp.plan.problem import IN_CACHE
from flexcomp.profiling.disturbance import Disturbance, disturbance_of
from flexcomp.profiling.observing import StepTime

MIB = 1 << 20


def kernels(delay, noise=0.0, seed=0, distance=0, count=8):
    """Kernels of 1 to 8 ms a layer: whole beside nothing in plan 1, in slices beside loads in plans 2 to 5."""
    random = np.random.default_rng(seed)
    plans = 1 + noise * random.standard_normal(6)
    result = []
    for seconds in np.linspace(1e-3, 8e-3, count):
        steps = [StepTime(1.0, seconds * plans[1], 0.0, 1, 0)]
        for plan, slices in enumerate((2, 4, 8, 16), start=2):
            nbytes = seconds / slices * random.uniform(0.2, 1.0) * 4e9
            each = (2e-6 + seconds / slices + delay * nbytes) * plans[plan]
            steps += [StepTime(1 / slices, each, nbytes, plan, distance)] * slices
        result.append(steps)
    return result


@given(st.floats(1e-12, 1e-10))
def test_slices_beside_loads_tell_from_whole_layers_beside_nothing(delay):
    assert disturbance_of(kernels(delay)).delay == pytest.approx(delay, rel=1e-6)


@settings(max_examples=30)  # eleven networks each
@given(st.integers(0, 100))
def test_chance_is_taken_for_little(seed):
    """Plans ran at speeds that differ by a tenth and loads took nothing: far less is found than such a difference makes."""
    found = disturbance_of(kernels(0.0, noise=0.1, seed=seed)).delay
    assert found * 4e9 < 0.4
    assert np.mean([disturbance_of(kernels(0.0, noise=0.02, seed=seed * 10 + one)).delay * 4e9 for one in range(10)]) < 0.03


def test_one_kernel_does_not_speak_for_all():
    undisturbed = kernels(0.0)
    odd = kernels(2e-10, count=8)[3]
    alone = disturbance_of([odd]).delay
    together = disturbance_of([*undisturbed[:3], odd, *undisturbed[4:]]).delay
    assert alone == pytest.approx(2e-10, rel=1e-6)
    assert together < 0.1 * alone


def test_equal_layers_of_one_plan_tell():
    """2 ns for each byte, in three plans of speeds of their own."""
    beside = (0, 1e4, 3e4)
    steps = [StepTime(1.0, 1e-3 + 1e-5 * plan + 2e-9 * nbytes, nbytes, plan, 0) for plan in range(3) for nbytes in beside]
    assert disturbance_of([steps]).delay == pytest.approx(2e-9, rel=0.1)


def test_nothing_to_compare_is_no_disturbance():
    assert disturbance_of([]).delay == 0
    assert disturbance_of([[StepTime(1.0, 1e-3, 1e6, 1, 0)]]).delay == 0
    assert disturbance_of([[StepTime(1.0, 2e-3, 0.0, 1, 0), StepTime(1.0, 1e-3, 1e5, 1, 0)]]).delay == 0


def test_how_much_of_the_cache_loads_have_is_found():
    within, beyond = kernels(IN_CACHE * 5e-11, distance=4 * MIB), kernels(5e-11, distance=16 * MIB)
    assert disturbance_of([*within, *beyond], cache=32 * MIB) == Disturbance(pytest.approx(5e-11, rel=1e-6), 8 * MIB)
    assert disturbance_of(beyond).cache == 0


def test_what_a_step_lost():
    step = StepTime(1.0, 1e-3, 1e6, 1, 6 * MIB)
    for cache, part in ((0, 1.0), (8 * MIB, IN_CACHE), (4.8 * MIB, 0.5), (4 * MIB, 1.0)):
        found = Disturbance(2e-11, cache)
        assert found.of(step) == pytest.approx(part * 2e-5)
        assert found.counted(6 * MIB) == Storage(1.0, 0.0, disturbance=1.0, cache=cache).rates_at(np.array([6 * MIB]))[1]
