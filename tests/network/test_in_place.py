"""Residual sums are written over the operand that ends with them, where no one can tell."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp.network.in_place import lives_of_places, shared_places
from flexcomp.program.program import Layer, TensorType, Value, ValueArg

ROW = TensorType((16,))


def layer(kernel: str, reads: tuple[int, ...], writes: int) -> Layer:
    """The second operand of an "add" may be written over."""
    read = (ValueArg(value, ROW, over=kernel == "add" and i == 1) for i, value in enumerate(reads))
    args = (*read, ValueArg(writes, ROW, written=True))
    return Layer(kernel, kernel, kernel, "", "", args, None, 0, 0)


def places(layers: list[Layer], lives: dict[int, tuple[int, int]], kept: tuple[int, ...] = ()) -> dict[int, int]:
    values = [Value(f"v{i}", 64) for i in range(8)]
    return shared_places(values, layers, lives, kept)


def test_a_chain_of_blocks_has_one_place() -> None:
    layers = [layer("conv", (0,), 1), layer("add", (1, 0), 2), layer("conv", (2,), 3), layer("add", (3, 2), 4)]
    lives = {0: (0, 2), 1: (0, 2), 2: (1, 4), 3: (2, 4), 4: (3, 4)}
    place = places(layers, lives, kept=(4,))
    assert place == {0: 0, 1: 1, 2: 0, 3: 3, 4: 0}
    assert lives_of_places(lives, place) == {0: (0, 4), 1: (0, 2), 3: (2, 4)}


def test_what_is_needed_again_or_read_otherwise_is_not_written_over() -> None:
    sums = [layer("add", (1, 0), 2), layer("conv", (0,), 3)]
    assert places(sums, {0: (0, 2), 1: (0, 1), 2: (0, 2), 3: (1, 2)})[2] == 2  # read again
    last = [layer("add", (1, 0), 2)]
    assert places(last, {0: (0, 1), 1: (0, 1), 2: (0, 1)}, kept=(0, 2))[2] == 2  # an output too
    twice = [layer("add", (0, 0), 2)]
    assert places(twice, {0: (0, 1), 2: (0, 1)})[2] == 2  # the convolution reads its neighbours
    other = [layer("multiply", (1, 0), 2)]
    assert places(other, {0: (0, 1), 1: (0, 1), 2: (0, 1)})[2] == 2  # no kernel for it


@pytest.fixture(scope="module")
def residual():
    """Blocks whose sums can be in place, then one with overlapping channel blocks, one with its input needed again."""
    g = Graph("residual", seed=3)
    x = g.relu(g.conv(g.input("x", (1, 3, 20, 20)), 64, 3))
    for _ in range(2):
        x = g.relu(g.op("Add", g.conv(g.relu(g.conv(x, 32, 1)), 64, 3), x, channels=64))
    x = g.relu(g.op("Add", g.conv(x, 64, 1), x, channels=64))
    z = g.relu(g.conv(x, 40, 1))
    z = g.relu(g.op("Add", g.conv(g.relu(g.conv(z, 24, 3)), 40, 1), z, channels=40))
    y = g.relu(g.op("Add", g.conv(g.relu(g.conv(x, 32, 1)), 64, 1), x, channels=64))
    joined = g.op("Concat", x, y, z, axis=1, channels=168)
    return g.model(g.op("GlobalAveragePool", joined), (1, 168, 1, 1))


@pytest.fixture(scope="module")
def artifact(residual):
    return flexcomp.build(residual, threads=2, kernels="smallest")


def test_sums_share_a_place_with_what_ends_there(artifact) -> None:
    program, rung = artifact.program, artifact.program.rungs[-1]
    shared = 0
    for planned in (program.layers[step.layer] for step in rung.steps):
        read = [arg.value for arg in planned.args if isinstance(arg, ValueArg) and not arg.written]
        written = [arg.value for arg in planned.args if isinstance(arg, ValueArg) and arg.written]
        shared += any(rung.value_at[value] == rung.value_at[written[0]] for value in read)
    assert 2 <= shared <= 3  # the two blocks, and the one of 40 channels where those make whole blocks


def test_answers_are_right_on_every_rung(artifact, residual, tmp_path) -> None:
    artifact.export_library(tmp_path / "residual.so")
    x = np.random.default_rng(1).standard_normal((1, 3, 20, 20)).astype("f4")
    expected = onnxruntime.InferenceSession(residual.SerializeToString()).run(None, {"x": x})[0]
    for threads in (1, 2):
        with flexcomp.load(tmp_path / "residual.so", threads=threads) as session:
            for rung in artifact.program.rungs:
                session.set_budget(rung.budget)
                for _ in range(2):
                    np.testing.assert_allclose(session(x), expected, atol=1e-5 * abs(expected).max())


def test_a_sum_in_the_first_layer_leaves_the_networks_input_alone(tmp_path) -> None:
    """A tensor that begins with the layer has no earlier life that the result could take over."""
    g = Graph("first", seed=1)
    x, z = g.input("x", (1, 8, 6, 6)), g.input("z", (1, 16, 6, 6))
    proto = g.model(g.op("Add", g.conv(x, 16, 1), z, channels=16), (1, 16, 6, 6))
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal(shape).astype("f4") for name, shape in (("x", (1, 8, 6, 6)), ("z", (1, 16, 6, 6)))}
    (want,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, given)
    flexcomp.build(proto, threads=1).export_library(tmp_path / "first.so")
    with flexcomp.load(tmp_path / "first.so", budget="min") as session:
        (found,) = session.run(given).values()
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
