"""Sessions of libraries that pad: inputs of any length up to the largest, outputs of that length."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest

import flexcomp
from flexcomp.errors import ArtifactError, InputError
from flexcomp.runtime import PAD
from flexcomp.runtime.padding import padding_of
from flexcomp.runtime.ports import ShapeInfo, TensorInfo
from tests.padded import masked_encoder
from tests.shaped import Nodes

SHAPES = {"ids": (1, "n"), "mask": (1, "n")}
LENGTHS = (12, 8, 3)


@pytest.fixture(scope="module")
def artifact():
    pad = {"ids": 0, "mask": 0}
    return flexcomp.build(
        masked_encoder(), input_shapes=SHAPES, shapes={"n": LENGTHS}, pad=pad, threads=1, probe=False, progress=False
    )


@pytest.fixture(scope="module")
def session(artifact):
    with artifact.session("min") as opened:
        yield opened


def inputs(n):
    rng = np.random.default_rng(n)
    return {"ids": rng.integers(0, 50, (1, n)), "mask": np.ones((1, n), "int64")}


@pytest.mark.parametrize("budget", ["min", "all"])
def test_outputs_are_right_at_every_length(session, budget):
    reference = onnxruntime.InferenceSession(masked_encoder().SerializeToString())
    session.set_budget(budget)
    for n in np.random.default_rng(0).permutation(range(1, 13)):
        wanted = reference.run(None, inputs(n))
        found = session.run(inputs(n))
        assert found["rows"].shape == (1, n, 32)
        for name, array in zip(("rows", "mean"), wanted, strict=True):
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)
        assert LENGTHS[session.stats()["shape"]] == min(length for length in LENGTHS if length >= n)


def test_outputs_go_to_tensors_of_their_length(session):
    rows = np.empty((1, 5, 32), "float32")
    found = session.run(inputs(5), outputs={"rows": rows})
    assert found["rows"] is rows
    np.testing.assert_array_equal(rows, session.run(inputs(5))["rows"])
    with pytest.raises(InputError, match=r"goes to a writable array without gaps, of float32\[1, 5, 32\]"):
        session.run(inputs(5), outputs={"rows": np.empty((1, 8, 32), "float32")})


def test_inputs_that_do_not_fit(session):
    for changed, message in [
        (inputs(13), '"ids" has 13 elements along axis 1, and the library was built for 12 at most'),
        (inputs(5) | {"mask": inputs(6)["mask"]}, '"mask" has 6 elements along axis 1, but "ids" has 5 .* both are n'),
        (inputs(0), '"ids" has 0 elements along axis 1, and at least 1 is needed'),
        ({name: array[0] for name, array in inputs(5).items()}, r'"ids" has 2 axes; given was \[5\]'),
        ({name: np.repeat(array, 2, 0) for name, array in inputs(5).items()}, r'"ids" must be int64\[1, 5\], not int64\[2, 5\]'),
        (inputs(5) | {"mask": np.ones((1, 5), "int32")}, r'"mask" must be int64\[1, 5\], not int32\[1, 5\]'),
        ({"ids": inputs(5)["ids"]}, 'inputs must be "ids", "mask"'),
    ]:
        with pytest.raises(InputError, match=message):
            session.run(changed)


def test_pictures_of_any_size_in_one_shape():
    """A 3×3 convolution, which pads with zeros itself."""
    g = Nodes(seed=3)
    g.named("y", "Conv", "x", g.weight(2, 3, 3, 3), pads=[1, 1, 1, 1])
    model = g.model([("x", 1, [1, 3, "h", "w"])], [("y", 1, [1, 2, "h", "w"])])
    built = flexcomp.build(
        model, input_shapes={"x": (1, 3, "h", "w")}, shapes={"h": [6], "w": [9]}, pad={"x": 0}, threads=1, probe=False,
        progress=False,
    )  # fmt: skip
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    with built.session() as opened:
        for h, w in ((6, 9), (1, 9), (5, 4), (6, 1)):
            x = np.random.default_rng(h).standard_normal((1, 3, h, w)).astype("float32")
            np.testing.assert_allclose(opened.run(x)["y"], reference.run(None, {"x": x})[0], rtol=1e-4, atol=1e-5)
        with pytest.raises(InputError, match='"x" has 10 elements along axis 3, and the library was built for 9 at most'):
            opened.run(np.zeros((1, 3, 1, 10), "float32"))


def test_a_library_without_pad_says_nothing_of_it(artifact, tmp_path):
    record = json.loads(artifact.program.metadata[PAD])
    assert record == {
        "values": {"ids": 0, "mask": 0},
        "inputs": {"ids": [None, "n"], "mask": [None, "n"]},
        "outputs": {"rows": [None, "n", None]},
    }
    assert all(PAD not in program.metadata for program in artifact.others)
    plain = flexcomp.build(masked_encoder(), input_shapes=SHAPES, shapes={"n": LENGTHS}, threads=1, probe=False, progress=False)
    assert replace(artifact.program, metadata={}) == replace(plain.program, metadata={})
    assert {PAD} == artifact.program.metadata.keys() - plain.program.metadata.keys()
    assert artifact.kernels == plain.kernels


# ------------------------------------------------------------------------------------------------------- records in files


def described(n, m):
    return ShapeInfo({}, (TensorInfo("ids", (1, n), "int64"),), (TensorInfo("y", (1, m), "float32"),))


TWO = (described(16, 16), described(8, 8))
GOOD = {"values": {"ids": 0}, "inputs": {"ids": [None, "n"]}, "outputs": {"y": [None, "n"]}}


def read(record, shapes=TWO):
    text = record if isinstance(record, str) else json.dumps(record)
    return padding_of({"metadata": {PAD: text}}, shapes)


def test_a_record_is_read_as_it_was_written():
    padding = read(GOOD)
    assert json.loads(padding.to_metadata()[PAD]) == GOOD


@pytest.mark.parametrize(
    "record",
    [
        "", "[]", "null", "{", "[" * 10000, {},
        GOOD | {"values": {}},
        GOOD | {"values": {"ids": 0.5}},
        GOOD | {"values": {"ids": 2**63}},
        GOOD | {"values": {"ids": True}},
        GOOD | {"values": {"ids": None}},
        GOOD | {"values": [0]},
        GOOD | {"inputs": {}, "values": {}},
        GOOD | {"inputs": {"ids": ["n"]}},
        GOOD | {"inputs": {"ids": [None, 3]}},
        GOOD | {"inputs": {"ids": ["n", "n"]}},
        GOOD | {"inputs": {"other": [None, "n"]}, "values": {"other": 0}},
        GOOD | {"inputs": {"ids": ["n", None]}},
        GOOD | {"inputs": {"ids": 3}},
        GOOD | {"outputs": {}},
        GOOD | {"outputs": {"y": [None, "m"]}},
        GOOD | {"outputs": {"y": ["n", None]}},
        GOOD | {"outputs": {"y": [None, ["n"]]}},
        GOOD | {"outputs": {"z": [None, "n"]}},
        GOOD | {"outputs": None},
    ],
)  # fmt: skip
def test_a_record_that_does_not_fit_its_library_is_refused(record):
    with pytest.raises(ArtifactError, match="the library's record of padding is malformed"):
        read(record)


def test_a_record_whose_outputs_have_other_lengths_is_refused():
    with pytest.raises(ArtifactError, match="'y' has 7 elements along 'n'"):
        read(GOOD, (described(16, 16), described(8, 7)))
