"""Which kernels can compute a layer: every family offers candidates, the caller chooses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx

from . import conv, depthwise, matmul
from .panel import Panel, panel_of
from .spec import ConvSpec, MatmulSpec
from .tile import Tile, VectorUnit, choose

# Pixels of a depthwise tile: a kernel row's taps of seven neighbours and their accumulators fill 32 registers.
_DEPTHWISE_ROWS = 7
_DEPTHWISE_VECTORS = 2
# What a depthwise tap costs next to a direct one, whose operands are reused: it loads a vector for every FMA.
_DEPTHWISE_SLOWDOWN = 1.3


@dataclass(frozen=True)
class Candidate:
    """One way to compute a layer."""

    family: str  # "direct", "depthwise", "gemv", "matmul"
    tile: Tile
    panel: Panel | None  # shape of the packed weights; None without weights
    scratch_nbytes: int
    work: float  # operations, weighted so that candidates of one layer compare: less is faster
    build: Callable[[], tirx.PrimFunc]

    def __str__(self) -> str:
        return f"{self.family} {self.tile}"


def candidates(spec: ConvSpec | MatmulSpec, unit: VectorUnit) -> list[Candidate]:
    """Every kernel that can compute a layer."""
    return conv_candidates(spec, unit) if isinstance(spec, ConvSpec) else matmul_candidates(spec, unit)


def conv_candidates(spec: ConvSpec, unit: VectorUnit) -> list[Candidate]:
    """Kernels for a convolution or fully connected layer, best first."""
    if spec.depthwise:
        channels = spec.out_channels
        block = min(_DEPTHWISE_VECTORS * unit.width, channels)
        tile = Tile(min(_DEPTHWISE_ROWS, spec.out_width), block)
        build, family, work = depthwise.kernel, "depthwise", spec.flops * _DEPTHWISE_SLOWDOWN
    else:
        pixels = spec.batch * spec.height * spec.width
        width = pixels if spec.pointwise else spec.out_width
        tile = choose(width, spec.group_out, unit, row_nbytes=4 * spec.in_channels * spec.stride[1])
        family = "gemv" if pixels == 1 else "direct"
        build, work = conv.kernel, float(spec.flops)
    return [
        Candidate(family, tile, panel_of(spec, tile.channels), 0, work, lambda: build(spec, tile, unit.width)),
    ]


def matmul_candidates(spec: MatmulSpec, unit: VectorUnit) -> list[Candidate]:
    """Kernels for a product of two activations, best first."""
    tile = choose(spec.m, spec.n, unit, row_nbytes=4 * spec.k)
    return [Candidate("matmul", tile, None, 0, float(spec.flops), lambda: matmul.kernel(spec, tile, unit.width))]
