"""LSTM, GRU and RNN in all forms against ONNX Runtime."""

import os
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import flexcomp
from flexcomp.errors import InputError, ModelError, UnsupportedModelError
from tests.conformance.verdict import UNOPTIMISED

from .recurrent import GATES, Case, cases, together

EXAMPLES = int(os.environ.get("FLEXCOMP_EXAMPLES", "4"))  # networks of four layers
_ERROR = 1e-5  # of the largest value of an output


def wanted(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, inputs)


def close(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for got, want in zip(found, expected, strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=0, atol=_ERROR * max(abs(want).max(), 1e-3))


def computed(model: onnx.ModelProto, inputs: dict[str, np.ndarray], **options) -> list[np.ndarray]:
    with flexcomp.build(model, **{"target": UNOPTIMISED, "threads": 1, **options}).session() as session:
        return list(session.run(inputs).values())


@settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
@given(st.lists(cases(), min_size=4, max_size=4))
def test_random_layers(layers):
    model, inputs = together(layers)
    expected = wanted(model, inputs)
    assume(all(np.isfinite(one).all() for one in expected))  # its Softplus is infinite from 89 on
    close(computed(model, inputs), expected)


@pytest.mark.parametrize("kind", GATES)
def test_batches_first(kind):
    """ONNX Runtime has no layout 1: the same weights and states with their axes in the other order."""
    states = ("initial_h", "initial_c") if kind == "LSTM" else ("initial_h",)
    outputs = ("Y", "Y_h", "Y_c") if kind == "LSTM" else ("Y", "Y_h")
    case = Case(kind, 4, 3, 5, 9, ("B", "sequence_lens", *states), outputs, {"direction": "bidirectional"})
    inputs, expected = case.given(), wanted(case.model(), case.given())
    turned = {name: value if value.ndim == 1 else value.swapaxes(0, 1) for name, value in inputs.items()}
    found = computed(replace(case, attributes={**case.attributes, "layout": 1}).model(), turned)
    close(found, [expected[0].transpose(2, 0, 1, 3), *(state.swapaxes(0, 1) for state in expected[1:])])


def test_budgets_threads_and_types(tmp_path):
    """Streamed from storage and shared by threads it is the same; narrow weights are widened."""
    case = Case("LSTM", 3, 2, 8, 270, ("B",), ("Y",), {"direction": "bidirectional"})
    model, inputs = case.model(), case.given()
    expected = wanted(model, inputs)
    artifact = flexcomp.build(model, threads=2)
    layers = [layer for layer in artifact.program.layers if layer.op == "lstm"]
    assert len(layers) == 2 and all(layer.weights.blocks == 1 for layer in layers)
    artifact.export_library(tmp_path / "lstm.so")
    assert len(artifact.program.rungs) > 1
    for budget in ("min", "0.6", "all"):
        for threads in (1, 2):
            with flexcomp.load(tmp_path / "lstm.so", budget=budget, threads=threads) as session:
                close(list(session.run(inputs).values()), expected)
    for kind, error in (("float16", 2e-3), ("int8", 3e-2)):
        artifact = flexcomp.build(model, threads=1, weights=kind, budget="all")
        narrow = [layer for layer in artifact.program.layers if layer.op == "lstm"]
        assert all(layer.description.endswith(f", {kind}") for layer in narrow)
        assert sum(layer.weights.nbytes for layer in narrow) < 0.6 * sum(layer.weights.nbytes for layer in layers)
        with artifact.session() as session:
            (found,) = session.run(inputs).values()
        assert 0 < abs(found - expected[0]).max() < error * abs(expected[0]).max()


def test_known_lengths_and_wrong_ones():
    case = Case("GRU", 4, 3, 5, 8, ("B", "sequence_lens"), ("Y", "Y_h"))
    close(computed(case.model(lengths_are_known=True), {"X": case.given()["X"]}), wanted(case.model(), case.given()))
    given = {**case.given(), "sequence_lens": np.array([1, 5, 2], "i4")}
    with pytest.raises(InputError, match="layer"):
        computed(case.model(), given)


def test_weights_that_are_inputs():
    case = Case("GRU", 2, 1, 4, 6, ("B",), ("Y",), {"linear_before_reset": 1})
    model = case.model()
    inputs = {**case.given(), **{tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}}
    expected = wanted(model, case.given())
    for tensor in model.graph.initializer:
        model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    del model.graph.initializer[:]
    close(computed(model, inputs), expected)


def test_16_bit_floats():
    model, inputs = Case("LSTM", hidden=8).model(), Case("LSTM", hidden=8).given()
    expected = wanted(model, inputs)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype("f2"), tensor.name))
    for port in (*model.graph.input, *model.graph.output):
        port.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    (found,) = computed(model, {"X": inputs["X"].astype("f2")})
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected[0], atol=4e-3)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case("RNN", attributes={"activations": ["Cosine"]}), r"activation 'Cosine' is none of ONNX's, which are affine, elu"),
        (Case("GRU", attributes={"activations": ["Tanh"]}), r"it has 1 activations, and 2 are right"),
        (Case("RNN", attributes={"direction": "sideways"}), "its direction is 'sideways': make it one of forward, reverse"),
    ],
    ids=["activation", "number of activations", "direction"],
)
def test_what_is_no_layer_is_refused(case, message):
    with pytest.raises((UnsupportedModelError, ModelError), match=rf"node 'layer' \({case.kind}\): {message}"):
        flexcomp.build(case.model())


def test_shapes_that_do_not_fit_are_refused():
    model = Case("LSTM").model()
    weights = next(tensor for tensor in model.graph.initializer if tensor.name == "R")
    weights.CopyFrom(onnx.numpy_helper.from_array(np.zeros((1, 24, 8), "f4"), "R"))
    with pytest.raises(UnsupportedModelError, match=r"\(LSTM\): R has shape \(1, 24, 8\), and \(1, 32, 8\) is right: correct"):
        flexcomp.build(model)
