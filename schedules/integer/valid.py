"""The direct product in integer arithmetic of the first pixels, where a kernel is told how many are valid.

The valid pixels are cut into tiles of the most pixels that the other kernel's tiles have, and the rest into tiles of a power of
two. So no other pixel is packed or multiplied. A part has as many pixels as the scratch of a slot has room for.
"""

from __future__ import annotations

import math

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..tiles.layer_function import Operands, layer_function
from ..tiles.taps import Reach
from .kernel import Emitter
from .ways import Integer


def kernel(way: Integer, vector_width: int) -> tirx.PrimFunc:
    """A PrimFunc (x, epilogue tensors…, panel, first, count, y, valid, packed): y has the first `valid` pixels.

    Shapes are those of the kernel of all pixels, whose packed input must be a row of pixels.
    """
    assert way.tells_rows, f"no row of pixels in {way.spec}"
    return _Emitter(way, vector_width).prim_func()


class _Emitter(Emitter):
    def __init__(self, way: Integer, vector_width: int) -> None:
        super().__init__(way, vector_width)
        self.most = math.ceil(way.seen.out_width / way.units)
        self.pixels = min(math.ceil(way.units / way.parts) * self.most, way.seen.out_width)
        assert self.pixels * way.spec.in_channels <= way.part, "a slot has room for a part"

    def prim_func(self) -> tirx.PrimFunc:
        return layer_function(self.declared, self.panel, self._body, self.scratch, in_place=self.spec.tensors > 0, told=True)

    def _body(self, given: Operands) -> None:
        self.valid = given.valid
        super()._body(given)

    def _tasks(self, first, count) -> None:
        parts = T.bind((self.valid + (self.pixels - 1)) // self.pixels)
        self._share(T.bind(count * parts), first, count)

    def _part_of_units(self, part) -> tuple:
        """First pixel of a part, and the number of its pixels."""
        low = T.bind(part * self.pixels)
        return low, T.bind(tirx.min(self.valid - low, self.pixels))

    def _units(self, low, size) -> None:
        self._pack_part(low, lambda: self._pack_pixels(low, size))
        self.out_row, self.in_row, self.kernel_rows = 0, 0, (0, 1)
        whole = T.bind(size // self.most)
        with T.serial(whole) as index:
            self._tile(low + index * self.most, self.most, Reach.INNER)
        done, left = T.bind(low + whole * self.most), T.bind(size % self.most)
        for few in _powers_below(self.most):
            with T.serial(left // few % 2) as index:
                self._tile(T.bind(done + left // (2 * few) * (2 * few)), few, Reach.INNER)


def _powers_below(most: int) -> list[int]:
    """Powers of two, the largest first, whose sums are all numbers below `most`."""
    return [2**power for power in reversed(range((most - 1).bit_length()))]
