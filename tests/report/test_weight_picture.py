"""The picture of `weights="auto"`: what it draws of the record in a library."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flexcomp.errors import ArtifactError, InputError
from flexcomp.program import Narrowing, WeightErrors, weight_errors
from flexcomp.report.picture import draw_weights
from flexcomp.report.weight_axes import draw_errors, draw_order

from .programs import two_layers

FOUND = WeightErrors(
    error=4e-3,
    max_error=5e-3,
    nbytes=2_000_000,
    float32_nbytes=8_000_000,
    narrowings=(
        Narrowing("/body/conv", "int8", 5_000_000, 1e-3, True),
        Narrowing("/head/a/name/that/is/longer/than/there/is/room/fc", "float16", 3_000_000, 3e-3, True),
        Narrowing("/head/fc", "int8", 2_000_000, 4.5e-3, True),
        Narrowing("/last", "int8", 1_500_000, None, False),
    ),
    tried=((2_000_000, 4e-3), (1_500_000, None), (5_000_000, 1.5e-3)),
    layers=({"float32": 0.0, "int8": 1e-3}, None),
)


def recorded(found: WeightErrors):
    return replace(two_layers(), metadata=found.metadata())


def test_the_record_is_read_as_it_was_written():
    assert weight_errors.read(recorded(FOUND)) == FOUND
    assert weight_errors.read(two_layers()) is None


@pytest.mark.parametrize(
    "change",
    ['"error":0.004', '"bytes":[2000000,8000000]', '"layers":[{"float32":0.0,"int8":0.001},null]', '"tried":[[', "true]"],
)
def test_a_record_that_does_not_fit_is_refused(change):
    text = FOUND.metadata()[weight_errors.KEY]
    assert change in text
    with pytest.raises(ArtifactError, match="record of the weights' errors is malformed"):
        weight_errors.read(replace(two_layers(), metadata={weight_errors.KEY: text.replace(change, '"layers":[1]')}))


@pytest.fixture
def axes():
    from matplotlib.figure import Figure  # a second, for each process that collects tests

    return Figure().subplots()


def test_errors_over_bytes(axes):
    draw_errors(axes, FOUND)
    way, tried, allowed, chosen = axes.lines
    np.testing.assert_allclose(way.get_xydata(), [[5, 1e-3], [3, 3e-3], [2, 4.5e-3]])  # MB; no error is no point
    np.testing.assert_allclose(tried.get_xydata(), [[2, 4e-3], [5, 1.5e-3]])
    assert set(allowed.get_ydata()) == {5e-3}
    np.testing.assert_allclose(chosen.get_xydata(), [[2, 4e-3]])
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["as the errors of layers add up", "measured", "allowed: 0.005", "chosen: 4.0e-03 in 2.00 MB"]


def test_layers_in_the_order_of_narrowing(axes):
    draw_order(axes, FOUND, 11.0)
    heights = [bar.get_height() for bar in axes.patches]
    np.testing.assert_allclose(heights, [3, 2, 1, 0.5])
    assert [bar.get_alpha() == 1 for bar in axes.patches] == [True, True, True, False]
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names == ["/body/conv", "…onger/than/there/is/room/fc", "/head/fc", "/last"]
    draw_order(axes := axes.figure.add_subplot(), FOUND, 0.4)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["/body/conv", "/head/fc"]
    assert axes.get_xlabel().endswith("(2 names have no room)")


def test_nothing_was_narrowed(tmp_path):
    draw_weights(recorded(WeightErrors(0.0, 1e-9, 8, 8, (), (), (None, None))), tmp_path / "weights.png")
    assert (tmp_path / "weights.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_same_choice_gives_the_same_picture(kind, tmp_path):
    for name in ("a", "b"):
        draw_weights(recorded(FOUND), tmp_path / f"{name}.{kind}")
    assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_wrong_use_is_explained(tmp_path):
    with pytest.raises(ArtifactError, match="weights were not chosen by errors: build it with --weights auto"):
        draw_weights(two_layers(), tmp_path / "weights.png")
    with pytest.raises(InputError, match="pictures are written as"):
        draw_weights(recorded(FOUND), tmp_path / "weights.txt")
