"""Which steps of a first inference take weights as they are stored, and where these lie."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import onnx
import pytest

from benchmarks.networks.graph import Graph
from flexcomp import plan
from flexcomp.compiler import first_inference
from flexcomp.device import guessed_profile, resolve_target
from flexcomp.program import PAGE

from ..uncompiled import planned

TARGET = "llvm -mcpu=x86-64-v3"


def network() -> onnx.ModelProto:
    """Small images and many channels: preparing takes longer than computing."""
    g = Graph("late", seed=3)
    x = g.relu(g.conv(g.relu(g.conv(g.input("x", (1, 64, 8, 8)), 320, 3)), 320, 3))
    return g.model(g.conv(x, 320, 1), (1, 320, 8, 8))


@functools.cache
def built(**rates):
    rates = {"flops_per_s": 100e9, "memory_bytes_per_s": 8e9, "storage_bytes_per_s": 4e9} | rates
    profile = replace(guessed_profile(resolve_target(TARGET)), **rates)
    return planned(network(), TARGET, "all", store="once", threads=1, profile=profile)


def test_layers_are_cold_where_a_core_prepares_slower_than_it_computes():
    slow = built().rungs[-1]
    numbers = [number for number, _ in slow.tapes.first_steps]
    assert numbers and numbers == sorted(set(numbers))
    for rates in ({"memory_bytes_per_s": 1e15}, {"storage_bytes_per_s": 1e7}):  # the device is what all wait for
        assert not any(rung.tapes.first_steps for rung in built(**rates).rungs)


def test_stored_weights_lie_in_pages_at_the_end_of_what_will_be_prepared():
    program = built()
    rung = program.rungs[-1]
    assert rung.tapes.first_steps
    for number, one in rung.tapes.first_steps:
        step, own = rung.steps[number], program.layers[one.layer].weights
        at = one.weights_at - own.offset % PAGE
        weights = program.layers[step.layer].weights
        pages = -(-(own.offset % PAGE + own.nbytes) // PAGE) * PAGE
        assert at % PAGE == 0 and step.weights_at <= at
        assert step.weights_at + weights.nbytes - PAGE < at + pages <= step.weights_at + weights.nbytes


def test_what_is_chosen_is_the_least_of_what_was_tried(monkeypatch):
    """Not the first that is better, and nothing that saves less than a hundredth."""
    seen = []

    def latency(planning, form, planned, chosen):
        seen.append(len(chosen))
        return {0: 1.0, 1: 0.5}.get(len(chosen), 0.6)

    monkeypatch.setattr(first_inference, "_latency", latency)
    assert len(built.__wrapped__().rungs[-1].tapes.first_steps) == 1 and max(seen) > 1
    monkeypatch.setattr(first_inference, "_latency", lambda planning, form, planned, chosen: 1.0 - 0.004 * bool(chosen))
    assert not built.__wrapped__().rungs[-1].tapes.first_steps


def test_memory_that_does_not_exist_yet_makes_first_inferences_longer():
    layer = plan.Layer("a", 0, plan.Weights(0, 1, 1 << 20), 1e-3)
    problem = plan.Problem((layer,) * 2, (), plan.Storage(1e9, 1e-5))
    problem = replace(problem, layers=(layer, replace(layer, weights=plan.Weights(1 << 20, 1, 1 << 20))))
    planned = plan.resident_plan(problem)
    count = len(planned.segments)
    now = plan.simulate(problem, planned, cold=True).latency
    assert plan.simulate(problem, planned, cold=True, fresh_s=[0.0] * count).latency == pytest.approx(now)
    later = plan.simulate(problem, planned, cold=True, fresh_s=[5e-3] * count).latency
    assert later > now + 2e-3  # helped by whoever waits, but not for nothing
    assert plan.simulate(problem, planned).latency < now < later
    assert np.isfinite(later)
