"""Fast matrix products against NumPy: random shapes, strides, slices and epilogues, scratch, accuracy."""

import numpy as np
import pytest
import tvm

import flexcomp
from benchmarks.graph import Graph
from flexcomp.schedules import strassen
from flexcomp.schedules.panel import Panel
from flexcomp.schedules.spec import ConvSpec
from flexcomp.schedules.strassen import HalvesTransform, Strassen
from flexcomp.schedules.strassen_kernel import kernel
from flexcomp.schedules.tile import Tile, VectorUnit

from .kernels import assert_no_workspace, library
from .reference import conv2d
from .test_conv import EPILOGUES, RESIDUAL

ACCURACY = {1: 5e-6, 2: 1e-5}  # of the largest output, by levels


def random_way(rng: np.random.Generator) -> Strassen:
    pick = lambda *values: int(rng.choice(values))  # noqa: E731
    half, levels = pick(4, 8, 16), pick(1, 2)
    spec = ConvSpec(
        batch=pick(1, 1, 2), height=pick(1, 3, 8, 13), width=pick(2, 5, 7, 14),
        in_channels=pick(4, 8, 20, 64, 256) if levels == 1 else pick(16, 32, 64, 80, 1024),
        out_channels=half * 2**levels + pick(0, 1, 5, 16, 40), stride=(pick(1, 1, 2), pick(1, 1, 2)),
        epilogue=list(EPILOGUES)[rng.integers(len(EPILOGUES))],
    )  # fmt: skip
    tile = Tile(pick(1, 2, 3, 5), half, depth=pick(1, 1, 4))
    groups = pick(1, 2, 50) if levels == 1 else 1
    return Strassen(spec, tile, groups, slots=pick(1, 1, 2, 3), levels=levels)


def packed(panel: Panel, levels: int, w: np.ndarray, bias: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Combined weights in panels, other rows NaN."""
    channels = panel.channels()
    result = np.full(panel.shape, np.nan, "f4")
    result[:, 0] = bias[channels]
    taps = HalvesTransform(levels).apply(w.reshape(len(w), -1)[channels])
    result[:, 1 : 1 + panel.taps] = taps.reshape(panel.blocks, panel.taps, panel.block)
    for vector in range(panel.vectors):
        result[:, 1 + panel.taps + vector] = slope[channels]
    return result


def run(function, way: Strassen, inputs: list[np.ndarray], y: np.ndarray, first: int, count: int) -> np.ndarray:
    """The output; scratch is full of NaN before."""
    result = tvm.runtime.tensor(y)
    scratch = [tvm.runtime.tensor(np.full(shape, np.nan, "f4")) for shape in way.scratch]
    function(*[tvm.runtime.tensor(np.ascontiguousarray(i)) for i in inputs], first, count, result, *scratch)
    return result.numpy()


def test_random_shapes_and_slices():
    """Every slice of blocks writes its channels and nothing else; no weight outside is read."""
    rng = np.random.default_rng(0)
    cases = [random_way(rng) for _ in range(24)]
    compiled = library({f"kernel_{i}": kernel(way, (8, 4)[i % 2 or way.tile.depth > 1]) for i, way in enumerate(cases)})
    for i, way in enumerate(cases):
        spec, panel, message = way.spec, way.panel, f"{way.spec} {way}"
        draw = lambda *shape: rng.standard_normal(shape).astype("f4")  # noqa: E731
        x, w = (
            draw(spec.batch, spec.height, spec.width, spec.in_channels),
            draw(spec.out_channels, 1, 1, spec.in_channels),
        )
        bias, slope = draw(2, spec.out_channels)
        tensor = draw(spec.batch, spec.out_height, spec.out_width, spec.out_channels)
        plain = conv2d(spec, x, w, bias)
        expected = EPILOGUES[spec.epilogue](plain, tensor, slope)
        weights = packed(panel, way.levels, w, bias, slope)
        y = np.full(expected.shape, np.nan, "f4")
        cut = int(rng.integers(0, panel.blocks))
        for first, count in ((cut, panel.blocks - cut), (0, cut)):
            if not count:
                continue
            given = np.full_like(weights, np.nan)
            given[:count] = weights[first : first + count]
            before = y.copy()
            y = run(compiled[f"kernel_{i}"], way, [x, *[tensor] * spec.tensors, given], y, first, count)
            written = np.unique(panel.channels()[first : first + count])
            before[..., written] = expected[..., written]
            np.testing.assert_array_equal(np.isnan(y), np.isnan(before), err_msg=message)
        error = abs(y - expected).max() / abs(plain).max()
        assert error < ACCURACY[way.levels], f"{message}: {error}"


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_offers_fill_the_threads(threads):
    """Bands are shared evenly, scratch is bounded, and small layers are left to the direct kernel."""
    unit = VectorUnit(16, 32, threads=threads)
    for size, channels, out in ((28, 512, 128), (14, 1024, 256), (14, 256, 1024), (7, 2048, 512)):
        for way in strassen.ways(ConvSpec(1, size, size, channels, out), unit):
            assert way.slots == threads
            assert 4 * np.prod(way.scratch[0][1:]) <= 1.5 * 400 * 1024
            assert way.bands * way.groups >= way.tiles
    assert not strassen.ways(ConvSpec(1, 56, 56, 64, 256), unit)
    assert not strassen.ways(ConvSpec(1, 14, 14, 256, 256, (3, 3)), unit)


@pytest.mark.parametrize(("size", "channels", "out"), [(14, 256, 1024), (14, 1024, 256), (28, 512, 128), (7, 2048, 512)])
def test_two_threads_get_the_same_number_of_tiles(size, channels, out):
    """The best way for 256 → 1024 at 14×14 pixels used to give one thread four tiles and the other three."""
    way = min(strassen.ways(ConvSpec(1, size, size, channels, out), VectorUnit(16, 32, threads=2)), key=lambda w: w.work)
    bands = [min(way.groups, way.tiles - start) for start in range(0, way.tiles, way.groups)]
    first = -(-len(bands) // 2)
    assert sum(bands[:first]) == sum(bands[first:])


def test_no_memory_besides_the_operands():
    spec = ConvSpec(1, 14, 14, 64, 64, epilogue=RESIDUAL)
    assert_no_workspace({"kernel": kernel(Strassen(spec, Tile(5, 16), 2, slots=2), 8)})


def test_a_network_computes_the_same_with_the_fastest_kernels(tmp_path):
    """Weights are combined at build time; a layer of every stride and half."""
    g = Graph("strassen", seed=5)
    x = g.relu(g.conv(g.input("x", (1, 128, 9, 15)), 144, 1, padding=0))
    model = g.model(g.relu(g.conv(x, 192, 1, stride=2, padding=0)), (1, 192, 5, 8))
    x = np.random.default_rng(0).standard_normal((1, 128, 9, 15)).astype("f4")
    outputs = {}
    for kernels in ("smallest", "fastest"):
        artifact = flexcomp.build(model, kernels=kernels)
        library = tmp_path / f"{kernels}.so"
        artifact.export_library(library)
        families = {layer.implementation.split()[0] for layer in artifact.program.layers}
        assert ("strassen" in families) == (kernels == "fastest")
        with flexcomp.load(library) as session:
            outputs[kernels] = session(x)
    assert abs(outputs["fastest"] - outputs["smallest"]).max() < 1e-5 * abs(outputs["smallest"]).max()
