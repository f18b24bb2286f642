"""Random convolutions for every family that computes them, and how their kernels are checked against NumPy."""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np
import tvm
from hypothesis import strategies as st

from flexcomp.schedules.im2col import ways as im2col
from flexcomp.schedules.im2col.family import candidate as im2col_candidate
from flexcomp.schedules.registry import Candidate, candidates
from flexcomp.schedules.strassen.family import candidate as strassen_candidate
from flexcomp.schedules.strassen.ways import Strassen
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import Tile, VectorUnit
from flexcomp.schedules.winograd import ways as winograd
from flexcomp.schedules.winograd.weights import WeightTransform

from .convolutions import EPILOGUES
from .reference import conv2d, in_two_slices, pack
from .shapes import Case, pick

UNITS = (VectorUnit(8, 16), VectorUnit(4, 32, by_lane=True))
ACCURACY = 1e-5  # of the largest sum, by F(6) 5e-5
GUARD = 64  # floats before and after scratch


@st.composite
def specs(draw: st.DrawFn, kind: str) -> ConvSpec:
    """Odd sizes, strides, groups, dilation, paddings of their own on every side, and all epilogues."""
    number = lambda *values: draw(pick(*values))  # noqa: E731
    epilogue = draw(st.sampled_from(list(EPILOGUES)))
    if kind == "dense":
        height, width, groups, square = 1, number(1, 2, 5, 17, 33), 1, (1, 1)
        inputs, outputs = number(3, 20, 64, 257, 700), number(1, 5, 10, 33, 64, 100)
        return ConvSpec(1, height, width, inputs, outputs, square, epilogue=epilogue)
    batch, height, width = number(1, 1, 2), number(5, 1, 8, 13), number(7, 2, 5, 14)
    padding = tuple(number(1, 0, 2, 3) for _ in range(4))
    if kind == "winograd":
        padding = tuple(min(p, 2) for p in padding)
        channels = number(16, 17, 24), number(16, 20, 33, 48)
        return ConvSpec(batch, height, width, *channels, (3, 3), padding=padding, epilogue=epilogue)
    if kind == "depthwise":
        groups = number(8, 1, 3, 20, 33)
        inputs = outputs = groups
    else:
        groups = number(1, 1, 2, 3)
        inputs, outputs = groups * number(3, 1, 2, 5, 16, 24), groups * number(8, 1, 3, 12, 20, 40)
    if draw(pick(0, 0, 0, 1)):  # else there would hardly be one without neighbours
        return ConvSpec(batch, height, width, inputs, outputs, (1, 1), groups=groups, epilogue=epilogue)
    return ConvSpec(
        batch, height, width, inputs, outputs, kernel=(number(3, 1, 2, 5), number(3, 1, 4, 5)),
        stride=(number(1, 1, 2), number(1, 2, 3)), padding=padding, dilation=(number(1, 1, 2), number(1, 1, 2)),
        groups=groups, epilogue=epilogue,
    )  # fmt: skip


@st.composite
def strassen_ways(draw: st.DrawFn, unit: VectorUnit) -> Strassen:
    """Products on one level or two, with any tile: pixels that do not fill the last one, blocks that overlap."""
    number = lambda *values: draw(pick(*values))  # noqa: E731
    levels, channels = number(1, 2), unit.width * number(1, 2)
    spec = ConvSpec(
        batch=number(1, 1, 2), height=number(8, 1, 3, 13), width=number(7, 2, 5, 14),
        in_channels=number(20, 4, 8, 64, 256) if levels == 1 else number(80, 16, 32, 64),
        out_channels=channels * 2**levels + number(0, 1, 5, 16, 40), stride=(number(1, 1, 2), number(1, 1, 2)),
        epilogue=draw(st.sampled_from(list(EPILOGUES))),
    )  # fmt: skip
    tile = Tile(number(3, 1, 2, 5), channels, depth=unit.width if unit.by_lane else 1)
    return Strassen(spec, tile, number(2, 1, 50) if levels == 1 else 1, number(1, 1, 2, 3), levels)


@st.composite
def cases(draw: st.DrawFn, kind: str) -> Case:
    """A kernel of a family for a random layer, in a random number of slices or tiles where there is a choice."""
    unit, slices = draw(st.sampled_from(UNITS)), draw(st.integers(0, 1000))
    if kind == "strassen":
        way = draw(strassen_ways(unit))
        return _case(way.spec, unit, strassen_candidate(way, unit), slices)
    spec = draw(specs(kind).filter(lambda spec: spec.out_height > 0 and spec.out_width > 0))
    if kind == "winograd":
        ways = winograd.ways(spec, unit)
        way = draw(st.sampled_from(ways)) if ways else None
        candidate = next((c for c in candidates(spec, unit) if way and c.variant == str(way)), None)
    elif kind == "im2col_gemm":
        candidate = None
        if im2col.eligible(spec):
            way = im2col.in_slices(spec, unit, draw(pick(3, 1, 2, 5, 11)))
            candidate = im2col_candidate(replace(way, stretch=draw(pick(way.stretch, 1, 7, 40))), unit)
    else:
        candidate = candidates(spec, unit)[0]
    if candidate is None:
        candidate = candidates(spec, unit)[0]
    return _case(spec, unit, candidate, slices)


def _case(spec: ConvSpec, unit: VectorUnit, candidate: Candidate, slices: int) -> Case:
    name = f"{spec!r} {unit.width} {candidate}"
    return Case(name, candidate.build, lambda function: check(spec, candidate, function, slices))


def check(spec: ConvSpec, candidate: Candidate, function, cut: int) -> None:
    """Compute the blocks behind a cut, then those before it. Each step writes its channels and nothing else, and reads
    no weights outside itself; scratch is enough, and needs no values from before."""
    rng = np.random.default_rng(zlib.crc32(f"{spec} {candidate}".encode()))
    draw = lambda *shape: rng.standard_normal(shape).astype("f4")  # noqa: E731
    x, w = draw(spec.batch, spec.height, spec.width, spec.in_channels), draw(spec.out_channels, *spec.kernel, spec.group_in)
    bias, slope = draw(spec.out_channels), draw(spec.out_channels)
    tensor = draw(spec.batch, spec.out_height, spec.out_width, spec.out_channels)
    plain = conv2d(spec, x, w, bias)
    expected, panel = EPILOGUES[spec.epilogue](plain, tensor, slope), candidate.panel
    transform = candidate.transform
    packed = pack(panel, w, bias, [slope] * spec.channel_vectors, transform)
    y, result = np.full(expected.shape, np.nan, "f4"), tvm.runtime.tensor(np.full(expected.shape, np.nan, "f4"))
    cut %= panel.blocks
    for first, count, given in in_two_slices(packed, cut, np.nan):
        scratch = [Guarded(shape) for shape in candidate.scratch]
        operands = map(tvm.runtime.tensor, [x, *[tensor] * spec.tensors, given])
        function(*operands, first, count, result, *(one.inside for one in scratch))
        written = written_channels(candidate, first, count)
        y[..., written] = expected[..., written]
        np.testing.assert_array_equal(np.isnan(result.numpy()), np.isnan(y))
        assert all(one.is_untouched_outside() for one in scratch), "scratch is too small"
    accuracy = 5 * ACCURACY if isinstance(transform, WeightTransform) and transform.m == 6 else ACCURACY
    error = abs(result.numpy() - expected).max() / max(1.0, abs(plain).max())
    assert error < accuracy, f"error {error:.1e}"


def written_channels(candidate: Candidate, first: int, count: int) -> np.ndarray:
    """Channels that a step writes. What im2col's blocks share belongs to the earlier one."""
    channels = candidate.panel.channels()
    written = set(channels[first : first + count].reshape(-1))
    if candidate.family == "im2col_gemm" and first % candidate.panel.blocks_per_group:
        written -= set(channels[first - 1])
    return np.array(sorted(written))


class Guarded:
    """A scratch buffer full of NaN between guard values."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        array = np.full(int(np.prod(shape)) + 2 * GUARD, 77, "f4")
        array[GUARD:-GUARD] = np.nan
        self.whole = tvm.runtime.tensor(array)
        self.inside = tvm.runtime.from_dlpack(np.from_dlpack(self.whole)[GUARD:-GUARD].reshape(shape))

    def is_untouched_outside(self) -> bool:
        array = self.whole.numpy()
        return bool((array[:GUARD] == 77).all() and (array[-GUARD:] == 77).all())

    def written_rooms(self) -> list[bool]:
        """By the first axis, whether anything was written there."""
        bits = self.inside.numpy().view("u4")
        return [bool(room.any()) for room in bits != np.float32(np.nan).view("u4")]
