"""Reductions over rows: kernels that leave out of their results all rows of their operands but the first ones.

    for i in range(64): most[0] = max(most[0], x[i, …])    →    for i in range(min(64, valid)): most[0] = max(most[0], x[i, …])

A fold is a store of what the same element was, and of elements of operands that have rows. It is left out for other rows,
whatever these hold. Loops end where no rows follow; where an iteration may have elements on both sides of the end, each store
asks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import tvm_ffi
from tvm import ir, tirx

from .accesses import Access, Kernel, Loop, UnknownError, read
from .bounds import Bound, End, ends_of, loop_stores
from .kernel import bounded, elements


def folded(kernel: tirx.PrimFunc, rows: int, operands: Collection[int], results: Collection[int]) -> tirx.PrimFunc | None:
    """The kernel that is told, after its results, how many of up to `rows` rows are valid; None if it is no reduction over rows.

    `operands` are the positions of parameters that have rows, `results` those of all that are written.
    """
    params = kernel.params
    row = {params[position]: elements(params[position]) // rows for position in operands}
    if any(elements(params[position]) > max(row.values()) for position in results):
        return None
    if not all(tirx.is_buffer_var(param) for param in params):
        return None
    try:
        found = read(kernel, {})
    except UnknownError:
        return None
    loads = [one for one in found.accesses if one.buffer in row]
    if not loads or not all(_is_fold(found, one) for one in loads):
        return None
    loops = [bound for loop in found.loops for bound in _ending(found, loop, row)]
    exact = [bound.loop for bound in loops if _ends_between_rows(found, bound, row)]
    asks = not all(any(loop.start <= place < loop.end for loop in exact) for place in _places(found, row))

    def asked(store: tirx.BufferStore, wanted: ir.Expr) -> tirx.BufferStore:
        ends = _ends_of_rows(store, found, row, wanted)
        if ends is None:
            return store
        before = store.buffer[tuple(store.indices)]
        return tirx.BufferStore(store.buffer, tirx.Select(ends, store.value, before), store.indices)

    return bounded(kernel, loops, rows, max(results) + 1, asked if asks else None)


def _is_fold(kernel: Kernel, load: Access) -> bool:
    """Whether what is loaded is only used in a store whose element is read, too."""
    if load.is_store or load.store is None or not _is_bound(kernel, load):
        return False
    own = [one for one in kernel.accesses if one.store is not None and one.store.same_as(load.store)]
    target = next(one for one in own if one.is_store)
    index = target.index
    same = [one for one in own if not one.is_store and one.buffer == target.buffer and one.index == index]
    return bool(same) and index.low == index.high


def _is_bound(kernel: Kernel, load: Access) -> bool:
    """Whether the index has a value around the store, too."""
    low, high = kernel.range_of(load.index)
    return low >= 0 and high < elements(load.buffer)


def _ending(kernel: Kernel, loop: Loop, row: Mapping[tirx.Var, int]) -> Iterator[Bound]:
    """The loops that may end early, for they fold only."""
    inside = [one for one in kernel.accesses[loop.start : loop.end] if one.buffer in row]
    folds = [one.store for one in inside]
    only = all(any(store.store.same_as(one) for one in folds) for store in loop_stores(kernel, loop))
    ends = ends_of(kernel, loop, [(one, row[one.buffer]) for one in inside]) if only and inside else ()
    if ends:
        yield Bound(loop, ends)
        return
    for inner in loop.inside:
        yield from _ending(kernel, inner, row)


def _ends_between_rows(kernel: Kernel, bound: Bound, row: Mapping[tirx.Var, int]) -> bool:
    """Whether all elements of an iteration are wanted, or none."""
    inside = [one for one in kernel.accesses[bound.loop.start : bound.loop.end] if one.buffer in row]
    indices = [kernel.seen_from(one.index, bound.loop.order) for one in inside]

    def is_whole(end: End) -> bool:
        steps = (end.row, *end.factors.values())
        return end.divisor == 1 and not any(step % end.stride for step in steps)

    strides = {end.stride for end in bound.ends}
    within = len(strides) == 1 and all(one.low >= 0 and one.high < min(strides) for one in indices)
    return within and all(is_whole(end) for end in bound.ends)


def _places(kernel: Kernel, row: Mapping[tirx.Var, int]) -> list[int]:
    return [place for place, one in enumerate(kernel.accesses) if one.buffer in row]


def _ends_of_rows(
    store: tirx.BufferStore, kernel: Kernel, row: Mapping[tirx.Var, int], wanted: ir.Expr
) -> ir.Expr | None:
    """Whether the rows that a store folds are wanted; None if it folds none."""
    loads: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(store.value, (ir.TensorLoad, loads.append))
    found: ir.Expr | None = None
    for load in loads:
        source = kernel.views.get(load.source, load.source)
        if source not in row:
            continue
        index: ir.Expr = tirx.const(0, "int64")
        for one, extent in zip(load.indices, load.source.shape, strict=True):
            index = index * tirx.const(int(extent), "int64") + one.astype("int64")
        here = index < wanted.astype("int64") * tirx.const(row[source], "int64")
        found = here if found is None else tirx.And(found, here)
    return found
