"""The comparison of a library of several shapes with libraries of each alone."""

from __future__ import annotations

import pytest

from benchmarks.lab import shapes
from benchmarks.results import Table
from tests.shaped import INPUTS, encoder


@pytest.mark.parametrize("timed", [False, True])
def test_every_shape_and_budget_has_a_row(timed, monkeypatch, tmp_path):
    monkeypatch.setattr(shapes, "network_of", lambda name: (encoder(), INPUTS, [{"n": 16}, {"n": 4}]))
    monkeypatch.setattr(shapes, "texts", lambda n: {"ids": shapes.np.ones((1, n), "int64")})
    table = Table(shapes.COLUMNS)
    shapes.build(tmp_path, "small")
    shapes.compare(tmp_path, "small", 2, timed, 1, table)
    assert [row[1] for row in table.rows] == ["n=16", "n=16", "n=4", "n=4"]
    for row in table.rows:
        assert row[5] == row[3] / row[4] > 0 and row[6] in ("yes", "no")
    # With everything resident the largest shape computes with the kernels that it has alone.
    assert table.rows[1][6] == "yes"
