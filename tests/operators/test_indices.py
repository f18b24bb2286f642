"""Operators that take indices: right ones give ONNX Runtime's answer, others an error, and the next run is right."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

import flexcomp
from flexcomp import runtime_ext
from flexcomp.errors import InputError, ModelError
from flexcomp.frontend import load_model
from flexcomp.runtime.library import read_program
from tests import joint
from tests.conformance.verdict import UNOPTIMISED

from .networks import model, node

RNG = np.random.default_rng(7)
BOOL, INT64 = TensorProto.BOOL, TensorProto.INT64
FAR, FARTHEST = 2**40, -(2**63)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("f4")


def indices(low: int, high: int, *shape: int) -> np.ndarray:
    return RNG.integers(low, high, shape)


@dataclass
class Case:
    """A network of one operator whose input `i` holds indices."""

    nodes: list[onnx.NodeProto]
    given: dict[str, np.ndarray]
    low: int  # of the first index
    high: int
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    opset: int = 17
    dtype: int = 0  # of the output, if it is not float

    @property
    def network(self) -> onnx.ModelProto:
        types = {name: onnx.helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in self.given.items()}
        if self.dtype:
            types["y"] = self.dtype
        shapes = {name: value.shape for name, value in self.given.items()}
        return model(self.nodes, shapes, ["y"], self.weights, types, self.opset)


def scatter(kind: str, reduction: str, opset: int = 18) -> Case:
    attributes = {"reduction": reduction} if opset >= 16 else {}
    if kind == "ScatterND":
        given = {"x": floats(6, 5, 7), "i": indices(-5, 5, 9, 2), "u": floats(9, 7)}
        return Case([node(kind, "x", "i", "u", **attributes)], given, -6, 6, opset=opset)
    # Fewer updates than data on every axis but the indexed one, and some of them to one place.
    given = {"x": floats(3, 5, 4), "i": indices(-5, 5, 2, 7, 3), "u": floats(2, 7, 3)}
    return Case([node(kind, "x", "i", "u", axis=1, **attributes)], given, -5, 5, opset=opset)


CASES = {
    "gather": Case([node("Gather", "x", "i")], {"x": floats(6, 4), "i": indices(-6, 6, 2, 3)}, -6, 6),
    "gather_axis": Case([node("Gather", "x", "i", axis=-2)], {"x": floats(3, 5, 4), "i": indices(-5, 5, 3)}, -5, 5),
    "gather_scalar": Case([node("Gather", "x", "i", axis=1)], {"x": floats(3, 5, 4), "i": np.array(-2)}, -5, 5),
    "gather_int32": Case([node("Gather", "x", "i")], {"x": floats(6, 4), "i": np.array([-6, 5, 0], "i4")}, -6, 6),
    "gather_bool": Case([node("Gather", "x", "i")], {"x": floats(6, 4) > 0, "i": indices(-6, 6, 3)}, -6, 6, dtype=BOOL),
    "table": Case([node("Gather", "t", "i")], {"i": indices(-40, 40, 2, 3)}, -40, 40, {"t": floats(40, 8)}),
    "sliced_table": Case(
        [node("Gather", "t", "i", out="g"), node("Neg", "g")], {"i": indices(-9000, 9000, 2, 9)}, -9000, 9000,
        {"t": floats(9000, 64)},
    ),
    "gather_elements": Case(
        [node("GatherElements", "x", "i", axis=1)], {"x": floats(3, 5, 4), "i": indices(-5, 5, 2, 8, 3)}, -5, 5
    ),
    "gather_nd": Case([node("GatherND", "x", "i")], {"x": floats(6, 5, 4), "i": indices(-5, 5, 3, 2, 2)}, -6, 6),
    "gather_nd_batch": Case(
        [node("GatherND", "x", "i", batch_dims=1)], {"x": floats(3, 6, 5, 4), "i": indices(-5, 5, 3, 2, 2)}, -6, 6
    ),
    **{f"scatter_elements_{r}": scatter("ScatterElements", r) for r in ("none", "add", "mul", "min", "max")},
    **{f"scatter_nd_{r}": scatter("ScatterND", r) for r in ("none", "add", "mul", "min", "max")},
    "scatter": scatter("Scatter", "none", opset=10),
    "scatter_int64": Case(
        [node("ScatterElements", "x", "i", "u", axis=0)],
        {"x": indices(0, 9, 7), "i": np.array([-7, 6, 6]), "u": indices(10, 20, 3)}, -7, 7, opset=16, dtype=INT64,
    ),
    "scatter_bool": Case(
        [node("ScatterElements", "x", "i", "u", axis=0)],
        {"x": floats(70) > 0, "i": np.array([-7, 6, 6]), "u": floats(3) > 0}, -70, 70, opset=16, dtype=BOOL,
    ),
    "reverse_sequence": Case(
        [node("ReverseSequence", "x", "i", time_axis=0, batch_axis=1)],
        {"x": floats(6, 5, 3), "i": np.array([1, 2, 6, 3, 5])}, 0, 7,
    ),
    "roi_align": Case(
        [node("RoiAlign", "x", "r", "i", output_height=2, output_width=3, sampling_ratio=2)],
        {"x": floats(2, 3, 6, 6), "r": np.array([[0, 0, 4, 4], [1, 1, 5, 3]], "f4"), "i": np.array([1, 0])}, 0, 2,
    ),
    "max_unpool": Case(
        [node("MaxUnpool", "x", "i", kernel_shape=[2, 2], strides=[2, 2])],
        {"x": floats(1, 2, 2, 2), "i": np.array([5, 7, 13, 15, 16, 18, 24, 31]).reshape(1, 2, 2, 2)}, 0, 32,
    ),
    "computed": Case(
        [node("Abs", "i", out="a"), node("Neg", "a", out="n"), node("Gather", "x", "n")],
        {"x": floats(6, 4), "i": np.array([1, -6, 3])}, -6, 7,
    ),
}  # fmt: skip


def built(case: Case, folder) -> str:
    flexcomp.build(case.network, threads=2, kernels="smallest").export_library(folder / "network.so")
    return str(folder / "network.so")


def expected_of(case: Case) -> np.ndarray:
    session = onnxruntime.InferenceSession(case.network.SerializeToString())
    return session.run(None, case.given)[0]


def with_first(case: Case, value: int) -> dict[str, np.ndarray]:
    changed = case.given["i"].copy()
    changed.reshape(-1)[0] = value
    return case.given | {"i": changed}


def wrong_indices(case: Case) -> list[int]:
    span = np.iinfo(case.given["i"].dtype)
    return [case.high, case.low - 1, *(value for value in (FAR, FARTHEST) if span.min <= value <= span.max)]


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    """Of all cases, whose inputs and outputs have marks."""
    networks = [case.network for case in CASES.values()]
    parts = [load_model(network) for network in networks]
    artifact = joint.build(parts, networks[0], target=UNOPTIMISED, threads=2, kernels="smallest")
    path = tmp_path_factory.mktemp("indices") / "network.so"
    artifact.export_library(path)
    return path


@pytest.mark.parametrize("name", CASES)
def test_right_and_wrong_indices(library, name):
    """At both ends of the ladder; after an error the next run is right."""
    case, marks = CASES[name], {one: joint.mark(i) for i, one in enumerate(CASES)}
    expected = expected_of(case)
    others = {marks[one] + key: value for one, other in CASES.items() for key, value in other.given.items()}

    def run(session, given):
        return session.run(others | {marks[name] + key: value for key, value in given.items()})[marks[name] + "y"]

    for budget in (None, "min"):
        with flexcomp.load(library, budget) as session:
            found = run(session, case.given)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
            for index in wrong_indices(case):
                with pytest.raises(InputError, match=r"node '\w+' \(\w+\): index .* is outside of \[") as caught:
                    run(session, with_first(case, index))
                if name != "computed":
                    assert f"index {index} at position 0 is outside of [{case.low}, {case.high})" in str(caught.value)
                np.testing.assert_array_equal(run(session, case.given), found)


def test_nothing_is_written_when_an_index_is_wrong(tmp_path):
    case = CASES["gather_axis"]
    with flexcomp.load(built(case, tmp_path)) as session:
        out = np.full((3, 3, 4), 7, "f4")
        with pytest.raises(RuntimeError, match="node 'y'"):
            session._run(*with_first(case, FAR).values(), out)
        assert (out == 7).all()


def test_the_runner_refuses_them_too(tmp_path):
    case = CASES["scatter_nd_add"]
    library = built(case, tmp_path)
    for index, code in ((0, 0), (FAR, 2)):
        arguments = []
        for name, value in with_first(case, index).items():
            np.save(tmp_path / f"{name}.npy", value)
            arguments += ["--input", f"{name}={tmp_path / name}.npy"]
        done = subprocess.run(
            [str(runtime_ext.runner()), library, *arguments, "--output-dir", str(tmp_path)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert (tmp_path / "y.npy").exists() == (code == 0)
        (tmp_path / "y.npy").unlink(missing_ok=True)
    assert done.stderr == f"error: node 'y' (ScatterND): index {FAR} at position 0 is outside of [-6, 6)\n"


@pytest.mark.parametrize(("given", "place"), [([0, 6], 1), ([-7, 0], 0)])
def test_wrong_constants_are_found_by_the_build(given, place):
    network = model([node("Gather", "x", "i")], {"x": (6, 4)}, ["y"], {"i": np.array(given)})
    fault = rf"node 'y' \(Gather\): index {given[place]} at position {place} is outside of \[-6, 6\)"
    with pytest.raises(ModelError, match=fault):
        flexcomp.build(network)


def test_right_constants_cost_no_layer():
    nodes = [node("GatherElements", "x", "i", out="g"), node("Relu", "g")]
    network = model(nodes, {"x": (6, 4)}, ["y"], {"i": indices(-6, 6, 9, 4)})
    artifact = flexcomp.build(network, threads=1, kernels="smallest")
    assert "indices" not in [layer.op for layer in artifact.program.layers]


def test_indices_that_reach_outside_by_their_shape_are_refused():
    network = model([node("GatherElements", "x", "i")], {"x": (6, 4), "i": (6, 5)}, ["y"], types={"i": INT64})
    with pytest.raises(ModelError, match="reach outside of data"):
        flexcomp.build(network)


def test_the_program_says_what_may_stand_in_indices(tmp_path):
    """One bound for each place of a tuple."""
    case = CASES["gather_nd"]
    program = flexcomp.program.decode_program(read_program(built(case, tmp_path)))
    (checked,) = [layer for layer in program.layers if layer.op == "indices"]
    assert checked.args[0].bounds == ((-6, 6), (-5, 5)) and checked.description == "node 'y' (GatherND)"
    others = [arg for layer in program.layers if layer is not checked for arg in layer.args]
    assert not any(getattr(arg, "bounds", ()) for arg in others)
