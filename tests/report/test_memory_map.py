"""The rectangles behind the picture of a plan."""

from __future__ import annotations

from dataclasses import replace

from flexcomp.program import PAGE, CountArg, FirstArg, Load, Preparation, Prepared, TensorType, WeightArg
from flexcomp.report.memory_map import Box, boxes
from flexcomp.report.picture import draw_plan
from tests.by_hand import Step, by_hand

from .programs import two_layers


def test_boxes():
    program = two_layers()
    assert set(boxes(program, program.rungs[0])) == {
        Box("activation", "x", 0, 1, 0, PAGE),
        Box("activation", "middle", 0, 2, PAGE, PAGE),
        Box("activation", "y", 1, 2, 0, PAGE),
        Box("pinned weights", "first", 0, 2, 2 * PAGE, PAGE),
        Box("preload", "second", 0, 1, 3 * PAGE, PAGE),
        Box("weights", "second", 1, 2, 3 * PAGE, PAGE),
        Box("scratch", "first", 0, 1, 4 * PAGE, 64),
    }


def test_a_reused_place_belongs_to_the_latest_load():
    program = two_layers()
    plan = by_hand(program, program.rungs[0])
    steps = (plan.steps[0], Step(1, 0, 1, 2, 2 * PAGE, -1))
    loads = (Load(0, PAGE, 2 * PAGE, 0, False), Load(PAGE, PAGE, 2 * PAGE, 1, False))
    reused = replace(plan, steps=steps, loads=loads).rung(program.layers)
    weights = {box for box in boxes(program, reused) if box.kind == "weights"}
    assert weights == {
        Box("weights", "first", 0, 1, 2 * PAGE, PAGE),
        Box("weights", "second", 1, 2, 2 * PAGE, PAGE),
    }


def test_what_is_loaded_ahead_lies_there_at_both_ends():
    program = two_layers()
    plan = by_hand(program, program.rungs[0])
    first, second = plan.loads
    ahead = replace(plan, loads=(replace(first, pinned=False, ahead=True, after=1), second)).rung(program.layers)
    assert {box for box in boxes(program, ahead) if box.name == "first" and box.kind != "scratch"} == {
        Box("weights", "first", 0, 1, 2 * PAGE, PAGE),
        Box("preload", "first", 1, 2, 2 * PAGE, PAGE),
    }


def test_what_is_prepared_ahead_was_read_at_both_ends():
    """To a place of its own, which is free between."""
    program = two_layers()
    plan = by_hand(program, program.rungs[0])
    first, second = plan.loads
    made = replace(first, pinned=False, ahead=True, after=1, target=5 * PAGE, prepared=Prepared(0, 0, 1, 2 * PAGE))
    panel = TensorType((1, 1, 1024))
    weights = replace(program.layers[0].weights, preparation=Preparation("prepare", panel, 1024))
    args = (WeightArg(0, panel), FirstArg(), CountArg())
    layers = (replace(program.layers[0], args=args, weights=weights), program.layers[1])
    ahead = replace(plan, loads=(made, second)).rung(layers)
    assert {box for box in boxes(program, ahead) if box.name == "first" and box.kind == "preload"} == {
        Box("preload", "first", 1, 2, 2 * PAGE, PAGE),
        Box("preload", "first", 0, 1, 5 * PAGE, PAGE),
        Box("preload", "first", 1, 2, 5 * PAGE, PAGE),
    }


def test_the_same_plan_gives_the_same_picture(tmp_path):
    program = two_layers()
    for name in ("a.png", "b.png"):
        draw_plan(program, program.rungs[0], tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
