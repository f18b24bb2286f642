"""Output channels without weights at the first row or column of a kernel: phases of a transposed convolution, computed together.

A zero weight in the place of such a tap makes an infinite pixel a NaN. Where all channels of a block have the same taps, a kernel
leaves the others out. Elsewhere it multiplies by the zeros, and computes a tile again, by masks, if some sum is NaN: masks in
every product would take up to 1.3 times as long.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .emit import Accumulators, spread, zero

Present = bool | tirx.Expr  # of some channels: all have the tap, none has, or a vector of 1 and 0, which TVM can bind


@dataclass(frozen=True)
class FirstTaps:
    """Which output channels of a group have the first taps, counted within the group."""

    rows: int  # channel c has the first kernel row if c < rows
    columns: int  # and the first kernel column if c % period < columns
    period: int
    channels: int  # of a group

    def has(self, channel: int, first_row: bool, first_column: bool) -> bool:
        """Whether a channel has a tap in the first row, the first column, both or neither."""
        channel %= self.channels
        return not (first_row and channel >= self.rows) and not (first_column and channel % self.period >= self.columns)

    def present(self, first_row: bool, first_column: bool, channel: tirx.Expr | int, lanes: int) -> Present:
        """Whether `lanes` channels from `channel` on have a tap."""
        if not first_row and not first_column:
            return True
        if isinstance(channel, int):
            found = [self.has(channel + lane, first_row, first_column) for lane in range(lanes)]
            if all(found) or not any(found):
                return found[0]
            return T.bind(tirx.Shuffle([tirx.const(float(one), "float32") for one in found], list(range(lanes))))
        channels = T.ramp(channel, 1, lanes) if lanes > 1 else channel
        mask = spread(tirx.const(1.0, "float32"), lanes)
        if first_row:
            mask = tirx.Select(channels < spread(tirx.const(self.rows, "int32"), lanes), mask, zero(lanes))
        if first_column:
            place = tirx.floormod(channels, spread(tirx.const(self.period, "int32"), lanes))
            mask = tirx.Select(place < spread(tirx.const(self.columns, "int32"), lanes), mask, zero(lanes))
        return T.bind(mask)

    def condition(self, first_row: bool, first_column: bool, channel: tirx.Expr) -> tirx.Expr:
        """Whether one channel has a tap."""
        conditions = [channel < self.rows] if first_row else []
        if first_column:
            conditions.append(tirx.floormod(channel, self.period) < self.columns)
        return tirx.all(*conditions)

    def is_uniform(self, block: int) -> bool:
        """Whether channels of a block have the same taps."""
        return all(bound % block == 0 for bound in (self.rows, self.columns, self.period, self.channels))


class MaskedAccumulators(Accumulators):
    """Accumulators that can leave out products of channels without a tap, and find sums that are no numbers."""

    def __init__(self, rows: int, pieces: list[tuple[int, int]]) -> None:
        super().__init__(rows, pieces)
        self.present: dict[int, Present] = {}  # by first channel of a vector; all channels have the tap if it is not there

    def add_product(self, row: int, start: int, lanes: int, left: tirx.Expr, right: tirx.Expr) -> None:
        present = self.present.get(start, True)
        if present is False:
            return
        total = self.get(row, start, lanes)
        value = total + left * right
        self.assign_to(row, start, lanes, value if present is True else tirx.Select(present > zero(lanes), value, total))

    def has_nan(self, rows: int) -> tirx.Expr:
        """Whether a sum of the first `rows` rows is NaN, or all of them together are, which is rare and does no harm."""
        by_lanes: dict[int, list[tirx.Expr]] = {}
        for row in range(rows):
            for start, lanes in self.pieces:
                by_lanes.setdefault(lanes, []).append(self.get(row, start, lanes))
        return tirx.isnan(_sum([_across(_sum(vectors), lanes) for lanes, vectors in by_lanes.items()]))


def _sum(terms: list[tirx.Expr]) -> tirx.Expr:
    """Added up in pairs, so that additions do not wait for each other."""
    while len(terms) > 1:
        pairs = [T.bind(a + b) for a, b in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[len(pairs) * 2 :]
    return terms[0]


def _across(vector: tirx.Expr, lanes: int) -> tirx.Expr:
    """The sum of a vector's lanes, a power of two."""
    while lanes > 1:
        lanes //= 2
        vector = T.bind(vector)
        vector = tirx.Shuffle([vector], list(range(lanes))) + tirx.Shuffle([vector], list(range(lanes, 2 * lanes)))
    return vector
