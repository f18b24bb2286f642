"""From traces to a profile: what was put in comes out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexcomp.device.profile import family, kernel_key
from flexcomp.errors import ArtifactError
from flexcomp.plan import Storage
from flexcomp.profiling.fitting import fit, storage_rates
from flexcomp.profiling.observing import LoadTime, Observations, note
from flexcomp.program.prediction import LayerTime, Prediction
from flexcomp.runtime.trace import Trace
from tests.cli.conftest import tiny_network
from tests.uncompiled import planned

STORAGE = Storage(4e8, 80e-6, 15e-6, disturbance=5e-10)


@pytest.fixture(scope="module")
def program():
    """Of loads that only read; the same plans on every machine."""
    return planned(tiny_network(), "llvm -mcpu=x86-64-v4", threads=1, store="prepared")


@pytest.fixture(scope="module")
def truth(program):
    """A device: seconds of each layer from its operations."""
    return Prediction(tuple(LayerTime(2e-5 + layer.flops * 1e-10, 7e-6) for layer in program.layers), STORAGE)


def traced(program, truth, index, number=0):
    """Inference number `number` of several in a row."""
    timeline = truth.timeline(program, program.rungs[index])

    begin = 1 + number * timeline.latency

    def nanosecond(time):
        return round(1e9 * (begin + time))

    def nanoseconds(spans):
        return tuple((nanosecond(start), nanosecond(end)) if end > start else (0, 0) for start, end in spans)

    whole = nanosecond(0), nanosecond(timeline.latency)
    tapes = program.rungs[index].tapes
    spans = {one.load: span for one, span in zip(tapes.repeated, nanoseconds(timeline.loads), strict=True)}
    loads = tuple(spans.get(load, (0, 0)) for load in range(tapes.operations[-1].load + 1))
    return Trace(index, *whole, nanoseconds(timeline.steps), loads)


@pytest.fixture(scope="module")
def profile(program, truth):
    seen = Observations(threads=1)
    for index, rung in enumerate(program.rungs):
        note(seen, program, rung, [traced(program, truth, index, number) for number in range(3)])
    return fit(seen)


def test_storage_is_found(profile):
    assert profile.storage_bytes_per_s == pytest.approx(STORAGE.bandwidth, rel=0.01)
    assert profile.load_overhead_s == pytest.approx(STORAGE.overhead_s, rel=0.01)
    assert profile.wake_s == pytest.approx(STORAGE.wake_s, rel=0.01)
    assert profile.delays.alpha == pytest.approx(1 / STORAGE.bandwidth, rel=0.2)
    assert profile.delays.eta == pytest.approx(STORAGE.wake_s, rel=0.01)


def test_the_rate_of_preparing_is_what_it_took(program, truth):
    seen = Observations(threads=1, prepared_nbytes=3e6, preparing_s=1e-3)
    note(seen, program, program.rungs[0], [traced(program, truth, 0)])
    assert fit(seen).prepare_s == pytest.approx(1e-3 / 3e6)


def test_what_loads_take_from_computing_is_found(profile):
    assert profile.load_disturbance == pytest.approx(STORAGE.disturbance, rel=0.2)


def test_kernels_are_found(program, truth, profile):
    for layer, time in zip(program.layers, truth.layers, strict=True):
        found = profile.kernels[kernel_key(layer)]
        assert found.seconds == pytest.approx(time.seconds, rel=0.1)
        assert family(layer) in profile.families


def test_the_profile_predicts_what_was_observed(program, truth, profile):
    times = tuple(
        LayerTime(profile.kernels[kernel_key(layer)].seconds, profile.slice_seconds(layer, profile.threads))
        for layer in program.layers
    )
    predicted = Prediction(times, profile.storage)
    errors = [
        predicted.timeline(program, rung).latency / truth.timeline(program, rung).latency - 1 for rung in program.rungs
    ]
    assert np.abs(errors).max() < 0.05


def test_nothing_loaded_is_an_error(program, truth):
    seen = Observations(threads=1)
    note(seen, program, program.rungs[-1], [traced(program, truth, len(program.rungs) - 1)])
    with pytest.raises(ArtifactError, match="profile a larger network"):
        fit(seen)


def test_loads_that_stay_in_the_cache_are_not_taken_for_disturbing(program, truth):
    seen = Observations(threads=1)
    for index, rung in enumerate(program.rungs):
        note(seen, program, rung, [traced(program, truth, index, number) for number in range(3)])
    key = kernel_key(program.layers[0])
    assert fit(seen, cache=1 << 30).kernels[key].seconds >= fit(seen).kernels[key].seconds
    assert fit(seen, cache=1 << 30).storage.cache == 1 << 30


@settings(max_examples=20)
@given(st.integers(0, 30), st.floats(1e9, 1e10), st.floats(0.0, 1e-4), st.integers(0, 1000))
def test_help_with_loads_is_found(steps, bandwidth, overhead, seed):
    """Loads of which computing waited for all, for some part, or for nothing; help makes them faster in that part."""
    random, together = np.random.default_rng(seed), 1 + steps / 20
    loads = []
    for waited in (0.0, 1.0, *random.uniform(0, 1, 20)):
        nbytes = int(random.integers(1, 2000)) * 4096
        alone = overhead + nbytes / bandwidth
        loads.append(LoadTime(nbytes, 1, alone / (1 + (together - 1) * waited), waited))
    found = storage_rates(loads, helped=True)
    assert found.together == pytest.approx(together, abs=0.026)
    assert found.per_byte == pytest.approx(1 / bandwidth, rel=0.05)
    assert found.per_load == pytest.approx(overhead, abs=0.05 * (overhead + 1e-5 + 1e6 / bandwidth))
    assert storage_rates(loads, helped=False).together == 1


@settings(max_examples=10)
@given(st.integers(0, 20), st.integers(0, 10), st.floats(1e9, 1e10), st.integers(0, 1000))
def test_faster_loads_in_a_cache_are_found(faster, helped, bandwidth, seed):
    random, together, cached = np.random.default_rng(seed), 1 + helped / 20, 1 + faster / 20
    loads = []
    for distance in (1.0, 2e7, *random.uniform(0, 2e7, 60)):
        nbytes, waited = int(random.integers(1, 2000)) * 4096, float(random.uniform())
        (rate,), _ = Storage(bandwidth, 0.0, cache=10**7, cached=cached).rates_at(np.array([distance]))
        loads.append(LoadTime(nbytes, 1, nbytes / rate / (1 + (together - 1) * waited), waited, distance))
    found = storage_rates(loads, helped=True, cache=10**7)
    assert found.cached == pytest.approx(cached, abs=0.026)
    assert found.together == pytest.approx(together, abs=0.026)
    assert found.per_byte == pytest.approx(1 / bandwidth, rel=0.05)
    assert storage_rates(loads, helped=True).cached == 1


@given(times=st.integers(10, 40), bandwidth=st.floats(1e6, 1e10), seed=st.integers(0, 10**6))
@settings(max_examples=20)
def test_slower_loads_into_small_pages_are_found(times, bandwidth, seed):
    random, slower = np.random.default_rng(seed), times / 10
    loads = []
    for small in (0.0, 1.0, *random.uniform(0, 1, 60)):
        nbytes = int(random.integers(1, 2000)) * 4096
        loads.append(LoadTime(nbytes, 1, nbytes * (1 + (slower - 1) * small) / bandwidth, small=small))
    found = storage_rates(loads, helped=False)
    assert found.small_pages == pytest.approx(slower) and found.per_byte == pytest.approx(1 / bandwidth, rel=0.05)
    assert storage_rates(loads, helped=True).small_pages == 1  # a core copies, to pages of any size
