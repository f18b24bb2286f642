"""Narrow weights that are widened into scratch, once for many register tiles.

Cores with short vectors (NEON) spend one to three instructions on widening what seven or so multiply-adds use; vectors of
256 bits and more are widened beside the multiply-adds (schedules/tiles/panel_reader.py) and gain nothing here.
"""

from .spec import ConvSpec

# Of weights that are widened at a time: they stay in the first-level cache while the tiles pass.
WIDENED_NBYTES = 16 * 1024
# Pixels that weights are widened for at least: with fewer it takes a noticeable share of the time.
_FEWEST_PIXELS = 32


def widens(spec: ConvSpec, by_lane: bool, pixels: int) -> bool:
    """Whether there are weights to widen, and pixels enough to widen them for."""
    return by_lane and spec.weights != "float32" and not spec.depthwise and pixels >= _FEWEST_PIXELS
