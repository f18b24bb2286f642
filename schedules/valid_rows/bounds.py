"""Loops over rows of a kernel's results: where each ends if only the first rows are wanted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tvm import tirx

from .accesses import Access, Kernel, Key, Loop, Quotient, Sum, enclosing

# A loop whose iteration has no more rows than these needs no other end inside.
_FEW_ROWS = 16
_MOST_ENDS = 4  # of one loop, of which the latest counts


@dataclass(frozen=True)
class End:
    """The accesses of iteration i begin at least at element stride · i + start: Σ factor · variable + offset."""

    row: int  # elements of a row
    stride: int
    divisor: int | tirx.Var  # i is the loop's variable // divisor
    factors: Mapping[Key, int]
    offset: int


@dataclass(frozen=True)
class Bound:
    """A loop with all its ends."""

    loop: Loop
    ends: tuple[End, ...]


def bounds(kernel: Kernel, row: Mapping[tirx.Var, int], scratch: Collection[tirx.Var] = ()) -> list[Bound]:
    """The loops that may end early, outer ones first.

    `row` are the elements of a row of each result, `scratch` buffers that a loop over rows fills anew in each iteration.
    """
    return [bound for loop in kernel.loops for bound in _bounds(kernel, loop, row, scratch)]


def aligned(kernel: Kernel, bound: Bound, row: Mapping[tirx.Var, int], operands: Mapping[tirx.Var, int]) -> set[tirx.Var]:
    """The results of which an iteration writes rows, and reads no others of some operand. Both are by elements of a row."""
    inside = kernel.accesses[bound.loop.start : bound.loop.end]
    loads = [(kernel.seen_from(one.index, bound.loop.order), operands[one.buffer]) for one in inside if one.buffer in operands]
    found = set()
    for result, own in row.items():
        stores = [kernel.seen_from(one.index, bound.loop.order) for one in inside if one.is_store and one.buffer == result]
        if stores and any(_is_inside(kernel, load, width, stores, own, bound.loop.node.loop_var) for load, width in loads):
            found.add(result)
    return found


def reads_own_rows(kernel: Kernel, found: Collection[Bound], row: Mapping[tirx.Var, int]) -> bool:
    """Whether what is read of results are rows that the same iteration of a loop writes."""
    for position, one in enumerate(kernel.accesses):
        if one.is_store or one.buffer not in row:
            continue
        loop = next((bound.loop for bound in found if bound.loop.start <= position < bound.loop.end), None)
        if loop is None:
            return False
        inside = kernel.accesses[loop.start : loop.end]
        stores = [kernel.seen_from(each.index, loop.order) for each in inside if each.is_store and each.buffer == one.buffer]
        load, width = kernel.seen_from(one.index, loop.order), row[one.buffer]
        if not stores or not _is_inside(kernel, load, width, stores, width, loop.node.loop_var):
            return False
    return True


def _bounds(kernel: Kernel, loop: Loop, row: Mapping[tirx.Var, int], scratch: Collection[tirx.Var]) -> Iterator[Bound]:
    ends = ends_of(kernel, loop, [(one, row[one.buffer]) for one in loop_stores(kernel, loop) if one.buffer in row])
    if ends and _may_end(kernel, loop, {*row, *scratch}):
        yield Bound(loop, ends)
        if all(end.stride <= _FEW_ROWS * end.row and end.divisor == 1 for end in ends):
            return
    for inner in loop.inside:
        yield from _bounds(kernel, inner, row, scratch)


def loop_stores(kernel: Kernel, loop: Loop) -> list[Access]:
    """The stores in a loop."""
    return [one for one in kernel.accesses[loop.start : loop.end] if one.is_store]


def ends_of(kernel: Kernel, loop: Loop, accesses: Iterable[tuple[Access, int]]) -> tuple[End, ...]:
    """Where accesses, each with the elements of a row, leave the wanted rows.

    None if the loop does not begin at 0, is one of lanes, or some access does not move on with it.
    """
    if loop.node.kind == tirx.ForKind.VECTORIZED or not isinstance(loop.node.min, tirx.IntImm) or int(loop.node.min):
        return ()
    found: dict[tuple, End] = {}
    for access, row in accesses:
        index = kernel.seen_from(access.index, loop.order)
        own = [key for key in index.factors if _of(key, loop.node.loop_var)]
        if len(own) != 1 or not _crosses_rows(kernel, loop, index.factors[own[0]], row):
            return ()
        divisor = own[0].divisor if isinstance(own[0], Quotient) else 1
        rest = {key: factor for key, factor in index.factors.items() if key is not own[0]}
        end = End(row, index.factors[own[0]], divisor, rest, index.low)
        key = end.row, end.stride, divisor, frozenset(rest.items())
        if key not in found or found[key].offset > end.offset:
            found[key] = end
    return tuple(found.values()) if len(found) <= _MOST_ENDS else ()


def _crosses_rows(kernel: Kernel, loop: Loop, stride: int, row: int) -> bool:
    """Whether the loop moves to other rows, not only within one."""
    return stride > 0 and stride * kernel.ranges[loop.node.loop_var][1] >= row


def _of(key: Key, var: tirx.Var) -> bool:
    return (key.var if isinstance(key, Quotient) else key) == var


def _may_end(kernel: Kernel, loop: Loop, free: Collection[tirx.Var]) -> bool:
    """Whether nothing after the loop, nor another run of it, reads what iterations that are left out would have written.

    For buffers in `free` that is known.
    """
    written = {one.buffer for one in kernel.accesses[loop.start : loop.end] if one.is_store and one.buffer not in free}
    for buffer in written:
        start, end = kernel.allocated.get(buffer, [0, len(kernel.accesses)])
        if loop.start <= start and end <= loop.end and buffer in kernel.allocated:
            continue
        around = [one for one in enclosing(loop) if start <= one.start and one.end <= end]
        runs = [(loop.end, end), (loop.start, loop.end), *((one.start, one.end) for one in around)]
        if any(_reads_first(kernel, buffer, first, last) for first, last in runs):
            return False
    return True


def _reads_first(kernel: Kernel, buffer: tirx.Var, start: int, end: int) -> bool:
    """Whether the accesses of a range may read an element before they write it."""
    written: set[int] = set()
    for one in kernel.accesses[start:end]:
        if one.buffer != buffer:
            continue
        if not one.is_store:
            low, high = kernel.range_of(one.index)
            if high - low > 4096 or not written.issuperset(range(low, high + 1)):
                return True
        elif one.scope[0] <= start and end <= one.scope[1] and (covered := _covered(one)):
            written.update(covered)
    return False


def _covered(store: Access) -> range | None:
    """The elements that a store writes, if it writes the same ones whenever it runs."""
    index = store.index
    return range(index.low, index.high + 1) if not index.factors and index.exact else None


def _is_inside(kernel: Kernel, load: Sum, width: int, stores: list[Sum], row: int, var: tirx.Var) -> bool:
    """Whether what is loaded, in rows of `width` elements, lies in the rows that are stored in the same iteration."""
    if not any(_of(key, var) for key in load.factors):
        return False
    spans = []
    for store in stores:
        if any(factor * row != store.factors.get(key, 0) * width for key, factor in load.factors.items()):
            continue
        others = Sum({key: f for key, f in store.factors.items() if key not in load.factors}, store.low, store.high)
        spans.append(kernel.range_of(others))
    if not spans:
        return False
    first, last = min(low for low, _ in spans) // row, max(high for _, high in spans) // row
    return first <= load.low // width and load.high // width <= last
