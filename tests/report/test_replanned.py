"""The problem of a rung: its bound is below every plan's latency, and its tensors are those of the rung."""

from __future__ import annotations

import pytest

from flexcomp.plan import Storage
from flexcomp.plan.parts.slicing import live_bytes
from flexcomp.program.prediction import LayerTime, Prediction, from_program
from flexcomp.report.replanned import bound_s, problem_of
from tests.cli.conftest import tiny_network
from tests.uncompiled import planned


@pytest.fixture(scope="module")
def program():
    return planned(tiny_network(), threads=1)


@pytest.mark.parametrize("bandwidth", [1e8, 1e9, 1e10])
def test_no_plan_is_faster(program, bandwidth):
    times = tuple(LayerTime(2e-5 + layer.flops * 1e-10) for layer in program.layers)
    assumed = Prediction(times, Storage(bandwidth, 1e-5))
    for rung in program.rungs:
        possible = bound_s(program, rung, assumed)
        assert sum(times[layer].seconds for layer in rung.order) <= possible * (1 + 1e-9)
        assert possible <= assumed.timeline(program, rung).latency * (1 + 1e-9)


def test_values_are_counted_where_they_are_needed(program):
    assumed = from_program(program)
    for rung in program.rungs:
        live = live_bytes(problem_of(program, rung, assumed))
        assert len(live) == len(rung.order)
        assert max(live) <= rung.arena
        needed = [
            max(program.values[arg.value].nbytes for arg in program.layers[layer].args if hasattr(arg, "value"))
            for layer in rung.order
        ]
        assert all(most <= nbytes for most, nbytes in zip(needed, live, strict=True))
