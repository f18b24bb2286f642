"""`build(arithmetic="auto")`: which layers stay float32, and the error of what is built, as ARM code in an emulator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp.errors import ArtifactError, InputError
from flexcomp.program import arithmetic_errors
from flexcomp.report import describe, summary
from flexcomp.runtime import runner
from tests import uncompiled

from .emulator import emulated, needs_emulator
from .test_half import QUICK as TARGET

SHAPE, MAX_ERROR, LARGE, OFFSET = (1, 8, 12, 12), 0.02, 3e5, 1000.0
OPTIONS = dict(kernels="smallest", threads=1)


def fragile() -> onnx.ModelProto:
    """Six convolutions: results of the second differ only in the last bits that float16 has; those of the third, which the fourth
    reads, are beyond its range."""
    g = Graph("fragile", seed=3)
    x = g.relu(g.conv(g.input("x", SHAPE), 16, 1))
    x = g.op("Add", g.conv(x, 16, 3), g.number(OFFSET))
    x = g.op("Sub", g.max_pool(x, 3, 1, 1), g.number(OFFSET))
    x = g.op("Mul", g.relu(g.conv(x, 16, 1)), g.number(LARGE))
    x = g.op("Mul", g.relu(g.conv(x, 16, 3)), g.number(1 / LARGE))
    x = g.relu(g.conv(x, 16, 1))
    return g.model(g.conv(x, 8, 3), SHAPE)


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return fragile()


@pytest.fixture(scope="module")
def artifact(model):
    return flexcomp.build(model, TARGET, arithmetic="auto", max_error=MAX_ERROR, **OPTIONS)


def convolutions(artifact: flexcomp.Artifact) -> list[dict]:
    return [layer for layer in describe(artifact.program)["layers"] if layer["op"] == "conv2d"]


def error_of(artifact: flexcomp.Artifact, model: onnx.ModelProto, folder: Path) -> float:
    """Under emulation, on inputs that nothing was calibrated with."""
    x = np.random.default_rng(11).standard_normal(SHAPE).astype("f4")
    np.save(folder / "x.npy", x)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    artifact.export_library(folder / "half.so")
    runner.run(folder / "half.so", inputs={"x": folder / "x.npy"}, output_dir=folder, emulator=emulated())
    found = np.load(runner.output_file(folder, model.graph.output[0].name))
    return float(abs(found - expected).max() / abs(expected).max())


def test_only_layers_that_need_it_stay_float32(artifact):
    layers = convolutions(artifact)
    assert [layer["arithmetic"] for layer in layers] == ["float16", "float32", "float32", "float32", "float16", "float16"]
    assert [layer["weights_dtype"] for layer in layers] == [layer["arithmetic"] for layer in layers]
    errors = [layer["arithmetic_error"] for layer in layers]
    assert errors[2:4] == ["range", "range"] and errors[1] > MAX_ERROR
    assert all(1e-5 < errors[i] < MAX_ERROR for i in (0, 4, 5))


@needs_emulator
def test_other_inputs_are_within_the_error(model, artifact, tmp_path):
    assert 1e-5 < error_of(artifact, model, tmp_path) < MAX_ERROR
    every = flexcomp.build(model, TARGET, arithmetic="float16", **OPTIONS)
    assert not error_of(every, model, tmp_path) < MAX_ERROR


def test_less_error_leaves_more_in_float32(model, artifact):
    """Together layers err by more than each of them: not all are taken that could be alone."""
    found = convolutions(artifact)
    alone = max(found[i]["arithmetic_error"] for i in (0, 4, 5))
    together = describe(artifact.program)["error"]
    assert alone < together <= MAX_ERROR
    tight = uncompiled.artifact(model, TARGET, arithmetic="auto", max_error=(alone + together) / 2, **OPTIONS)
    kinds = [layer["arithmetic"] for layer in convolutions(tight)]
    assert 1 <= kinds.count("float16") < 3 and describe(tight.program)["error"] <= (alone + together) / 2


def test_inspect_says_the_type_and_the_error(artifact):
    text = summary(artifact.program)
    assert "by arithmetic in float16 outputs err by" in text.replace("\n", " ") and "(range)" in text
    assert describe(artifact.program)["max_error"] == MAX_ERROR


def test_calibration_decides():
    """The same layers are within the range for small inputs, and beyond it for large ones."""
    g = Graph("scaled", seed=5)
    x = g.op("Mul", g.conv(g.input("x", SHAPE), 8, 1, bias=False), g.number(100.0))
    model, x = g.model(g.conv(x, 8, 1, bias=False), SHAPE), np.random.default_rng(2).standard_normal(SHAPE).astype("f4")
    for size, kind in ((1, "float16"), (1e4, "float32")):
        given = {"x": np.float32(size) * x}
        artifact = uncompiled.artifact(model, TARGET, arithmetic="auto", calibration=given, **OPTIONS)
        assert [layer["arithmetic"] for layer in convolutions(artifact)] == [kind] * 2


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"weights": "float16"}, "arithmetic='auto' chooses the types of weights, too: leave weights out"),
        ({"weights": "auto"}, "arithmetic='auto' chooses the types of weights, too"),
        ({"max_error": 2}, "max_error=2 is not a part of the largest output"),
        ({"tuning": "some.db"}, "arithmetic='auto' has no tuning databases"),
    ],
)
def test_what_does_not_go_together_is_refused(model, options, error):
    with pytest.raises(InputError, match=error):
        flexcomp.build(model, TARGET, arithmetic="auto", **options)


def test_an_error_alone_chooses_nothing(model):
    with pytest.raises(InputError, match='are for weights="auto" and for arithmetic in 16 bits'):
        flexcomp.build(model, TARGET, max_error=0.1)


def test_float16_keeps_layers_in_float32_whose_values_leave_its_range(model, caplog):
    """By name, on the calibration inputs; layers that only err stay in 16 bits, unless an error is given, too."""
    given = {"x": np.random.default_rng(2).standard_normal(SHAPE).astype("f4")}
    checked = uncompiled.artifact(model, TARGET, arithmetic="float16", calibration=given, **OPTIONS)
    layers = convolutions(checked)
    assert [layer["arithmetic"] for layer in layers] == ["float16", "float16", "float32", "float32", "float16", "float16"]
    (said,) = [one.getMessage() for one in caplog.records if "leave the range" in one.getMessage()]
    assert all(layer["node"] in said for layer in layers[2:4]) and layers[1]["node"] not in said
    tight = uncompiled.artifact(model, TARGET, arithmetic="float16", calibration=given, max_error=MAX_ERROR, **OPTIONS)
    assert convolutions(tight)[1]["arithmetic"] == "float32"
    with pytest.raises(InputError, match="'float16' with max_error or calibration chooses the types of weights, too"):
        flexcomp.build(model, TARGET, arithmetic="float16", calibration=given, weights="float16", **OPTIONS)


def test_a_record_that_does_not_fit_is_refused(artifact):
    program = artifact.program
    found = arithmetic_errors.read(program)
    assert found.metadata() == {arithmetic_errors.KEY: program.metadata[arithmetic_errors.KEY]}
    good = program.metadata[arithmetic_errors.KEY]
    for wrong in ('"layers":[1]', '"layers":3', '"layers":["wide"]', '"layers":[-1]'):
        text = good[: good.index('"layers"')] + wrong + "}"
        with pytest.raises(ArtifactError, match="record of the arithmetic's errors is malformed"):
            arithmetic_errors.read(replace(program, metadata={arithmetic_errors.KEY: text}))
