"""Bands of rows: the same operator on a few rows of its output, and on the rows of its input that these need.

In NHWC and with one image a band of rows is one contiguous range of bytes. So a band of a layer is computed by the
layer's own kernel, made for an image of fewer rows: the first band keeps the padding at the top, the last the
padding at the bottom, and the rows that neighbouring bands share (the halo) are read twice. Weights are packed as for
the whole layer, and every output is the sum of the same products in the same order; not so for Winograd kernels, whose
tiles begin at the first row of the band: their outputs differ from the whole layer's by rounding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

from tvm import tirx

from .operators.concat import ConcatSpec
from .operators.pool import PoolSpec
from .tiles.first_taps import FirstTaps
from .tiles.place import Place
from .tiles.spec import ConvSpec
from .tiles.tile import Tile


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


@dataclass(frozen=True, eq=False)
class Bands:
    """How a family's kernels, or those of an operator, are made for other rows."""

    takes: type  # ConvSpec, PoolSpec or ConcatSpec
    build: Callable[..., tirx.PrimFunc]  # (way, vector_width) if there is a way, else (spec[, tile], vector_width)
    family: str = ""  # its name; none: an operator
    way: Callable[..., object] | None = None  # (spec, tile, *blocking): describes a kernel with scratch and work of its own
    large: bool = False  # scratch is as large as the savings: such kernels compute bands next to smaller ones only


# Defaults that `RowKernel.encode` leaves out.
_USUAL = {
    ConvSpec: {"weights": "float32", "integers": False, "vectors": 0, "first_taps": None, "dtype": "float32"},
    PoolSpec: {"dtype": "float32"},
}


@dataclass(frozen=True)
class RowKernel:
    """A kernel that can be made for a band of its rows."""

    bands: Bands
    spec: ConvSpec | PoolSpec | ConcatSpec
    vector_width: int
    tile: Tile | None = None  # of a convolution's kernel
    blocking: tuple[int | str, ...] = ()  # the kernel's other sizes, which bands have, too

    @property
    def way(self):
        """The description of the kernel, if there is one."""
        return self.bands.way(self.spec, self.tile, *self.blocking) if self.bands.way else None

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
        described = (self.way,) if self.bands.way else (self.spec, self.tile) if self.tile else (self.spec,)
        return self.bands.build(*described, self.vector_width)

    def encode(self) -> str:
        """As text, for an attribute in the IR."""
        spec, tile = asdict(self.spec), asdict(self.tile) if self.tile else None
        for name, usual in _USUAL.get(type(self.spec), {}).items():
            if spec[name] == usual:
                del spec[name]
        fields = {"vector_width": self.vector_width, "family": self.bands.family, "tile": tile, "blocking": self.blocking}
        return json.dumps([self.bands.takes.__name__, {"spec": spec, **fields}])

    @staticmethod
    def decode(text: str, known: Mapping[tuple[str, str], Bands]) -> RowKernel:
        """The inverse of `encode`; `known` by the names of specs and family."""
        name, fields = json.loads(text)
        described = {key: _tuples(value) for key, value in fields["spec"].items()}
        if place := described.get("place"):
            described["place"] = Place(**{key: _tuples(value) for key, value in place.items()})
        if first_taps := described.get("first_taps"):
            described["first_taps"] = FirstTaps(**first_taps)
        bands, tile = known[name, fields["family"]], fields["tile"]
        return RowKernel(
            bands, bands.takes(**described), fields["vector_width"], Tile(**tile) if tile else None, tuple(fields["blocking"])
        )

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
    bands: Bands, spec: object, vector_width: int, tile: Tile | None = None, blocking: tuple[int | str, ...] = ()
) -> RowKernel | None:
    """How a kernel computes bands of rows; None if impossible: several images, a single row."""
    if isinstance(spec, ConvSpec):
        # The rows of the target tensor must be those of the result.
        able = spec.batch == 1 and spec.y_shape[:3] == spec.out_shape[:3] and len(spec.y_shape) == 4
    elif isinstance(spec, PoolSpec):
        able = spec.n == 1
    else:
        able = len(spec.out_shape) == 4 and spec.axis == 3 and spec.out_shape[0] == 1
    kernel = RowKernel(bands, spec, vector_width, tile, blocking)
    return kernel if able and kernel.out_rows > 1 else None


def _tuples(value):
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value
