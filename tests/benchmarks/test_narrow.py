"""Narrow weights: verdicts on errors, and text read from the outputs of PP-OCR."""

from __future__ import annotations

import numpy as np

from benchmarks.lab.narrow.accuracy import _row
from benchmarks.lab.narrow.reading import read_line, read_page


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
