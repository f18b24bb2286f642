"""Narrow weights that are widened once for many register tiles: into scratch, or onto the stack where there are few.

Cores with short vectors (NEON) spend one to three instructions on widening the operand of seven or so multiply-adds; vectors of
256 bits and more are widened in parallel with these (schedules/tiles/panel_reader.py) and gain nothing here. Weights in blocks
take several instructions on any core.
"""

from .blocks import blocks_of
from .spec import ConvSpec

# Of weights that are widened at a time: these stay in the first-level cache while the tiles pass.
WIDENED_NBYTES = 16 * 1024
# Pixels that weights are widened for at least: with fewer, widening takes a noticeable share of the time.
_FEWEST_PIXELS = 32
_SHORT_VECTORS = 4  # lanes
_STACK_NBYTES = 1024  # from which on TVM asks the runtime for memory, one buffer at a time


def widens(spec: ConvSpec, by_lane: bool, pixels: int) -> bool:
    """Whether there are weights to widen, and pixels enough to widen them for."""
    gains = by_lane or blocks_of(spec.weights) is not None
    return gains and spec.widens and not spec.depthwise and pixels >= _FEWEST_PIXELS


def widens_on_stack(spec: ConvSpec, vector_width: int) -> bool:
    """Whether a channel has few weights, and vectors are short."""
    return spec.widens and vector_width <= _SHORT_VECTORS and 4 * vector_width * spec.taps < _STACK_NBYTES
