"""Winograd convolutions against NumPy: random shapes, slices and epilogues, scratch, accuracy, a network."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import tvm

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import Tile, VectorUnit
from flexcomp.schedules.winograd.kernel import kernel as winograd_kernel
from flexcomp.schedules.winograd.transforms import KINDS
from flexcomp.schedules.winograd.ways import Winograd, kinds
from flexcomp.schedules.winograd.ways import ways as offers
from flexcomp.schedules.winograd.weights import WeightTransform
from tests.schedules.convolutions import EPILOGUES, RESIDUAL
from tests.schedules.kernels import library, require_no_memory
from tests.schedules.reference import conv2d, in_two_slices, pack

from .accuracy import ACCURACY, LINE, STEM

GUARD = 64  # floats before and after scratch


@pytest.fixture(autouse=True)
def without_tvms_cse():
    """TVM's elimination of common subexpressions takes most of the time on straight-line code; LLVM has its own."""
    with tvm.transform.PassContext(config={"tirx.disable_cse_tir": True}):
        yield


def random_way(rng: np.random.Generator, m: int) -> Winograd:
    pick = lambda *values: int(rng.choice(values))  # noqa: E731
    spec = ConvSpec(
        batch=pick(1, 1, 2), height=pick(1, 5, 8, 13, 19), width=pick(2, 5, 7, 14, 23),
        in_channels=pick(1, 3, 8, 12, 20, 256), out_channels=pick(1, 3, 8, 12, 20, 40), kernel=(3, 3),
        padding=tuple(pick(0, 1, 1, 2) for _ in range(4)), epilogue=list(EPILOGUES)[rng.integers(len(EPILOGUES))],
    )  # fmt: skip
    rows, channels = pick(1, 2, 3, 5), min(pick(3, 8, 12, 16), spec.out_channels)
    tile = Tile(rows, channels, depth=1 if rows < 3 else 4)
    return Winograd(spec, m, tile, groups=pick(1, 2, 3, 50), chunk=pick(1, 2, 3), slots=pick(1, 1, 2, 4))


def random_stem(rng: np.random.Generator) -> Winograd:
    """A 7×7 convolution of stride 2 over few channels."""
    pick = lambda *values: int(rng.choice(values))  # noqa: E731
    spec = ConvSpec(
        batch=pick(1, 2), height=pick(8, 14, 30), width=pick(8, 10, 22, 46), in_channels=pick(1, 2, 3, 4),
        out_channels=pick(8, 20), kernel=(7, 7), stride=(2, 2), padding=tuple(pick(0, 2, 3, 5) for _ in range(4)),
        epilogue=list(EPILOGUES)[rng.integers(len(EPILOGUES))],
    )  # fmt: skip
    return Winograd(spec, 4, Tile(pick(1, 3, 5), 8), groups=pick(1, 2, 50), chunk=pick(1, 2), slots=pick(1, 1, 2))


def random_line(rng: np.random.Generator) -> Winograd:
    """A kernel of one row or one column, with every size of tile that there is."""
    way = random_way(rng, 2)
    taps, column = int(rng.integers(3, 8)), int(rng.integers(2))
    reach = [int(rng.integers(taps)) for _ in range(2)]
    padding = (reach[0], 0, reach[1], 0) if column else (0, reach[0], 0, reach[1])
    spec = replace(way.spec, kernel=(taps, 1) if column else (1, taps), padding=padding)
    return replace(way, spec=spec, m=int(rng.choice(kinds(spec))))


def ways(m: int, count: int) -> list[Winograd]:
    rng = np.random.default_rng({STEM: 7, LINE: 8}.get(m, m))
    draw = {STEM: random_stem, LINE: random_line}.get(m, partial(random_way, m=m))
    drawn = (draw(rng) for _ in range(10 * count))
    return [way for way in drawn if way.spec.out_height > 0 and way.spec.out_width > 0][:count]


def operands(rng: np.random.Generator, spec: ConvSpec):
    draw = lambda *shape: rng.standard_normal(shape).astype("f4")  # noqa: E731
    x, bias, slope = draw(spec.batch, spec.height, spec.width, spec.in_channels), *draw(2, spec.out_channels)
    w = draw(spec.out_channels, *spec.kernel, spec.in_channels)
    return x, w, bias, slope, draw(spec.batch, spec.out_height, spec.out_width, spec.out_channels)


def packed_weights(way: Winograd, w, bias, slope) -> np.ndarray:
    return pack(way.panel, way.weight_transform.apply(w), bias, [slope] * way.spec.channel_vectors)


class Guarded:
    """Scratch full of NaN between guard values."""

    def __init__(self, way: Winograd) -> None:
        self.sizes = [int(np.prod(shape)) for shape in way.scratch]
        self.whole = [tvm.runtime.tensor(self._fresh(size)) for size in self.sizes]
        self.parts = [
            tvm.runtime.from_dlpack(np.from_dlpack(tensor)[GUARD:-GUARD].reshape(shape))
            for tensor, shape in zip(self.whole, way.scratch, strict=True)
        ]

    @staticmethod
    def _fresh(size: int) -> np.ndarray:
        array = np.full(size + 2 * GUARD, 77, "f4")
        array[GUARD:-GUARD] = np.nan
        return array

    def untouched_outside(self) -> bool:
        return all((t.numpy()[:GUARD] == 77).all() and (t.numpy()[-GUARD:] == 77).all() for t in self.whole)

    def used(self) -> bool:
        """Whether the last tile of the last slot was written."""
        return all(not np.isnan(part.numpy()[0, -1]).all() for part in self.parts)


@pytest.mark.parametrize("m", [*KINDS, STEM, LINE])
def test_random_shapes_and_slices(m):
    """Every slice of blocks writes its channels and nothing else; no pixel or weight outside is read; scratch is enough."""
    cases = ways(m, 8 if m in (2, 4, LINE) else 6 if m == STEM else 4)
    if m == STEM:  # these kernels are large: four have every size but 1 channel and 10 columns
        cases = [cases[i] for i in (0, 1, 3, 5)]
    compiled = library(
        {f"kernel_{i}": winograd_kernel(way, (8, 4)[i % 2 or way.tile.depth > 1]) for i, way in enumerate(cases)}
    )
    rng = np.random.default_rng(1)
    for i, way in enumerate(cases):
        spec, panel, message = way.spec, way.panel, f"{way.spec} {way}"
        x, w, bias, slope, tensor = operands(rng, spec)
        plain = conv2d(spec, x, w, bias)
        expected = EPILOGUES[spec.epilogue](plain, tensor, slope)
        packed = packed_weights(way, w, bias, slope)
        y = np.full(expected.shape, np.nan, "f4")
        result = tvm.runtime.tensor(y)
        cut = int(rng.integers(0, panel.blocks))
        for first, count, given in in_two_slices(packed, cut, np.nan):
            scratch = Guarded(way)
            tensors = [x, *[tensor] * spec.tensors, given]
            compiled[f"kernel_{i}"](*map(tvm.runtime.tensor, tensors), first, count, result, *scratch.parts)
            written = np.unique(panel.channels()[first : first + count])
            y[..., written] = expected[..., written]
            np.testing.assert_array_equal(np.isnan(result.numpy()), np.isnan(y), err_msg=message)
            assert scratch.untouched_outside(), message
            assert scratch.used(), message
        error = abs(result.numpy() - expected).max() / abs(plain).max()
        assert error < ACCURACY[m], f"{message}: {error}"


def test_no_memory_besides_the_operands():
    spec = ConvSpec(1, 14, 14, 64, 64, (3, 3), padding=(1, 1, 1, 1), epilogue=RESIDUAL)
    require_no_memory({
        f"kernel_{m}_{slots}": winograd_kernel(Winograd(spec, m, Tile(5, 16), 1, slots=slots), 8)
        for m, slots in ((4, 2), (6, 1))
    })  # fmt: skip


def test_tiles_that_wait_for_weights_are_half_as_wide_where_loads_are_spare():
    wide, half = VectorUnit(16, 32), VectorUnit(16, 32, spare_loads=True)
    few_rows, rows = (ConvSpec(1, n, n, c, c, (3, 3), padding=(1, 1, 1, 1)) for n, c in ((14, 256), (28, 128)))
    fastest = [min(offers(spec, unit), key=lambda way: way.work) for spec in (few_rows, rows) for unit in (wide, half)]
    assert [way.tile.channels for way in fastest] == [32, 16, 32, 32]
    assert fastest[0].waits and fastest[1].tile.rows == fastest[0].tile.rows < fastest[2].tile.rows
    assert all(way.tile.channels == 32 for way in offers(few_rows, wide))


def test_products_take_little_scratch_beside_the_transformed_input():
    for image, channels in ((56, 128), (28, 128), (14, 256)):
        spec = ConvSpec(1, image, image, channels, channels, (3, 3), padding=(1, 1, 1, 1))
        for way in offers(spec, VectorUnit(16, 32)):
            v, m = map(np.prod, way.scratch)
            assert m < 0.3 * v


def test_weight_transform_is_exact_for_one():
    """A kernel that is one at its centre has the transform's centre column squared."""
    w = np.zeros((1, 3, 3, 1), "f4")
    w[0, 1, 1, 0] = 1
    for m in KINDS:
        g = WeightTransform(m).matrix
        np.testing.assert_allclose(
            WeightTransform(m).apply(w)[0, :, 0], np.outer(g[:, 1], g[:, 1]).reshape(-1), rtol=1e-6
        )


def _residual_network(inputs, channels, *kernels):
    """Two convolutions, the second with a residual, on an odd image."""
    g = Graph("winograd", seed=3)
    x = g.relu(g.conv(g.input("x", (1, inputs, 29, 31)), channels, kernels[0]))
    return g.model(g.relu(g.op("Add", g.conv(x, channels, kernels[1]), x)), (1, channels, 29, 31))


@pytest.mark.parametrize("layers", [(16, 40, 3, 3), (64, 64, (1, 5), (7, 1))], ids=["squares", "lines"])
def test_a_network_computes_the_same_with_the_fastest_kernels(tmp_path, layers):
    """From ONNX to a session: weights are transformed at build time, scratch lies in the arena, slices compute all."""
    model = _residual_network(*layers)
    x = np.random.default_rng(0).standard_normal((1, layers[0], 29, 31)).astype("f4")
    reference = flexcomp.build(model, kernels="smallest")
    fastest = flexcomp.build(model, kernels="fastest")
    assert all(not layer.scratch_nbytes for layer in reference.program.layers)
    chosen = [layer for layer in fastest.program.layers if layer.implementation.startswith("winograd")]
    assert len(chosen) == 2 and all(layer.scratch_nbytes for layer in chosen)
    outputs = []
    for name, artifact in (("reference", reference), ("fastest", fastest)):
        library = tmp_path / f"{name}.so"
        artifact.export_library(library)
        for budget in (None, "min"):
            with flexcomp.load(library, budget) as session:
                outputs.append(session(x))
    for output in outputs[1:]:
        assert abs(output - outputs[0]).max() < 1e-4 * abs(outputs[0]).max()
