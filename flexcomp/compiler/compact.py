"""Drop weights that no rung uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from flexcomp.deferred import Array
from flexcomp.program import PAGE, Layer, Operation, Program, Read, RowsArg, Rung

Entry = tuple[str, Array, int]  # name, array, offset in the data section


def drop_unused(programs: Sequence[Program], weights: Iterable[Entry]) -> tuple[tuple[Program, ...], tuple[Entry, ...]]:
    """The same programs on weights without the pages that none of their layers needs.

    Loads read whole pages around their weights. So only pages without any used byte go, everything keeps
    its place within a page, and every plan stays as it was checked.
    """
    used = np.zeros(-(-programs[0].weights_nbytes // PAGE), bool)
    ranges = [found for program in programs for layer in program.layers for found in _ranges(layer)]
    for start, end in ranges:
        used[start // PAGE : -(-end // PAGE)] = True
    removed = np.concatenate([[0], np.cumsum(~used)])  # by page: removed pages before this one

    def moved(offset: int) -> int:
        return offset - int(removed[offset // PAGE]) * PAGE

    kept = tuple(
        (name, array, moved(offset))
        for name, array, offset in weights
        if any(start <= offset < end for start, end in ranges)
    )

    def changed(layer: Layer) -> Layer:
        args = (replace(arg, table=moved(arg.table)) if isinstance(arg, RowsArg) else arg for arg in layer.args)
        weights = replace(layer.weights, offset=moved(layer.weights.offset)) if layer.weights else None
        return replace(layer, args=tuple(args), weights=weights)

    def of_file(one: Operation) -> Operation:
        return replace(one, source=moved(one.source)) if isinstance(one, Read) else one

    def on_kept(rung: Rung) -> Rung:
        operations = tuple(map(of_file, rung.tapes.operations))
        return replace(rung, tapes=replace(rung.tapes, operations=operations))

    nbytes = int(np.count_nonzero(used)) * PAGE
    smaller = (
        replace(one, layers=tuple(map(changed, one.layers)), rungs=tuple(map(on_kept, one.rungs)), weights_nbytes=nbytes)
        for one in programs
    )
    return tuple(smaller), kept


def _ranges(layer: Layer) -> list[tuple[int, int]]:
    """(start, end) of a layer's ranges of the data section: its weights, and the table that rows are fetched from."""
    ranges = [(layer.weights.offset, layer.weights.offset + layer.weights.stored_nbytes)] if layer.weights else []
    return ranges + [(arg.table, arg.table + arg.table_nbytes) for arg in layer.args if isinstance(arg, RowsArg)]
