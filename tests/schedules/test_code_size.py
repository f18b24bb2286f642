"""Code of a kernel does not grow with what it computes: the length of its window, the size of its image."""

import pytest

from flexcomp.compiler.machine_code import extent
from flexcomp.schedules.operators import pool
from flexcomp.schedules.operators.pool import PoolSpec
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit

# Statements: LLVM takes a second or two for as many, and longer than in proportion for more.
MOST = 3200

UNITS = {
    "avx512": VectorUnit(16, 32, spare_loads=True, dots="vpdpbusd"),
    "avx2": VectorUnit(8, 16),
    "neon": VectorUnit(4, 32, by_lane=True, dots="sdot"),
}
# Input channels, output channels, groups, and what weights are kept as: a layer of each family, and few and many channels.
CHANNELS = [
    (1, 16, 1, "float32"), (3, 64, 1, "float32"), (64, 64, 1, "float32"), (1024, 64, 1, "float32"), (192, 192, 4, "float32"),
    (64, 64, 64, "float32"), (64, 64, 16, "float32"), (3, 64, 1, "int8"), (64, 64, 1, "int8"),
]  # fmt: skip
STEPS = [(1, 1), (2, 1), (3, 2)]  # stride and dilation
WINDOWS = [(1, 31), (1, 128), (128, 1)]


@pytest.mark.parametrize("kernel", WINDOWS, ids=lambda taps: f"{taps[0]}x{taps[1]}")
@pytest.mark.parametrize("name", UNITS)
def test_convolutions_with_long_kernels(name, kernel):
    """All kernels of all families, with "same" pads, strides and dilations."""
    families = set()
    for number, (channels, outputs, groups, kept) in enumerate(CHANNELS):
        for stride, dilation in sorted({(1, 1), STEPS[number % len(STEPS)]}):
            extents = [1 if taps == 1 else 300 for taps in kernel]
            pads = [taps // 2 * dilation for taps in kernel] * 2
            spec = ConvSpec(
                1, *extents, channels, outputs, kernel, (stride,) * 2, tuple(pads), (dilation,) * 2, groups,
                weights=kept, integers=kept == "int8" and channels == 64,
            )  # fmt: skip
            by_family = {candidate.family + candidate.variant[:7]: candidate for candidate in candidates(spec, UNITS[name])}
            for family, candidate in by_family.items():
                families.add(candidate.family)
                assert extent(candidate.build()) <= MOST, f"{family} {spec} {candidate}"
    assert {"direct", "depthwise", "im2col_gemm"} <= families


@pytest.mark.parametrize("window", WINDOWS, ids=lambda taps: f"{taps[0]}x{taps[1]}")
def test_pooling_with_long_windows(window):
    pads = (window[0] // 2, window[1] // 2) * 2
    for kind in pool.KINDS:
        spec = PoolSpec(1, 300, 300, 100, *window, (1, 1), pads, (1, 1), kind, True, 300, 300)
        assert extent(pool.kernel(spec, 16)) <= MOST
