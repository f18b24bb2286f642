"""Which taps of a kernel row reach the image, for register tiles of neighbouring output pixels.

Padding costs no copy: a tile at the left or right border has only the taps that exist. There are two forms of code:

    unrolled   every border tile on its own, every tap with its pixels
    looped     border tiles of one size share their code: bounds of loops over taps are computed from the tile's place

The first is the faster one, but its code grows with the length of the kernel times the number of border tiles. The second has
as much code for a kernel of 128 taps as for one of 16.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .spec import ConvSpec
from .tile import split_evenly

# Statements of a kernel's reductions from which on LLVM takes seconds: more are looped.
MOST_UNROLLED = 2048


class Reach(Enum):
    """Where a tile lies whose taps are not listed one by one."""

    INNER = "every tap reaches every pixel"
    BORDER = "what a tap reaches is known at run time"


# The reach of a kernel row's taps; or for every tap its pixels of the tile.
Taps = Reach | list[list[int]]


@dataclass(frozen=True)
class Run:
    """`count` tiles of `size` pixels each, from output pixel `start` on."""

    start: int
    size: int
    count: int
    taps: Taps


@dataclass(frozen=True)
class Span:
    """Taps [low, high) of a kernel row, all of which reach the same pixels of a tile."""

    low: tirx.Expr | int
    high: tirx.Expr | int
    reached: list[int]

    @property
    def count(self) -> tirx.Expr | int:
        return self.high - self.low


def unrolled(spec: ConvSpec, most: int) -> list[Run]:
    """The tiles of a row, of at most `most` pixels; tiles at borders list their taps."""
    runs: list[Run] = []
    for start, size in split_evenly(spec.out_width, most):
        taps: Taps = Reach.INNER
        if not _is_inner(spec, start, size):
            taps = [[pixel for pixel in range(size) if _reaches(spec, tap, start + pixel)] for tap in range(spec.kernel[1])]
        _append(runs, Run(start, size, 1, taps))
    return runs


def looped(spec: ConvSpec, most: int) -> list[Run]:
    """The tiles of a row, of at most `most` pixels and none wider than the image: no tap leaves the image on both sides."""
    runs: list[Run] = []
    for start, size in split_evenly(spec.out_width, min(most, (spec.width - 1) // spec.stride[1] + 1)):
        _append(runs, Run(start, size, 1, Reach.INNER if _is_inner(spec, start, size) else Reach.BORDER))
    return runs


def spans(spec: ConvSpec, column: tirx.Expr, size: int) -> tuple[Span, list[Span]]:
    """For a looped border tile at output pixel `column`: the taps that reach all of its pixels, and those that reach some.

    Tap t of pixel p lies in the image from `first[p]` to before `end[p]`. Both fall from pixel to pixel.
    """
    first, end = [], []
    for pixel in range(size):
        outside = spec.padding[1] - (column + pixel) * spec.stride[1]  # columns left of the image at which tap 0 lies
        first.append(T.bind(_taps_before(spec, outside)))
        end.append(T.bind(_taps_before(spec, outside + spec.width)))
    left = [Span(first[pixel], first[pixel - 1], list(range(pixel, size))) for pixel in reversed(range(1, size))]
    right = [Span(end[pixel + 1], end[pixel], list(range(pixel + 1))) for pixel in reversed(range(size - 1))]
    return Span(first[0], end[-1], list(range(size))), left + right


def joined(taps: list[list[int]]) -> list[Span]:
    """Neighbouring taps that reach the same pixels."""
    found: list[Span] = []
    for tap, reached in enumerate(taps):
        if found and found[-1].reached == reached:
            found[-1] = Span(found[-1].low, tap + 1, reached)
        else:
            found.append(Span(tap, tap + 1, reached))
    return [span for span in found if span.reached]


def _append(runs: list[Run], run: Run) -> None:
    """Tiles that share their code are one run."""
    before = runs[-1] if runs else None
    if before and isinstance(run.taps, Reach) and (before.taps, before.size) == (run.taps, run.size):
        runs[-1] = Run(before.start, before.size, before.count + 1, before.taps)
    else:
        runs.append(run)


def _is_inner(spec: ConvSpec, start: int, size: int) -> bool:
    return all(_reaches(spec, tap, pixel) for tap in (0, spec.kernel[1] - 1) for pixel in (start, start + size - 1))


def _reaches(spec: ConvSpec, tap: int, pixel: int) -> bool:
    return 0 <= pixel * spec.stride[1] - spec.padding[1] + tap * spec.dilation[1] < spec.width


def _taps_before(spec: ConvSpec, columns: tirx.Expr) -> tirx.Expr:
    """How many taps lie within `columns` columns after tap 0."""
    dilation = spec.dilation[1]
    return tirx.min((tirx.max(columns, 0) + (dilation - 1)) // dilation, spec.kernel[1])
