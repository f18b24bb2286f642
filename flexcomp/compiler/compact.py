"""Drop from the weights what no rung uses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from flexcomp.program import PAGE, Array, Layer, Program

Entry = tuple[str, Array, int]  # name, array, offset in the data section


def drop_unused(program: Program, weights: Iterable[Entry]) -> tuple[Program, tuple[Entry, ...]]:
    """The same program on weights without the pages that none of its layers needs.

    Loads read whole pages around the weights they want. So only pages without any used byte go, everything keeps
    its place within a page, and every plan stays as it was checked.
    """
    used = np.zeros(-(-program.weights_nbytes // PAGE), bool)
    for layer in program.layers:
        used[_pages(layer)] = True
    removed = np.concatenate([[0], np.cumsum(~used)])  # by page: pages that go before it

    def moved(offset: int) -> int:
        return offset - int(removed[offset // PAGE]) * PAGE

    stored = [layer.weights for layer in program.layers if layer.weights]
    ranges = [(weights.offset, weights.offset + weights.stored_nbytes) for weights in stored]
    kept = tuple(
        (name, array, moved(offset))
        for name, array, offset in weights
        if any(start <= offset < end for start, end in ranges)
    )
    layers = tuple(
        replace(layer, weights=replace(layer.weights, offset=moved(layer.weights.offset))) if layer.weights else layer
        for layer in program.layers
    )
    rungs = tuple(
        replace(rung, loads=tuple(replace(load, source=moved(load.source)) for load in rung.loads))
        for rung in program.rungs
    )
    nbytes = int(np.count_nonzero(used)) * PAGE
    return replace(program, layers=layers, rungs=rungs, weights_nbytes=nbytes), kept


def _pages(layer: Layer) -> slice:
    if layer.weights is None:
        return slice(0)
    end = layer.weights.offset + layer.weights.stored_nbytes
    return slice(layer.weights.offset // PAGE, -(-end // PAGE))
