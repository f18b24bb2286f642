from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexcomp.plan import PAGE, Buffer, Layer, Problem, Storage, Weights, slice_layers
from flexcomp.plan.errors import Unplaceable
from flexcomp.plan.parts.slicing import cut, file_range, finest_segment, largest_segment, live_bytes, slice_count
from tests.plan.problems import problems

weights = st.builds(
    Weights, st.integers(0, 500).map(lambda n: 64 * n), st.integers(1, 40), st.integers(1, 400).map(lambda n: 64 * n)
)


@given(weights, st.data())
def test_file_range_is_the_smallest_range_of_pages(w: Weights, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, w.blocks - 1))
    count = data.draw(st.integers(1, w.blocks - first))
    source, nbytes = file_range(w, first, count)
    begin, end = w.offset + first * w.block_nbytes, w.offset + (first + count) * w.block_nbytes
    assert source % PAGE == nbytes % PAGE == 0
    assert source <= begin < source + PAGE
    assert source + nbytes - PAGE < end <= source + nbytes


@given(st.integers(1, 60), st.data())
def test_cut_is_even(blocks: int, data: st.DataObject) -> None:
    parts = cut(blocks, data.draw(st.integers(1, blocks)))
    assert [block for first, count in parts for block in range(first, first + count)] == list(range(blocks))
    counts = [count for _, count in parts]
    assert max(counts) - min(counts) <= 1


@given(weights, st.integers(0, 60))
def test_slice_count_is_the_smallest_that_fits(w: Weights, limit_pages: int) -> None:
    limit = limit_pages * PAGE
    fitting = [n for n in range(1, w.blocks + 1) if largest_segment(w, n) <= limit]
    if fitting:
        assert slice_count(w, limit) == fitting[0]
    else:
        with pytest.raises(Unplaceable):
            slice_count(w, limit)


@given(problems(), st.integers(1, 3), st.integers(0, 100))
def test_slices_fit_the_limit(problem: Problem, segments_at_once: int, spare_pages: int) -> None:
    live = live_bytes(problem)
    needed = max(have + layer.scratch + finest_segment(layer) for have, layer in zip(live, problem.layers, strict=True))
    limit = needed + spare_pages * PAGE
    steps = slice_layers(problem, limit, segments_at_once)
    for step in steps:
        layer = problem.layers[step.layer]
        if layer.weights:
            assert live[step.layer] + layer.scratch + file_range(layer.weights, step.first, step.count)[1] <= limit
    with pytest.raises(Unplaceable):
        slice_layers(problem, needed - 1)


def test_several_at_once_cuts_finer_and_names_the_layer_that_does_not_fit() -> None:
    layer = Layer("dense", 0, Weights(0, 16, PAGE), 1.0)
    problem = Problem((layer,), (Buffer("x", PAGE, 0, 1),), Storage(1e9, 0))
    assert [len(slice_layers(problem, 9 * PAGE, n)) for n in (1, 2, 4, 100)] == [2, 4, 8, 16]
    with pytest.raises(Unplaceable, match=r"layer dense: one block of the weights needs 4,096 B, there are 0 B"):
        slice_layers(problem, PAGE)
    with pytest.raises(Unplaceable, match=r"layer dense: activations and scratch need 4,096 B, there are 0 B"):
        slice_layers(problem, 0)
