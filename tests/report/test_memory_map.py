"""The rectangles behind the picture of a plan."""

from __future__ import annotations

from dataclasses import replace

from flexcomp.program.program import (
    PAGE,
    Load,
    Prepared,
    Rung,
    Step,
)
from flexcomp.report.memory_map import Box, boxes
from flexcomp.report.picture import draw_plan

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
    reused = Rung(
        **{
            **program.rungs[0].__dict__,
            "steps": (program.rungs[0].steps[0], Step(1, 0, 1, 2, 2 * PAGE, -1)),
            "loads": (Load(0, PAGE, 2 * PAGE, 0, False), Load(PAGE, PAGE, 2 * PAGE, 1, False)),
        }
    )
    weights = {box for box in boxes(program, reused) if box.kind == "weights"}
    assert weights == {
        Box("weights", "first", 0, 1, 2 * PAGE, PAGE),
        Box("weights", "second", 1, 2, 2 * PAGE, PAGE),
    }


def test_what_is_loaded_ahead_lies_there_at_both_ends():
    program = two_layers()
    first, second = program.rungs[0].loads
    ahead = replace(program.rungs[0], loads=(replace(first, pinned=False, ahead=True, after=1), second))
    assert {box for box in boxes(program, ahead) if box.name == "first" and box.kind != "scratch"} == {
        Box("weights", "first", 0, 1, 2 * PAGE, PAGE),
        Box("preload", "first", 1, 2, 2 * PAGE, PAGE),
    }


def test_what_is_prepared_ahead_was_read_at_both_ends():
    """To a place of its own, which is free between."""
    program = two_layers()
    first, second = program.rungs[0].loads
    made = replace(first, pinned=False, ahead=True, after=1, target=5 * PAGE, prepared=Prepared(0, 0, 1, 2 * PAGE))
    ahead = replace(program.rungs[0], loads=(made, second))
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
