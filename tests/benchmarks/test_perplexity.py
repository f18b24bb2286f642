"""Perplexity of a text, and windows of its letters."""

import numpy as np
import pytest

from benchmarks.lab import perplexity as lab


def test_perplexity_of_equal_chances_is_their_number():
    assert lab.perplexity(np.full((5, 7), 3, "f4"), np.arange(5)) == pytest.approx(7)
    sure = np.float32([[0, 1000], [1000, 0]])
    assert lab.perplexity(sure, np.array([1, 0])) == 1


def test_windows_end_before_the_letter_that_follows():
    letters = {letter: i + 1 for i, letter in enumerate(sorted({lab.MARK, *"".join(lab.TEXT)}))}
    ids, following = lab.windows(letters)
    assert ids.shape == (sum(map(len, lab.TEXT)) + len(lab.TEXT), lab.WINDOW)
    assert ids[0].tolist() == [0] * (lab.WINDOW - 1) + [letters[lab.MARK]]
    names = {number: letter for letter, number in letters.items()}
    first = len(lab.TEXT[0])
    assert "".join(names[one] for one in following[:first]) == lab.TEXT[0] and names[following[first]] == lab.MARK
    assert "".join(names[one] for one in ids[first]) == lab.TEXT[0][-lab.WINDOW :]


def test_gates_of_keras_for_cudnn():
    own = np.arange(24, dtype="f4").reshape(4, 3, 2)  # gates i, f, c, o of 3 units and 2 inputs
    stored = np.hstack([one.reshape(2, 3) for one in own])
    np.testing.assert_array_equal(lab.gates(stored), np.concatenate(own[[0, 3, 1, 2]]))
