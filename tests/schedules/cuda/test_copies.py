"""What GPUs copy by many threads: concatenations, rows of tables and of caches, as NumPy has them."""

import numpy as np
import pytest

from flexcomp.compiler.cuda_code import cuda_code
from flexcomp.schedules.cuda import ARCHITECTURES, copies, embedding
from flexcomp.schedules.operators.concat import ConcatSpec, copy_of
from flexcomp.schedules.operators.embedding import EmbeddingSpec, Interleaved
from flexcomp.schedules.operators.scatter_rows import ScatterSpec
from flexcomp.schedules.tiles.narrow_panel import pack, rounded
from flexcomp.schedules.tiles.panel import SCALED_BFLOAT16, Panel
from tests.cuda.on_cpu.emulator import Emulator

ORIN = ARCHITECTURES["sm_87"]
CONCATS = {
    "vectors": ConcatSpec(((2, 3, 8), (2, 5, 8)), 1),
    "pairs": ConcatSpec(((700, 6), (700, 2), (700, 4)), 1),
    "words": ConcatSpec(((3, 5), (3, 2)), 1),
    "bytes": ConcatSpec(((3, 5), (3, 2)), 1, "int8"),
    "numbers": ConcatSpec(((4, 3), (1, 3)), 0, "int64"),
    "placed": ConcatSpec(((2, 4), (2, 8), (2, 4)), 1, placed=(1,)),
    "nothing": ConcatSpec(((2, 4), (2, 0)), 1),
    "copy": copy_of((3, 5, 7), "bool"),
    "scalar": copy_of((), "float32"),
}
CACHES = {
    "linear": ScatterSpec(2, 3, 8, 2, 8, "float32"),
    "circular": ScatterSpec(3, 2, 7, 3, 5, "float32", circular=True),
    "narrow": ScatterSpec(2, 1, 6, 6, 3, "float16"),
}
TABLES = {
    "wide": EmbeddingSpec((3, 2), "int64", 3000, 300),
    "odd": EmbeddingSpec((7,), "int32", 50, 33),
    "float16": EmbeddingSpec((5,), "int64", 900, 201, "float16"),
    "bfloat16": EmbeddingSpec((5,), "int64", 90, 64, "bfloat16"),
}
INTERLEAVED = {kept: Panel(1, 70, 32, 21, 1, kept) for kept in ("float32", "bfloat16", "int8")}


def shapes_of(spec: ScatterSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (spec.batch, spec.outer, spec.past, spec.inner), (spec.batch, spec.outer, spec.rows, spec.inner)


@pytest.fixture(scope="module")
def emulator(tmp_path_factory):
    functions = {name: copies.concat(spec) for name, spec in CONCATS.items()}
    functions |= {name: copies.scatter_rows(spec, shapes_of(spec)) for name, spec in CACHES.items()}
    functions |= {f"{name}_exchanged": copies.exchange_rows(spec, shapes_of(spec)) for name, spec in CACHES.items()}
    functions |= {name: embedding.kernel(spec) for name, spec in TABLES.items()}
    codes = {name: cuda_code(function, ORIN, name) for name, function in functions.items()}
    assert all(launch.threads[0] >= 32 for code in codes.values() for launch in code.launches)
    return Emulator(codes, tmp_path_factory.mktemp("copies"))


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    return rng.integers(0, 100, shape).astype("int8" if dtype == "bool" else dtype)


@pytest.mark.parametrize("name", CONCATS)
def test_parts_come_to_their_places(emulator, name):
    spec, rng = CONCATS[name], np.random.default_rng(0)
    parts = [numbers(rng, shape, spec.dtype) for shape in spec.shapes]
    target = np.concatenate(parts, spec.axis)
    for i in spec.copied:
        where = [slice(None)] * target.ndim
        start = sum(shape[spec.axis] for shape in spec.shapes[:i])
        where[spec.axis] = slice(start, start + spec.shapes[i][spec.axis])
        target[tuple(where)] = -1
    found = emulator.run(name, [*(parts[i] for i in spec.copied), target], seed=1)[-1]
    np.testing.assert_array_equal(found, np.concatenate(parts, spec.axis))


@pytest.mark.parametrize("name", CACHES)
def test_rows_are_written_and_exchanged(emulator, name):
    spec, rng = CACHES[name], np.random.default_rng(0)
    past, update = (numbers(rng, shape, spec.dtype) for shape in shapes_of(spec))
    for start in (0, 1, spec.past - spec.rows, spec.past - 1, *([10**12] if spec.circular else [-5, 10**12])):
        at = np.full(spec.batch, start)
        first = start % spec.past if spec.circular else min(max(start, 0), spec.past - spec.rows)
        rows = (first + np.arange(spec.rows)) % spec.past
        wanted, before = past.copy(), past[:, :, rows]
        wanted[:, :, rows] = update
        *_, found = emulator.run(name, [past, update, at, np.zeros_like(past)], seed=1)
        np.testing.assert_array_equal(found, wanted)
        cache, given, _ = emulator.run(f"{name}_exchanged", [past, update, at], seed=1)
        np.testing.assert_array_equal(cache, wanted)
        np.testing.assert_array_equal(given, before)


@pytest.mark.parametrize("name", TABLES)
def test_rows_of_a_table_are_found_in_any_of_its_slices(emulator, name):
    spec, rng = TABLES[name], np.random.default_rng(0)
    values = rng.standard_normal((spec.blocks * spec.block_rows, spec.width)).astype("f4")
    bits = (values.view("u4") >> 16).astype("u2")
    table = {"float32": values, "float16": values.astype("f2"), "bfloat16": bits}[spec.kept]
    right = (bits.astype("u4") << 16).view("f4") if spec.kept == "bfloat16" else table.astype("f4")
    ids = rng.integers(0, spec.rows, spec.ids).astype(spec.ids_dtype)
    ids.flat[:2] = -3, spec.rows + 7
    y = np.full((*spec.ids, spec.width), np.nan, "f4")
    for block in range(spec.blocks):
        panel = table.reshape(spec.panel)[block : block + 1]
        *_, y = emulator.run(name, [ids, panel, block, 1, y], seed=1)
    np.testing.assert_array_equal(y, right[np.clip(ids, 0, spec.rows - 1)])


@pytest.mark.parametrize("kept", INTERLEAVED)
def test_rows_that_are_channels_of_a_panel(tmp_path, kept):
    panel, rng = INTERLEAVED[kept], np.random.default_rng(0)
    spec = EmbeddingSpec((9,), "int64", 70, 21, kept, Interleaved.of(panel))
    weight = rng.standard_normal((70, 21)).astype("f4")
    head, taps = np.zeros((panel.blocks, 2, 32), "f4"), weight[panel.channels()].swapaxes(1, 2)
    data = np.concatenate([head[:, :1], taps, head[:, :1]], axis=1) if kept == "float32" else pack(head, taps, kept, panel.rows)
    data = np.concatenate([data, np.zeros((panel.blocks, panel.rows - data.shape[1], 32), data.dtype)], axis=1)
    ids, y = rng.integers(0, 70, 9), np.full((9, 21), np.nan, "f4")
    ids[:3] = 69, 38, 0
    emulator = Emulator({"rows": cuda_code(embedding.kernel(spec), ORIN, "rows")}, tmp_path)
    for block in range(spec.blocks):
        given = data[block : block + 1]
        *_, y = emulator.run("rows", [ids, given.view("u2") if kept == "bfloat16" else given, block, 1, y])
    np.testing.assert_array_equal(y, (weight if kept == "float32" else rounded(weight, kept))[ids])


@pytest.mark.parametrize("kept", ["int8", SCALED_BFLOAT16])
def test_rows_that_begin_with_their_scale(tmp_path, kept):
    spec, rng = EmbeddingSpec((9,), "int64", 40, 21, kept), np.random.default_rng(0)
    scales = rng.random(spec.panel[0] * spec.panel[1]).astype("f4") + 0.5
    whole = rng.integers(-100, 100, (len(scales), spec.width))
    if kept == "int8":
        table = np.hstack([scales[:, None].view("i1"), whole.astype("i1")])
    else:
        table = np.hstack([scales[:, None].view("u2"), (whole.astype("f4").view("u4") >> 16).astype("u2")])
    ids = rng.integers(0, spec.rows, 9)
    emulator = Emulator({"rows": cuda_code(embedding.kernel(spec), ORIN, "rows")}, tmp_path)
    *_, y = emulator.run("rows", [ids, np.ascontiguousarray(table).reshape(spec.panel), 0, spec.blocks, np.zeros((9, 21), "f4")])
    np.testing.assert_array_equal(y, (scales[:, None] * whole.astype("f4"))[ids])
