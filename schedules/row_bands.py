"""Bands of rows: the same operator on a few rows of its output, and on the rows of its input that these need.

In NHWC and with one image a band of rows is one contiguous range of bytes. So a band of a layer is computed by the
layer's own kernel, made for an image of fewer rows: the first band keeps the padding at the top, the last the
padding at the bottom, and the rows that neighbouring bands share (the halo) are read twice. Weights are packed as for
the whole layer, and every output is the sum of the same products in the same order; not so for Winograd kernels, whose
tiles begin at the first row of the band: their outputs differ from the whole layer's by rounding.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace

from tvm import tirx

from . import conv, depthwise, grouped
from .integer import kernel as integer_kernel
from .integer.ways import Integer
from .operators import concat, pool
from .operators.concat import ConcatSpec
from .operators.pool import PoolSpec
from .tiles.first_taps import FirstTaps
from .tiles.place import Place
from .tiles.spec import ConvSpec
from .tiles.tile import Tile
from .winograd import kernel as winograd_kernel
from .winograd.ways import Winograd

_SPECS = {cls.__name__: cls for cls in (ConvSpec, PoolSpec, ConcatSpec)}
_CONVOLUTIONS = {"direct": conv.kernel, "depthwise": depthwise.kernel, "grouped": grouped.kernel}


@dataclass(frozen=True)
class Rows:
    """Rows [start, stop) of an image."""

    start: int
    stop: int

    @property
    def count(self) -> int:
        return self.stop - self.start

    def __or__(self, other: Rows) -> Rows:
        """The smallest band that holds both."""
        return Rows(min(self.start, other.start), max(self.stop, other.stop))

    def __str__(self) -> str:
        return f"[{self.start}:{self.stop}]"


@dataclass(frozen=True)
class RowKernel:
    """A kernel that can be made for a band of its rows."""

    spec: ConvSpec | PoolSpec | ConcatSpec
    vector_width: int
    family: str = ""  # of a convolution's kernel
    tile: Tile | None = None  # of a convolution's kernel
    blocking: tuple[int | str, ...] = ()  # as `_blocking` says

    @property
    def way(self) -> Winograd | Integer | None:
        """The description of a Winograd kernel, or of one in integer arithmetic."""
        if self.family == "integer":
            rows, slots, instruction = self.blocking
            way = Integer(self.spec, self.tile, 1, slots, instruction)
            return replace(way, parts=math.ceil(way.units / rows))
        if self.family != "winograd":
            return None
        m, *blocking = self.blocking
        return _shrunk(Winograd(self.spec, m, self.tile, *blocking))

    @property
    def scratch(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the kernel's scratch, float32."""
        return self.way.scratch if self.way else ()

    @property
    def work(self) -> float | None:
        """As Candidate.work; None if in proportion to the operations."""
        return self.way.work if self.way else None

    @property
    def out_rows(self) -> int:
        """Rows of the output."""
        spec = self.spec
        if isinstance(spec, ConcatSpec):
            return spec.out_shape[1]
        return spec.out_height if isinstance(spec, ConvSpec) else spec.out_h

    @property
    def flops(self) -> int:
        return getattr(self.spec, "flops", 0)

    def needed(self, out: Rows, operand: int) -> Rows:
        """The rows of activation `operand` (in the order of the kernel's parameters) that `out` is computed from."""
        return self._clipped(out)[0] if operand == 0 and not isinstance(self.spec, ConcatSpec) else out

    def band(self, out: Rows) -> RowKernel:
        """The kernel for the rows `out` of the output; its operands are the rows that `needed` says."""
        spec = self.spec
        if isinstance(spec, ConcatSpec):
            shapes = tuple((shape[0], out.count, *shape[2:]) for shape in spec.shapes)
            return replace(self, spec=replace(spec, shapes=shapes))
        rows, top, bottom = self._clipped(out)
        if isinstance(spec, ConvSpec):
            padding = (top, spec.padding[1], bottom, spec.padding[3])
            place = spec.place.of_rows(out.count) if spec.place else None
            return replace(self, spec=replace(spec, height=rows.count, padding=padding, place=place))
        pad = (top, spec.pad[1], bottom, spec.pad[3])
        return replace(self, spec=replace(spec, h=rows.count, pad=pad, out_h=out.count))

    def build(self) -> tirx.PrimFunc:
        """The kernel's code, with the parameters of the kernel for the whole layer."""
        if self.way is not None:
            family = integer_kernel if self.family == "integer" else winograd_kernel
            return family.kernel(self.way, self.vector_width)
        if isinstance(self.spec, ConvSpec):
            return _CONVOLUTIONS[self.family](self.spec, self.tile, self.vector_width)
        family = pool if isinstance(self.spec, PoolSpec) else concat
        return family.kernel(self.spec, self.vector_width)

    def encode(self) -> str:
        """As text, for an attribute in the IR."""
        fields = asdict(self)
        for name, usual in (("weights", "float32"), ("integers", False), ("vectors", 0), ("first_taps", None)):
            if name in fields["spec"] and fields["spec"][name] == usual:
                del fields["spec"][name]  # the default
        return json.dumps([type(self.spec).__name__, fields])

    @staticmethod
    def decode(text: str) -> RowKernel:
        """The inverse of `encode`."""
        name, fields = json.loads(text)
        described = {key: _tuples(value) for key, value in fields.pop("spec").items()}
        if place := described.get("place"):
            described["place"] = Place(**{key: _tuples(value) for key, value in place.items()})
        if first_taps := described.get("first_taps"):
            described["first_taps"] = FirstTaps(**first_taps)
        spec = _SPECS[name](**described)
        tile, blocking = fields.pop("tile"), fields.pop("blocking")
        return RowKernel(spec, tile=Tile(**tile) if tile else None, blocking=tuple(blocking), **fields)

    def _clipped(self, out: Rows) -> tuple[Rows, int, int]:
        """The input rows under the windows of `out`, and the rows of padding above and below."""
        spec = self.spec
        if isinstance(spec, ConvSpec):
            extent, kernel, padding = spec.height, spec.kernel[0], spec.padding
        else:
            extent, kernel, padding = spec.h, spec.kh, spec.pad
        start = out.start * spec.stride[0] - padding[0]
        stop = (out.stop - 1) * spec.stride[0] - padding[0] + (kernel - 1) * spec.dilation[0] + 1
        # A window may reach past the padding where an operator rounds the size of its output up.
        below = min(stop, extent + padding[2]) - extent
        return Rows(max(0, start), min(extent, stop)), max(0, -start), max(0, below)


def row_kernel(
    spec: object, vector_width: int, family: str = "", tile: Tile | None = None, way: Winograd | Integer | None = None
) -> RowKernel | None:
    """How a kernel computes bands of rows; None if impossible: other families, several images, a single row.

    `way` describes a Winograd kernel, or one in integer arithmetic; pairs of pixels, which Winograd kernels may
    take, are cut from the first row on.
    """
    if isinstance(spec, ConvSpec):
        able = spec.batch == 1 and (family in _CONVOLUTIONS or (way is not None and getattr(way, "stride", 1) == 1))
        # The rows of the target tensor must be those of the result.
        able = able and spec.y_shape[:3] == spec.out_shape[:3] and len(spec.y_shape) == 4
    elif isinstance(spec, PoolSpec):
        able = spec.n == 1
    elif isinstance(spec, ConcatSpec):
        able = len(spec.out_shape) == 4 and spec.axis == 3 and spec.out_shape[0] == 1
    else:
        able = False
    if not able:
        return None
    kernel = RowKernel(spec, vector_width, family, tile, _blocking(way))
    return kernel if kernel.out_rows > 1 else None


def _blocking(way: Winograd | Integer | None) -> tuple[int | str, ...]:
    """Of a Winograd kernel m, groups, chunk, slots and threads; in integer arithmetic units of a part, slots, the instruction."""
    if isinstance(way, Integer):
        return (math.ceil(way.units / way.parts), way.slots, way.instruction)
    return (way.m, way.groups, way.chunk, way.slots, way.threads) if way else ()


def _shrunk(way: Winograd) -> Winograd:
    """A way whose register tiles, blocks and slots are no more than there is work for."""
    way = replace(way, tile=replace(way.tile, rows=min(way.tile.rows, way.tiles)))
    way = replace(way, groups=min(way.groups, math.ceil(way.all_groups / way.slots)))
    return replace(way, slots=min(way.slots, way.tile_blocks))


def _tuples(value):
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value
