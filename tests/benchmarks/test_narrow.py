"""What the benchmarks of narrow weights make of outputs and budgets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.narrow import resident
from benchmarks.narrow.accuracy import _row
from benchmarks.narrow.budgets import Smallest, problem
from benchmarks.narrow.reading import Box, find_boxes, read_line, read_page, same_boxes

FACE, FOOT = Box("face", (10.0, 20.0, 50.0, 60.0)), Box("foot", (100.0, 100.0, 120.0, 140.0))


def as_output(*boxes: tuple[Box, float]) -> np.ndarray:
    """nudenet's output for boxes and their scores."""
    found = np.zeros((1, 6, len(boxes)), np.float32)
    for index, (box, score) in enumerate(boxes):
        top, left, bottom, right = box.place
        found[0, :4, index] = (left + right) / 2, (top + bottom) / 2, right - left, bottom - top
        found[0, 4 + ("face", "foot").index(box.label), index] = score
    return found


def test_of_boxes_over_one_another_the_likeliest_is_found():
    beside = replace(FACE, place=(12.0, 21.0, 52.0, 61.0))
    assert find_boxes(as_output((beside, 0.5), (FACE, 0.9), (FOOT, 0.21), (FOOT, 0.1)), ["face", "foot"]) == [FACE, FOOT]
    assert find_boxes(as_output((FOOT, 0.19)), ["face", "foot"]) == []


def test_boxes_are_the_same_where_labels_and_places_agree():
    near, far = (replace(FACE, place=(10.0 + by, 20.0, 50.0 + by, 60.0)) for by in (1.0, 4.0))
    assert same_boxes([FACE, FOOT], [FOOT, near]) and same_boxes([], [])
    for other in ([FACE], [far, FOOT], [replace(FACE, label="foot"), FOOT], [FACE, FACE]):
        assert not same_boxes(other, [FACE, FOOT])


def test_a_line_is_read_without_repetitions():
    classes = np.eye(4, dtype=np.float32)[[0, 1, 1, 0, 1, 2, 2, 0, 3]]
    assert read_line(np.zeros(1), lambda line: classes[None], ["", "a", "b", "c"]) == "aabc"


def test_lines_of_a_page_are_read_from_top_to_bottom():
    ink = np.zeros((1, 1, 64, 64), np.float32)
    ink[0, 0, 40:50, 5:60] = ink[0, 0, 10:20, 30:60] = 0.9
    ink[0, 0, 30, 30] = 0.9  # dust
    seen = []

    def recognise(line):
        seen.append(line.shape)
        return np.eye(3, dtype=np.float32)[[[len(seen)]]]

    assert read_page(np.zeros((1, 3, 64, 64)), lambda page: ink, recognise, ["", "a", "b"]) == ["a", "b"]
    assert set(seen) == {(1, 3, 48, 320)}


def test_verdicts():
    assert _row("n", "float16", 0.5, 1e-4, 1e-4, 0.0).verdict == ""
    assert _row("n", "float16", 0.5, 2e-3, 1e-4, 0.0).verdict == "errs by more than 0.001"
    assert _row("n", "int8", 0.3, 1e-3, np.nan, 0.0).verdict == "errs by more than 0.03 on the last picture"
    assert _row("n", "auto", 0.46, 1e-3, 1.0, 0.0).verdict == "more than 0.45 of the bytes"
    wide = Smallest("n", "float32", 1 << 20, "conv2d.0", {"activations": 1 << 19, "weights": 1 << 19, "scratch": 0})
    assert problem(wide, wide) == "" and problem(replace(wide, weights="int8", budget=1 << 19), wide) == ""
    assert problem(replace(wide, weights="int8", budget=(1 << 20) + 1), wide) == "1 bytes more than float32"
    assert "as much as float32" in problem(replace(wide, weights="int8"), wide)
    without = replace(wide, needs=wide.needs | {"weights": 0})
    assert problem(replace(without, weights="int8"), without) == ""


def test_what_is_wanted_of_networks_that_are_resident():
    def wanted(network, weights):
        return resident.Row(network, weights, 1.0, (1.0,)).wanted

    assert wanted("dense_4096", "float32") is None
    assert (wanted("dense_4096", "bfloat16"), wanted("dense_4096", "int8")) == (0.60, 0.32)
    assert wanted("swin_tiny", "int8") == 1.02
    assert set(resident.DENSE) <= set(resident.WANTED)
