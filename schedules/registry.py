"""Which kernels can compute a layer: every family offers candidates, the caller chooses."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType

from tvm import tirx

from . import conv, depthwise, grouped, matmul, one_pixel, widened
from .im2col import kernel as im2col_kernel
from .im2col import ways as im2col
from .integer import kernel as integer_kernel
from .integer import ways as integer
from .recurrent import kernel as recurrent_kernel
from .recurrent import ways as recurrent
from .recurrent.spec import RecurrentSpec
from .row_bands import RowKernel, row_kernel
from .strassen import kernel as strassen_kernel
from .strassen import ways as strassen
from .strassen.ways import HalvesTransform
from .tiles.panel import WEIGHT_DTYPES, Panel, element_type, panel_of
from .tiles.spec import ConvSpec, MatmulSpec
from .tiles.tile import Tile, VectorUnit, choose
from .winograd import kernel as winograd_kernel
from .winograd import ways as winograd
from .winograd.transforms import WeightTransform

# Pixels of a depthwise tile: a kernel row's taps of seven neighbours and their accumulators fill 32 registers.
_DEPTHWISE_ROWS = 7
_DEPTHWISE_VECTORS = 2
# Above this value of inputs + 3 × weights of a kernel row LLVM was seen to move vectors to the stack and back in the
# inner loop, the inputs being loaded early (benchmarks/lab/arm/mca.py).
_DEPTHWISE_LIVE = 21
# Cost of a depthwise tap compared with a direct one, whose operands are reused: a vector is loaded for every FMA.
_DEPTHWISE_SLOWDOWN = 1.3
# Vectors of a tile of groups, registers that hold neither sums nor inputs, and the cost of a product compared with a
# direct one: every product takes a shuffle.
_GROUPED_VECTORS = 2
_GROUPED_OTHERS = 4
_GROUPED_SLOWDOWN = 1.5
# The predicted time of a direct kernel, in operations at a core's peak: per operation, per byte of the result and of the
# tensors that the epilogue reads, and per byte of weights, which wait in memory. Fitted to the layers of ResNet-50 on
# one Zen 4 core (118 GFLOP/s): within 4 % of all that were measured.
_DIRECT_FLOPS = 1.025
_RESULT_FLOPS = 0.95
_WEIGHT_FLOPS = 2.0
# Instructions that widen a vector of 128 bits, as multiply-adds that could run instead (benchmarks/lab/arm/mca.py); wider vectors
# are widened in parallel with the multiply-adds.
_WIDENING = {"float16": 2.0, "bfloat16": 1.5, "int8": 3.5}
# F(6,3) is not a candidate: its error is 1e-5 of the largest output where that of F(4,3) is 2e-6, and over the sixteen
# convolutions of VGG-19 that adds up to more than 1e-4. F(5,3) has 6e-6, and must need less than this part of the work.
WINOGRAD_KINDS = (2, 4, 5)
_LESS_ACCURATE_KIND = 5
_WORTH_ITS_ERRORS = 0.85


@dataclass(frozen=True)
class Candidate:
    """A kernel that can compute a layer."""

    family: str  # "direct", "depthwise", "grouped", "gemv", "im2col_gemm", "integer", "matmul", "strassen", "winograd"
    tile: Tile
    panel: Panel | None  # shape of the packed weights; None without weights
    scratch_nbytes: int
    work: float  # operations, weighted so that candidates of one layer compare: less is faster
    build: Callable[[], tirx.PrimFunc]
    variant: str = ""  # tells candidates of one family and tile apart
    weight_transform: WeightTransform | None = None  # of the weights, before they are packed
    block_transform: HalvesTransform | None = None  # of the weights of every block
    scratch: tuple[tuple[int, ...], ...] = ()  # shapes of the kernel's trailing parameters, float32
    rows: RowKernel | None = None  # computes bands of rows, where possible
    panels: tuple[Panel, ...] = ()  # of a kernel that takes several, or one, whole
    in_place: bool = False  # y may be a tensor of the epilogue: a result is written once, just after the same element is read

    @property
    def weight_nbytes(self) -> int:
        """Bytes of all packed weights."""
        return sum(panel.blocks * panel.block_nbytes for panel in (self.panel, *self.panels) if panel)

    def __str__(self) -> str:
        tile = "" if self.panels else str(self.tile)  # which the variant tells
        return " ".join(part for part in (self.family, self.variant, tile) if part)


@functools.lru_cache(maxsize=1024)  # every choice of kernels reads the candidates of every layer
def candidates(spec: ConvSpec | MatmulSpec, unit: VectorUnit) -> tuple[Candidate, ...]:
    """Every kernel that can compute a layer."""
    return tuple(conv_candidates(spec, unit) if isinstance(spec, ConvSpec) else matmul_candidates(spec, unit))


def conv_candidates(spec: ConvSpec, unit: VectorUnit) -> list[Candidate]:
    """Kernels for a convolution or fully connected layer, the first with the least scratch.

    Where integer arithmetic is faster there are no others: all of its kernels take weights in one form, which others do not.
    """
    return integer_candidates(spec, unit) or _float_candidates(spec, unit)


def _float_candidates(spec: ConvSpec, unit: VectorUnit) -> list[Candidate]:
    if spec.depthwise:
        block = min(_DEPTHWISE_VECTORS * unit.width, spec.out_channels)
        tile = Tile(min(_depthwise_rows(spec, unit), spec.out_width), block)
    elif grouped.eligible(spec, unit):
        tile = grouped_tile(spec, unit)
    else:
        row_nbytes = 4 * spec.in_channels * spec.stride[1]
        tile = choose(
            tile_width(spec), spec.group_out, conv.unit_for(spec, unit), row_nbytes=row_nbytes,
            weight_nbytes=WEIGHT_DTYPES[element_type(spec.weights)],
        )  # fmt: skip
        if spec.pointwise and tile_width(spec) == 1:
            tile = one_pixel.with_less_padding(spec, tile, unit)
    return [
        direct_candidate(spec, tile, unit),
        *widened_candidates(spec, tile, unit),
        *(winograd_candidate(way, unit) for way in _winograd_ways(spec, unit)),
        *(strassen_candidate(way, unit) for way in strassen.ways(spec, unit)),
        *(im2col_candidate(way, unit) for way in im2col.ways(spec, unit)),
    ]


def tile_width(spec: ConvSpec) -> int:
    """Pixels of a row that direct tiles are cut from."""
    return spec.batch * spec.height * spec.width if spec.pointwise else spec.out_width


def direct_candidate(spec: ConvSpec, tile: Tile, unit: VectorUnit) -> Candidate:
    """The kernel without scratch, with a given register tile."""
    if spec.depthwise:
        build, family, work = depthwise.kernel, "depthwise", spec.flops * _DEPTHWISE_SLOWDOWN
    elif grouped.eligible(spec, unit):
        build, family, work = grouped.kernel, "grouped", _direct_work(spec) + spec.flops * (_GROUPED_SLOWDOWN - 1)
    else:
        family = "gemv" if spec.batch * spec.height * spec.width == 1 else "direct"
        build, work = conv.kernel, _direct_work(spec)
        if tile.depth > 1 and element_type(spec.weights) in _WIDENING:
            work *= 1 + _WIDENING[element_type(spec.weights)] / tile.rows
    panel = panel_of(spec, tile.channels)
    code = lambda: build(spec, tile, unit.width, unit.threads)  # noqa: E731
    # Blocks that overlap compute some results twice.
    disjoint = family in ("direct", "gemv") and panel.group_channels % panel.block == 0
    rows = row_kernel(spec, unit.width, family, tile)
    return Candidate(family, tile, panel, 0, work, code, rows=rows, in_place=disjoint)


def widened_candidates(spec: ConvSpec, tile: Tile, unit: VectorUnit) -> list[Candidate]:
    """The direct kernel with weights widened once for many tiles, in scratch, if there is something to gain."""
    if grouped.eligible(spec, unit) or spec.first_taps is not None or not widened.eligible(spec, tile):
        return []
    way = widened.Widened(spec, tile, unit.threads)
    direct = direct_candidate(spec, tile, unit)
    return [
        replace(
            direct,
            scratch_nbytes=way.scratch_nbytes,
            work=_direct_work(spec) * (1 + _WIDENING[element_type(spec.weights)] / widened.TILES_OF_A_GROUP / tile.rows),
            build=lambda: widened.kernel(way, unit.width),
            variant="widened",
            scratch=way.scratch,
            rows=None,
        )
    ]


def integer_candidates(spec: ConvSpec, unit: VectorUnit) -> list[Candidate]:
    """Kernels in integer arithmetic, if there are some and the fastest of them is faster than float32."""
    offered = [integer_candidate(way, unit) for way in integer.ways(spec, unit)]
    others = _float_candidates(spec, unit) if offered else []
    return offered if _least_work(offered) < _least_work(others) else []


def _least_work(offers: list[Candidate]) -> float:
    return min((candidate.work for candidate in offers), default=math.inf)


def integer_candidate(way: integer.Integer, unit: VectorUnit) -> Candidate:
    """A candidate in integer arithmetic."""
    return _candidate(
        "integer",
        integer_kernel,
        way,
        unit,
        rows=row_kernel(way.spec, unit.width, "integer", way.tile, way),
        in_place=way.spec.out_channels % way.tile.channels == 0,
    )


def grouped_tile(spec: ConvSpec, unit: VectorUnit) -> Tile:
    """Pixels whose sums, inputs and shuffled inputs fit the registers: twice as many take up to 1.6 times as long."""
    vectors = min(_GROUPED_VECTORS, max(1, spec.out_channels // unit.width))
    rows = (unit.registers - _GROUPED_OTHERS) // (2 * (vectors + 1))
    return Tile(max(1, min(rows, spec.out_width)), min(vectors * unit.width, spec.out_channels))


def _depthwise_rows(spec: ConvSpec, unit: VectorUnit) -> int:
    """Pixels of a tile: fewer where 128-bit registers would not hold the inputs of large kernels with strides."""
    rows = _DEPTHWISE_ROWS
    if unit.by_lane and unit.independent_fmas <= _DEPTHWISE_ROWS + 1:
        while rows > 1 and (rows - 1) * spec.stride[1] + 3 * spec.kernel[1] > _DEPTHWISE_LIVE:
            rows -= 1
    return rows


@functools.cache
def _direct_work(spec: ConvSpec) -> float:
    """Operations on pixels that exist, and waiting for weights and results."""
    inside = _taps_inside(spec, 0) * _taps_inside(spec, 1) / (spec.out_height * spec.out_width * math.prod(spec.kernel))
    result_nbytes = 4 * math.prod(spec.out_shape) * (1 + spec.tensors)
    weight_nbytes = WEIGHT_DTYPES[element_type(spec.weights)] * spec.out_channels * spec.taps
    return _DIRECT_FLOPS * spec.flops * inside + _RESULT_FLOPS * result_nbytes + _WEIGHT_FLOPS * weight_nbytes


def _taps_inside(spec: ConvSpec, axis: int) -> int:
    """Pairs of an output row (or column) and a kernel row (or column) that meet the image."""
    inputs, outputs = ((spec.height, spec.out_height), (spec.width, spec.out_width))[axis]
    stride, pairs = spec.stride[axis], 0
    for tap in range(spec.kernel[axis]):
        before = spec.padding[axis] - tap * spec.dilation[axis]  # how far output 0 lies outside
        first, end = max(0, -(-before // stride)), min(outputs, (inputs - 1 + before) // stride + 1)
        pairs += max(0, end - first)
    return pairs


def _winograd_ways(spec: ConvSpec, unit: VectorUnit) -> list[winograd.Winograd]:
    if winograd.is_line(spec):
        return winograd.ways(spec, unit)  # transformed once, not twice: errors are small
    ways = [way for way in winograd.ways(spec, unit) if way.m in WINOGRAD_KINDS]
    accurate = [way for way in ways if way.m != _LESS_ACCURATE_KIND]
    limit = _WORTH_ITS_ERRORS * min((way.work for way in accurate), default=0.0)
    return accurate + [way for way in ways if way.m == _LESS_ACCURATE_KIND and way.work < limit]


def winograd_candidate(way: winograd.Winograd, unit: VectorUnit) -> Candidate:
    """A candidate by Winograd's algorithm."""
    rows = row_kernel(way.spec, unit.width, "winograd", way.tile, way)
    return _candidate("winograd", winograd_kernel, way, unit, weight_transform=way.weight_transform, rows=rows)


def strassen_candidate(way: strassen.Strassen, unit: VectorUnit) -> Candidate:
    """A candidate by Strassen's algorithm."""
    return _candidate("strassen", strassen_kernel, way, unit, block_transform=HalvesTransform(way.levels))


def im2col_candidate(way: im2col.Im2col, unit: VectorUnit) -> Candidate:
    """A candidate that flattens the input."""
    return _candidate("im2col_gemm", im2col_kernel, way, unit)


def _candidate(
    family: str,
    emitter: ModuleType,
    way: integer.Integer | winograd.Winograd | strassen.Strassen | im2col.Im2col,
    unit: VectorUnit,
    **more: object,
) -> Candidate:
    """A candidate of fields that families have in common, and `more` of one family."""
    return Candidate(
        family,
        way.tile,
        way.panel,
        way.scratch_nbytes,
        way.work,
        lambda: emitter.kernel(way, unit.width),
        variant=str(way),
        scratch=way.scratch,
        **more,
    )


def recurrent_candidates(spec: RecurrentSpec, unit: VectorUnit) -> list[Candidate]:
    """Kernels for all steps of a recurrent layer, the best by prediction first."""
    return [recurrent_candidate(way, unit) for way in recurrent.candidates(spec, replace(unit, threads=1))]


def recurrent_candidate(way: recurrent.Recurrent, unit: VectorUnit) -> Candidate:
    """A candidate for a recurrent layer; its tile is that of the first phase."""
    first = way.phases[0]
    return Candidate(
        "recurrent",
        Tile(first.rows, len(first.gates) * first.units),
        None,
        4 * sum(map(math.prod, way.scratch)),
        way.work,
        lambda: recurrent_kernel.kernel(way, unit.width),
        variant=str(way).removeprefix("recurrent "),
        scratch=way.scratch,
        panels=tuple(phase.panel for phase in way.phases),
    )


def matmul_candidates(spec: MatmulSpec, unit: VectorUnit) -> list[Candidate]:
    """Kernels for a product of two activations, best first."""
    return [matmul_candidate(spec, choose(spec.m, spec.n, unit, row_nbytes=4 * spec.k), unit)]


def matmul_candidate(spec: MatmulSpec, tile: Tile, unit: VectorUnit) -> Candidate:
    """The product with a given register tile."""
    return Candidate("matmul", tile, None, 0, float(spec.flops), lambda: matmul.kernel(spec, tile, unit.width))
