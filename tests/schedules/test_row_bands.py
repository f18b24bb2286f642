"""Bands of rows: the rows they need, and that together they compute what the whole layer computes, most to the last bit."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexcomp.schedules.machines import decoded_rows
from flexcomp.schedules.machines import rows as rows_of
from flexcomp.schedules.operators.concat import ConcatSpec
from flexcomp.schedules.operators.pool import PoolSpec
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.row_bands import RowKernel, Rows
from flexcomp.schedules.tiles.spec import ConvSpec, MatmulSpec
from flexcomp.schedules.tiles.tile import Tile, VectorUnit
from flexcomp.schedules.winograd.family import candidate as winograd_candidate
from flexcomp.schedules.winograd.ways import Winograd

from .kernels import call, library
from .reference import conv2d, pack

UNIT = VectorUnit(8, 16)
RESIDUAL = ("relu", ("add", ("acc",), ("tensor", 0)))
CONVOLUTIONS = (
    ConvSpec(1, 23, 17, 12, 24, kernel=(3, 3), padding=(1, 1, 1, 1), epilogue=("relu6", ("acc",))),
    ConvSpec(1, 24, 9, 3, 20, kernel=(7, 7), stride=(2, 2), padding=(3, 3, 3, 3)),
    ConvSpec(1, 14, 14, 32, 16, epilogue=RESIDUAL),
    ConvSpec(1, 15, 8, 16, 16, kernel=(1, 1), stride=(2, 2)),
    ConvSpec(1, 21, 6, 8, 8, kernel=(3, 2), padding=(2, 0, 1, 1), dilation=(2, 1)),
    ConvSpec(1, 20, 11, 40, 40, kernel=(3, 3), stride=(2, 2), padding=(1, 1, 1, 1), groups=40),
    ConvSpec(1, 9, 5, 600, 8, kernel=(3, 3), padding=(1, 1, 1, 1)),
    ConvSpec(1, 13, 6, 16, 16, kernel=(3, 3), padding=(1, 1, 1, 1), groups=4),
    ConvSpec(1, 13, 6, 16, 16, kernel=(3, 3), padding=(1, 1, 1, 1), groups=4, weights="int8"),
    ConvSpec(1, 23, 17, 12, 24, kernel=(3, 3), padding=(1, 1, 1, 1), weights="float16"),
    ConvSpec(1, 20, 11, 40, 40, kernel=(3, 3), stride=(2, 2), padding=(1, 1, 1, 1), groups=40, weights="bfloat16"),
)
POOLS = (
    PoolSpec(1, 21, 9, 16, 3, 3, (2, 2), (1, 1, 1, 1), (1, 1), "max", False, 11, 5),
    PoolSpec(1, 12, 8, 20, 3, 3, (2, 2), (0, 0, 0, 0), (1, 1), "max", False, 6, 4),  # rounded up
    PoolSpec(1, 13, 8, 12, 2, 2, (1, 1), (1, 0, 0, 1), (1, 1), "avg", True, 13, 8),
    PoolSpec(1, 13, 8, 12, 3, 3, (1, 1), (1, 1, 1, 1), (1, 1), "avg", False, 13, 8),
)


def of_convolution(spec: ConvSpec) -> tuple[RowKernel, object]:
    candidate = candidates(spec, UNIT)[0]
    return candidate.rows, candidate.panel


def bands(kernel: RowKernel, count: int) -> list[Rows]:
    edges = [kernel.out_rows * i // count for i in range(count + 1)]
    return [Rows(a, b) for a, b in itertools.pairwise(edges) if a < b]


@pytest.mark.parametrize("count", [3, 5])
def test_convolutions_in_bands(count):
    """In three, every layer; in five, which may have fewer rows than a window, those with windows of several rows."""
    rng = np.random.default_rng(count)
    functions, cases = {}, []
    for i, spec in enumerate(spec for spec in CONVOLUTIONS if count == 3 or spec.kernel[0] > 1):
        kernel, panel = of_convolution(spec)
        parts = bands(kernel, count)
        functions[f"whole_{i}"] = kernel.build()
        functions |= {f"band_{i}_{rows.start}": kernel.band(rows).build() for rows in parts}
        cases.append((i, spec, kernel, panel, parts))
    compiled = library(functions)
    for i, spec, kernel, panel, parts in cases:
        x = rng.standard_normal((1, spec.height, spec.width, spec.in_channels)).astype("f4")
        out = (1, spec.out_height, spec.out_width, spec.out_channels)
        tensors = [rng.standard_normal(out).astype("f4") for _ in range(spec.tensors)]
        w = rng.standard_normal((spec.out_channels, *spec.kernel, spec.group_in)).astype("f4")
        packed = pack(panel, w, rng.standard_normal(spec.out_channels).astype("f4"))
        whole = _convolve(compiled[f"whole_{i}"], x, tensors, packed, out)
        for rows in parts:
            given_rows = kernel.needed(rows, 0)
            band = _convolve(
                compiled[f"band_{i}_{rows.start}"],
                x[:, given_rows.start : given_rows.stop],
                [tensor[:, rows.start : rows.stop] for tensor in tensors],
                packed,
                (1, rows.count, *out[2:]),
            )
            np.testing.assert_array_equal(band, whole[:, rows.start : rows.stop], str(spec))


def _convolve(function, x, tensors, packed, out, scratch=()):
    import tvm

    result = tvm.runtime.tensor(np.full(out, np.nan, "f4"))
    operands = [tvm.runtime.tensor(np.ascontiguousarray(array)) for array in (x, *tensors, packed)]
    function(*operands, 0, packed.shape[0], result, *map(tvm.runtime.tensor, scratch))
    return result.numpy()


def test_winograd_in_bands_differs_from_the_whole_by_rounding():
    rng = np.random.default_rng(4)
    functions, cases = {}, []
    squares = (
        ConvSpec(1, 23, 17, 12, 24, kernel=(3, 3), padding=(1, 1, 1, 1), epilogue=RESIDUAL),
        ConvSpec(1, 14, 9, 8, 8, kernel=(3, 3), padding=(2, 0, 0, 1)),
    )
    column = ConvSpec(1, 23, 9, 12, 24, kernel=(7, 1), padding=(3, 0, 3, 0), epilogue=RESIDUAL)
    row = ConvSpec(1, 14, 17, 8, 8, kernel=(1, 5), padding=(0, 2, 0, 2))
    layers = [*itertools.product(squares, (2, 4)), (column, 2), (row, 3)]
    for i, (spec, m) in enumerate(layers):
        slots = 1 + (i in (1, 2, 5))  # each size of tiles and each layer with one and several
        way = Winograd(spec, m, Tile(3, 8), groups=3, slots=slots, threads=slots)
        kernel = winograd_candidate(way, UNIT).rows
        assert kernel.way.panel == way.panel and decoded_rows(kernel.encode()) == kernel
        parts = bands(kernel, 3)
        functions |= {f"band_{i}_{rows.start}": kernel.band(rows).build() for rows in parts}
        cases.append((i, spec, kernel, parts))
    compiled = library(functions)
    for i, spec, kernel, parts in cases:
        x = rng.standard_normal((1, spec.height, spec.width, spec.in_channels)).astype("f4")
        w = rng.standard_normal((spec.out_channels, *spec.kernel, spec.group_in)).astype("f4")
        bias = rng.standard_normal(spec.out_channels).astype("f4")
        tensors = [rng.standard_normal(spec.out_shape).astype("f4") for _ in range(spec.tensors)]
        packed = pack(kernel.way.panel, kernel.way.weight_transform.apply(w), bias)
        expected = conv2d(spec, x, w, bias)
        expected = np.maximum(expected + tensors[0], 0) if tensors else expected
        for rows in parts:
            band, needed = kernel.band(rows), kernel.needed(rows, 0)
            assert band.way.panel == kernel.way.panel and band.way.tile_blocks >= band.way.slots
            scratch = [np.full(shape, np.nan, "f4") for shape in band.scratch]
            inputs = [x[:, needed.start : needed.stop], *(tensor[:, rows.start : rows.stop] for tensor in tensors), packed]
            out = (1, rows.count, *spec.out_shape[2:])
            found = _convolve(compiled[f"band_{i}_{rows.start}"], inputs[0], inputs[1:-1], packed, out, scratch)
            error = abs(found - expected[:, rows.start : rows.stop]).max()
            assert error < 1e-5 * abs(expected).max(), f"{spec} {band.way} {rows}"


@pytest.mark.parametrize("count", [2, 4])
def test_pools_and_joins_in_bands(count):
    rng = np.random.default_rng(count)
    specs = (*POOLS, ConcatSpec(((1, 9, 4, 8), (1, 9, 4, 12), (1, 9, 4, 3)), 3))
    kernels = [rows_of(spec, UNIT) for spec in specs]
    functions = {f"whole_{i}": kernel.build() for i, kernel in enumerate(kernels)}
    for i, kernel in enumerate(kernels):
        functions |= {f"band_{i}_{rows.start}": kernel.band(rows).build() for rows in bands(kernel, count)}
    compiled = library(functions)
    for i, (spec, kernel) in enumerate(zip(specs, kernels, strict=True)):
        is_pool = isinstance(spec, PoolSpec)
        shapes = [(1, spec.h, spec.w, spec.c)] if is_pool else spec.shapes
        out = (1, spec.out_h, spec.out_w, spec.c) if is_pool else spec.out_shape
        inputs = [rng.standard_normal(shape).astype("f4") for shape in shapes]
        whole = call(compiled[f"whole_{i}"], *inputs, out=out)
        for rows in bands(kernel, count):
            needed = [kernel.needed(rows, operand) for operand in range(len(inputs))]
            parts = [x[:, n.start : n.stop] for x, n in zip(inputs, needed, strict=True)]
            band = call(compiled[f"band_{i}_{rows.start}"], *parts, out=(1, rows.count, *out[2:]))
            np.testing.assert_array_equal(band, whole[:, rows.start : rows.stop], str(spec))


@given(st.data())
def test_bands_need_the_rows_under_their_windows(data):
    number = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    spec = ConvSpec(
        1, number(4, 40), 8, 16, 16, kernel=(number(1, 7), 1), stride=(number(1, 3), 1),
        padding=(number(0, 3), 0, number(0, 3), 0), dilation=(number(1, 2), 1),
    )  # fmt: skip
    if spec.out_height < 2:
        return
    kernel, _ = of_convolution(spec)
    start = number(0, spec.out_height - 1)
    rows = Rows(start, number(start + 1, spec.out_height))
    taps = {
        row * spec.stride[0] - spec.padding[0] + tap * spec.dilation[0]
        for row in range(rows.start, rows.stop)
        for tap in range(spec.kernel[0])
    }
    inside = [row for row in taps if 0 <= row < spec.height]
    needed = kernel.needed(rows, 0)
    if not inside:
        assert needed.count <= 0 or spec.dilation[0] > 1
        return
    assert needed.start <= min(inside) and max(inside) < needed.stop
    assert kernel.band(rows).out_rows == rows.count
    assert kernel.band(Rows(0, spec.out_height)).spec.padding[0] == spec.padding[0]


def test_kernels_travel_as_text():
    for spec in (*CONVOLUTIONS, *POOLS):
        kernel = of_convolution(spec)[0] if isinstance(spec, ConvSpec) else rows_of(spec, UNIT)
        assert decoded_rows(kernel.encode()) == kernel


def test_what_has_no_bands():
    spec = CONVOLUTIONS[0]
    assert of_convolution(replace(spec, batch=2))[0] is None
    assert {one.family for one in candidates(spec, UNIT) if one.rows is None} == {"im2col_gemm"}
    assert of_convolution(ConvSpec(1, 1, 40, 8, 8))[0] is None, "one row"
    assert rows_of(PoolSpec.global_average(1, 7, 7, 8), UNIT) is None
    assert rows_of(ConcatSpec(((1, 9, 4, 8), (1, 9, 4, 8)), 1), UNIT) is None, "joined along the rows"
    assert rows_of(MatmulSpec(1, 9, 9, 9), UNIT) is None
