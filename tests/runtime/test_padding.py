"""Sessions of libraries that pad: inputs of any length up to the largest, outputs of that length."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm_ffi
from onnx import TensorProto

import flexcomp
from flexcomp.errors import ArtifactError, InputError
from flexcomp.program import PROGRAM_KIND, ValidArg, decode_shapes, encode_shapes
from flexcomp.program.program_bytes import decode_weights_digest
from flexcomp.runtime import PAD
from flexcomp.runtime.padding import padding_of
from flexcomp.runtime.ports import ShapeInfo, TensorInfo
from tests.cli import calls
from tests.padded import left_out, masked_encoder, subsampled
from tests.runtime import native
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


def test_kernels_over_all_rows_leave_padding_out():
    options = {"threads": 1, "probe": False, "progress": False}
    padded = flexcomp.build(left_out(WIDTH), input_shapes={"x": ("n", WIDTH)}, shapes={"n": [24]}, pad={"x": 0}, **options)
    rng, lengths = np.random.default_rng(0), (1, 5, 17, 24)
    exact = flexcomp.build(left_out(WIDTH), input_shapes={"x": ("n", WIDTH)}, shapes={"n": lengths}, **options)
    reference = onnxruntime.InferenceSession(left_out(WIDTH).SerializeToString())
    for budget in ("min", "all"):
        with padded.session(budget) as session, exact.session() as own:
            for n in lengths:
                x = rng.standard_normal((n, WIDTH)).astype("float32")
                found, wanted = session.run({"x": x}), own.run({"x": x})
                for name, array in zip(wanted, reference.run(list(wanted), {"x": x}), strict=True):
                    np.testing.assert_allclose(found[name], wanted[name], atol=1e-5 * np.abs(wanted[name]).max())
                    np.testing.assert_allclose(found[name], array, atol=2e-3 * np.abs(array).max())


def test_outputs_of_a_part_of_the_length(tmp_path):
    """Frames that two convolutions of stride 2 leave, in a session and by the runner."""
    model = subsampled(doubled=True)
    artifact = flexcomp.build(
        model, input_shapes={"x": (1, 8, "n")}, shapes={"n": [40, 15]}, pad={"x": 0}, threads=1, probe=False, progress=False
    )
    artifact.export_library(tmp_path / "frames.so")
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(0)
    with flexcomp.load(tmp_path / "frames.so", "min") as session:
        for n in (40, 1, 2, 15, 16, 3, 39, 4):
            x = rng.standard_normal((1, 8, n)).astype("float32")
            found = session.run({"x": x})
            for name, wanted in zip(("y", "z"), reference.run(None, {"x": x}), strict=True):
                np.testing.assert_allclose(found[name], wanted, atol=1e-5)
    np.save(tmp_path / "x.npy", x)
    given = ["--input", f"x={tmp_path / 'x.npy'}", "--output-dir", str(tmp_path)]
    assert calls.call("run", tmp_path / "frames.so", *given).returncode == 0
    for name, array in found.items():
        np.testing.assert_array_equal(np.load(tmp_path / f"{name}.npy"), array)


def test_inputs_that_are_too_short():
    """A convolution without pads of its own needs five frames."""
    g = Nodes(seed=0)
    g.named("y", "Conv", "x", g.weight(4, 8, 5), strides=[2])
    model = g.model([("x", TensorProto.FLOAT, [1, 8, "n"])], [("y", TensorProto.FLOAT, [1, 4, "m"])])
    artifact = flexcomp.build(
        model, input_shapes={"x": (1, 8, "n")}, shapes={"n": [20]}, pad={"x": 0}, threads=1, probe=False, progress=False
    )
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    with artifact.session() as session:
        for n in (5, 6, 7, 20):
            x = np.random.default_rng(n).standard_normal((1, 8, n)).astype("float32")
            np.testing.assert_allclose(session.run({"x": x})["y"], reference.run(None, {"x": x})[0], atol=1e-5)
        with pytest.raises(InputError, match='"x" has 4 elements along axis 2, and at least 5 are needed'):
            session.run({"x": x[..., :4]})


def arguments(program):
    return [arg for layer in program.layers for arg in layer.args]


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


WIDTH = 32


def text_encoder() -> onnx.ModelProto:
    """Layers of attention, dense layers and norms, as in encoders of sentences, and the mean of the rows that a mask takes."""
    g = Nodes(seed=4)
    heads, whole = g.constant([0, 0, 2, WIDTH // 2]), g.constant([0, 0, WIDTH])
    here = g.op("Cast", "mask", to=TensorProto.FLOAT)
    away = g.op("Mul", g.op("Sub", g.constant(np.float32(1)), here), g.constant(np.float32(-1e9)))
    hidden = g.op("Unsqueeze", away, g.constant([1, 2]))

    def dense(x: str, wide: int, out: int) -> str:
        return g.op("Add", g.op("MatMul", x, g.weight(wide, out)), g.weight(out))

    x = g.op("LayerNormalization", g.op("Gather", g.weight(50, WIDTH), "ids"), g.weight(WIDTH), g.weight(WIDTH), axis=-1)
    for _ in range(2):
        q, k, v = (g.op("Transpose", g.op("Reshape", dense(x, WIDTH, WIDTH), heads), perm=[0, 2, 1, 3]) for _ in range(3))
        scores = g.op("Add", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2])), hidden)
        mixed = g.op("Transpose", g.op("MatMul", g.op("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        x = g.op("Add", x, dense(g.op("Reshape", mixed, whole), WIDTH, WIDTH))
        x = g.op("LayerNormalization", x, g.weight(WIDTH), g.weight(WIDTH), axis=-1)
        x = g.op("Add", x, dense(g.op("Gelu", dense(x, WIDTH, 64)), 64, WIDTH))
    taken = g.op("Mul", x, g.op("Unsqueeze", here, g.constant([2])))
    g.named("mean", "Div", g.op("ReduceSum", taken, g.constant([1]), keepdims=0), g.op("ReduceSum", here, g.constant([1])))
    inputs = [("ids", TensorProto.INT64, [1, "n"]), ("mask", TensorProto.INT64, [1, "n"])]
    return g.model(inputs, [("mean", TensorProto.FLOAT, [1, WIDTH])])


@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_compute_the_rows_that_there_are(threads):
    built = flexcomp.build(
        text_encoder(), input_shapes=SHAPES, shapes={"n": [40, 16]}, pad={"ids": 0, "mask": 0}, threads=threads, probe=False,
        progress=False,
    )  # fmt: skip
    for program in (built.program, *built.others):
        ops = {layer.op for layer in program.layers if any(isinstance(arg, ValidArg) for arg in layer.args)}
        assert ops >= {"matmul", "layer_norm"}
        assert "sum" in " ".join(ops)
    reference = onnxruntime.InferenceSession(text_encoder().SerializeToString())
    for budget in ("min", "all"):
        with built.session(budget, threads=threads) as opened:
            for n in np.random.default_rng(1).permutation(range(1, 41)):
                (wanted,) = reference.run(None, inputs(n))
                np.testing.assert_allclose(opened.run(inputs(n))["mean"], wanted, rtol=1e-4, atol=1e-5)


def test_rows_are_computed_where_zeros_would_move_an_output(caplog):
    """The largest elements of rows after a dense layer: hidden rows are far below all, but zeros are not."""
    g = Nodes(seed=5)
    shown = g.op("Cast", g.op("Unsqueeze", "mask", g.constant([1])), to=TensorProto.BOOL)
    x = g.op("MatMul", g.op("Where", shown, "x", g.constant(np.float32(-1e9))), g.constant(np.eye(WIDTH, dtype="float32")))
    g.named("y", "TopK", x, g.constant([1]), axis=0)
    g.nodes[-1].output.append("places")
    model = g.model([("x", 1, ["n", WIDTH]), ("mask", 7, ["n"])], [("y", 1, [1, WIDTH])])
    built = flexcomp.build(
        model, input_shapes={"x": ("n", WIDTH), "mask": ("n",)}, shapes={"n": [40]}, pad={"x": 0, "mask": 0}, threads=1,
        probe=False, progress=False,
    )  # fmt: skip
    assert "each inference computes all rows of its shape" in caplog.text and '"y" moves when n=' in caplog.text
    assert json.loads(built.program.metadata[PAD])["rows"] is None
    assert not any(isinstance(arg, ValidArg) for arg in arguments(built.program))
    x = np.random.default_rng(6).standard_normal((3, WIDTH)).astype("float32")
    with built.session() as opened:
        np.testing.assert_allclose(opened.run(x, np.ones(3, "int64"))["y"][0], x.max(axis=0), rtol=1e-5, atol=1e-6)


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
        "rows": "n",
    }
    assert all(PAD not in program.metadata for program in artifact.others)
    plain = flexcomp.build(masked_encoder(), input_shapes=SHAPES, shapes={"n": LENGTHS}, threads=1, probe=False, progress=False)
    assert {PAD} == artifact.program.metadata.keys() - plain.program.metadata.keys()
    assert not any(isinstance(arg, ValidArg) for program in (plain.program, *plain.others) for arg in arguments(program))
    assert artifact.program.weights_nbytes == plain.program.weights_nbytes


# ------------------------------------------------------------------------------------------------------- records in files

GOOD = {
    "values": {"ids": 0, "mask": 0},
    "inputs": {"ids": [None, "n"], "mask": [None, "n"]},
    "outputs": {"rows": [None, "n", None]},
    "rows": "n",
}
IDS, MASK = GOOD["inputs"].items()
PART = {"of": "n", "times": 1, "add": 0, "divisor": 1, "plus": 0}


@pytest.fixture(scope="module")
def create(session):
    """A program with this record in place of the library's, as the runtime opens it."""
    blob = session.program_bytes()
    programs, digest = decode_shapes(blob), decode_weights_digest(blob)

    def created(record, **changes):
        text = record if isinstance(record, str) else json.dumps(record)
        first = replace(programs[0], metadata={**programs[0].metadata, PAD: text}, **changes)
        return tvm_ffi.get_global_func(f"{PROGRAM_KIND}.create")(encode_shapes([first, *programs[1:]], digest))

    return created


def test_a_record_is_read_as_it_was_written(create):
    taken = tuple(TensorInfo(name, (1, 8), "int64") for name in ("ids", "mask"))
    shape = ShapeInfo({}, taken, (TensorInfo("rows", (1, 8, 32), "float32"),))
    padding = padding_of({"metadata": {PAD: json.dumps(GOOD)}}, (shape,))
    assert json.loads(padding.to_metadata()[PAD]) == GOOD
    assert padding.cut(shape, {"ids": (1, 5), "mask": (1, 5)}).outputs == (TensorInfo("rows", (1, 5, 32), "float32"),)
    assert create(GOOD).kind == PROGRAM_KIND


@pytest.mark.parametrize(
    "record",
    [
        "", "[]", "null", "{", "[" * 10000, {}, '{"values": ' + " " * (1 << 16) + "1}",
        GOOD | {"values": {"ids": 0}},
        GOOD | {"values": {"ids": 0, "mask": 0, "other": 0}},
        GOOD | {"values": {"ids": 0.5, "mask": 0}},
        GOOD | {"values": {"ids": 2**63, "mask": 0}},
        GOOD | {"values": {"ids": True, "mask": 0}},
        GOOD | {"values": {"ids": None, "mask": 0}},
        GOOD | {"values": [0]},
        GOOD | {"inputs": {}, "values": {}},
        GOOD | {"inputs": dict([("ids", ["n"]), MASK])},
        GOOD | {"inputs": dict([("ids", [None, 3]), MASK])},
        GOOD | {"inputs": dict([("ids", ["n", "n"]), MASK])},
        GOOD | {"inputs": dict([("ids", [None, None]), MASK])},
        GOOD | {"inputs": dict([("other", [None, "n"]), MASK]), "values": {"other": 0, "mask": 0}},
        GOOD | {"inputs": dict([("ids", ["n", None]), MASK])},
        GOOD | {"inputs": dict([("ids", 3), MASK])},
        GOOD | {"outputs": {}},
        GOOD | {"outputs": {"rows": [None, "m", None]}},
        GOOD | {"outputs": {"rows": ["n", None, None]}},
        GOOD | {"outputs": {"rows": [None, "n", "n"]}},
        GOOD | {"outputs": {"rows": [None, ["n"], None]}},
        GOOD | {"outputs": {"z": [None, "n", None]}},
        GOOD | {"outputs": None},
        GOOD | {"outputs": {"rows": [None, PART | {"of": "m"}, None]}},
        GOOD | {"outputs": {"rows": [None, PART | {"divisor": 2}, None]}},
        GOOD | {"outputs": {"rows": [None, PART | {"divisor": 0}, None]}},
        GOOD | {"outputs": {"rows": [None, PART | {"add": 0.5}, None]}},
        GOOD | {"outputs": {"rows": [None, PART | {"times": 2**40}, None]}},
        GOOD | {"outputs": {"rows": [None, {"of": "n"}, None]}},
        GOOD | {"inputs": dict([("ids", [None, PART]), MASK])},
        GOOD | {"least": {"m": 1}},
        GOOD | {"least": {"n": 0}},
        GOOD | {"least": 3},
        GOOD | {"rows": "m"},
        GOOD | {"rows": 3},
    ],
    ids=str,
)  # fmt: skip
def test_a_record_that_does_not_fit_its_library_is_refused(create, record):
    with pytest.raises(RuntimeError, match="the library's record of padding is malformed"):
        create(record)


def test_python_refuses_a_record_of_other_tensors():
    with pytest.raises(ArtifactError, match="the library's record of padding is malformed: a tensor has other axes"):
        padding_of({"metadata": {PAD: json.dumps(GOOD)}}, (ShapeInfo({}, (), ()),))


def test_copies_stay_within_tensors_and_values_are_rounded_as_numpy_does(tmp_path):
    parts = ("program/padding.cc", "session/padded_copy.cc", *native.READER)
    options = ["-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    native.run(native.compile(tmp_path, "padded_copy.cc", parts, options))
