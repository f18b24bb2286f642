"""What pictures say in words, and the shares that stand for bars too many to see."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flexcomp.program import PAGE, nodes
from flexcomp.report.marks import Stretch, neediest, stretches
from flexcomp.report.memory_map import boxes
from flexcomp.report.picture import draw_plan
from flexcomp.report.smallest import smallest_facts
from flexcomp.report.timeline import Bar, Lanes
from flexcomp.report.timeline_axes import busy_shares
from tests.by_hand import Plan, Step, loads_of

from .programs import two_layers


def plan_of(*names: str):
    """A program whose layers have these names and whose plan computes one after the other."""
    program = two_layers()
    distinct = list(dict.fromkeys(names))
    layers = tuple(replace(program.layers[0], name=name) for name in distinct)
    steps = tuple(Step(distinct.index(name), 0, 1, 1, 2 * PAGE, 4 * PAGE) for name in names)
    loads = loads_of(program, program.rungs[0])
    rung = Plan(6 * PAGE, 5 * PAGE, 5 * PAGE, (0, PAGE, 0), steps, loads, 0.001).rung(layers)
    return replace(program, layers=layers, rungs=(rung,)), rung


def test_slices_are_one_stretch_and_so_are_layers_whose_bands_take_turns():
    bands = ("conv2d.1[0:2]", "max_pool2d.2[0:1]", "conv2d.1[2:4]", "max_pool2d.2[1:2]")
    names = ("conv2d.0", "conv2d.0", *bands, "conv2d.3.winograd.F(4)")
    assert stretches(*plan_of(*names)) == [
        Stretch("conv2d.0", 0, 2), Stretch("conv2d.1–max_pool2d.2", 2, 6), Stretch("conv2d.3", 6, 7)
    ]  # fmt: skip
    names = ("conv2d.4[0:2]", "conv2d.5[0:1]", "conv2d.4[2:4]", "conv2d.5[1:2]", "fused_tir_rsqrt_multiply_tir_sqrt_add.12")
    assert stretches(*plan_of(*names)) == [Stretch("conv2d.4–5", 0, 4), Stretch("rsqrt…add.12", 4, 5)]


def test_the_step_that_needs_most_and_what_it_needs():
    """Pinned weights and what is loaded ahead are the planner's choice, and do not count."""
    program = two_layers()
    program = replace(program, metadata=nodes.record(["/a", "/b"]))
    rung = program.rungs[0]
    found = neediest(program, rung, boxes(program, rung))
    assert (found.step, found.nbytes) == (1, 3 * PAGE)
    assert str(found) == (
        "Step 1 sets the smallest budget: second (node /b) cannot do without 12.00 KiB: "
        "8.00 KiB of activations, 4.00 KiB of weights."
    )
    larger = replace(rung, budget=7 * PAGE)
    assert str(neediest(program, larger, boxes(program, larger))).startswith("Step 1 needs most at once: ")


def test_a_result_in_the_place_of_an_operand_needs_no_bytes_of_its_own():
    program = two_layers()
    rung = replace(program.rungs[0], value_at=(0, PAGE, PAGE))  # y over middle
    found = neediest(program, rung, boxes(program, rung))
    assert (found.step, found.parts) == (0, {"activation": 2 * PAGE, "scratch": 64})
    rung = replace(rung, value_at=(0, 0, 0))
    found = smallest_facts(replace(program, rungs=(rung,)))
    assert (found["step"], found["parts"]) == (1, {"activation": PAGE, "weights": PAGE})
    assert {one["name"]: one["over"] for one in found["alive"] if one["kind"] == "activation"} == {"middle": None, "y": "middle"}


def test_shares_of_each_moment():
    bars = [Bar("a", 0.0, 1.0, {}), Bar("b", 1.5, 2.0, {}), Bar("c", 2.0, 2.25, {})]
    np.testing.assert_allclose(busy_shares(bars, np.array([0.0, 1.0, 2.0, 3.0])), [1.0, 0.5, 0.25])


def drawn(monkeypatch, timelines):
    """The figure of a plan with these timelines."""
    from matplotlib.figure import Figure

    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: (figures.append(self), open(path, "wb").close()))
    program, rung = plan_of("conv2d.0", "conv2d.1")
    draw_plan(program, rung, "plan.png", timelines)
    return figures[0]


def lanes(label: str, latency: float, count: int = 2) -> Lanes:
    """Steps that compute half of the time, and no loads."""
    each = latency / count
    return Lanes(label, tuple(Bar("conv2d.0", i * each, (i + 0.5) * each, {}) for i in range(count)), (), latency)


def test_a_picture_names_layers_and_explains_itself(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    figure = drawn(monkeypatch, [lanes("predicted", 0.010), lanes("measured", 0.011)])
    memory, predicted, measured = (axes for axes in figure.axes)
    assert [label.get_text() for label in memory.get_xticklabels()] == ["conv2d.0", "conv2d.1"]
    assert "sets the smallest budget" in memory.get_title()
    legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert {"activation", "budget 24.00 KiB", "computing", "waiting for weights", "loading", "end of the inference"} <= {*legends}
    assert predicted.get_xlim() == measured.get_xlim()  # alike: one scale
    assert "scale of its own" not in measured.get_xlabel()


def test_latencies_that_differ_have_scales_of_their_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    figure = drawn(monkeypatch, [lanes("predicted", 0.010), lanes("measured", 0.030)])
    _, predicted, measured = figure.axes
    assert predicted.get_xlim()[1] == pytest.approx(10.8) and measured.get_xlim()[1] == pytest.approx(32.4)
    assert measured.get_xlabel() == "time [ms], each on a scale of its own"


def test_many_steps_are_drawn_as_shares(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    figure = drawn(monkeypatch, [lanes("predicted", 0.010, 1500)])
    texts = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert "computing, by the share of each moment" in texts
    assert sum(len(collection.get_paths()) for collection in figure.axes[1].collections) < 10
