"""Sets of arena pages as Python integers: bit p stands for page p.

Intersecting the free pages of many steps is then one `&` per step, and finding room for a segment is
a handful of shifts, whatever the number of buffers and segments already placed.
"""

from __future__ import annotations

from ..problem import PAGE


def pages(nbytes: int) -> int:
    """Number of pages that hold `nbytes`."""
    return -(-nbytes // PAGE)


def span(first: int, count: int) -> int:
    """The set of pages [first, first + count)."""
    return ((1 << count) - 1) << first


def touched(address: int, nbytes: int) -> int:
    """The set of pages that bytes [address, address + nbytes) touch."""
    first = address // PAGE
    return span(first, pages(address + nbytes) - first) if nbytes else 0


def starts(free: int, count: int) -> int:
    """The set of pages at which `count` consecutive pages of `free` begin (count ≥ 1)."""
    have = 1
    while 2 * have <= count and free:
        free &= free >> have
        have *= 2
    return free & (free >> (count - have))


def lowest(pageset: int) -> int:
    """The first page of a non-empty set."""
    return (pageset & -pageset).bit_length() - 1


def highest(pageset: int) -> int:
    """The last page of a non-empty set."""
    return pageset.bit_length() - 1


def longest_run(free: int) -> int:
    """The length of the longest run of consecutive pages in `free`."""
    low, high = 0, free.bit_length()
    while low < high:
        middle = (low + high + 1) // 2
        if starts(free, middle):
            low = middle
        else:
            high = middle - 1
    return low
