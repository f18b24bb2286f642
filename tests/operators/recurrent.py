"""Networks of one recurrent layer, with any of its attributes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, compose, helper, numpy_helper

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
# With the parameters that each takes: alpha, beta.
ACTIVATIONS = {
    "Affine": 2, "Elu": 1, "HardSigmoid": 2, "LeakyRelu": 1, "Relu": 0, "ScaledTanh": 2, "Sigmoid": 0, "Softplus": 0,
    "Softsign": 0, "Tanh": 0, "ThresholdedRelu": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A layer, and which of its optional inputs and outputs there are."""

    kind: str = "LSTM"
    steps: int = 3
    batch: int = 1
    width: int = 5
    hidden: int = 8
    optional: tuple[str, ...] = ("B",)  # of B, sequence_lens, initial_h, initial_c, P
    outputs: tuple[str, ...] = ("Y",)  # of Y, Y_h, Y_c
    attributes: dict = field(default_factory=dict)
    seed: int = 0
    gain: float = 1.0  # of the recurrent weights, below which states are forgotten

    @property
    def directions(self) -> int:
        return 2 if self.attributes.get("direction") == "bidirectional" else 1

    @property
    def batch_major(self) -> bool:
        return bool(self.attributes.get("layout", 0))

    @property
    def x_shape(self) -> tuple[int, int, int]:
        return (self.batch, self.steps, self.width) if self.batch_major else (self.steps, self.batch, self.width)

    @property
    def state(self) -> tuple[int, int, int]:
        return (self.batch, self.directions, self.hidden) if self.batch_major else (self.directions, self.batch, self.hidden)

    def model(self, lengths_are_known: bool = False) -> onnx.ModelProto:
        """Weights are initialisers; x, lengths and states are inputs."""
        rng = np.random.default_rng(self.seed)
        rows = GATES[self.kind] * self.hidden

        def weights(*extents: int, scale: float) -> np.ndarray:
            return (rng.standard_normal(extents) * scale).astype("f4")

        constants = {
            "W": weights(self.directions, rows, self.width, scale=self.width**-0.5),
            "R": weights(self.directions, rows, self.hidden, scale=self.gain * self.hidden**-0.5),
            "B": weights(self.directions, 2 * rows, scale=0.5),
            "P": weights(self.directions, 3 * self.hidden, scale=0.5),
        }
        shapes = {"X": self.x_shape, "sequence_lens": (self.batch,), "initial_h": self.state, "initial_c": self.state}
        present = ("X", "W", "R", *self.optional)
        names = ["X", "W", "R", "B", "sequence_lens", "initial_h", *(["initial_c", "P"] if self.kind == "LSTM" else [])]
        inputs = [name if name in present else "" for name in names]
        results = ("Y", "Y_h", "Y_c")[: 3 if self.kind == "LSTM" else 2]
        outputs = [name if name in self.outputs else "" for name in results]
        for listed in (inputs, outputs):
            while not listed[-1]:
                listed.pop()
        if lengths_are_known:
            constants["sequence_lens"] = self.given()["sequence_lens"]
        given = [name for name in shapes if name in inputs and name not in constants]
        types = {"sequence_lens": TensorProto.INT32}
        graph = helper.make_graph(
            [helper.make_node(self.kind, inputs, outputs, name="layer", hidden_size=self.hidden, **self.attributes)],
            "network",
            [helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), shapes[name]) for name in given],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs if name],
            [numpy_helper.from_array(value, name) for name, value in constants.items() if name in inputs],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)

    def given(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(self.seed + 1)
        values = {
            "X": rng.standard_normal(self.x_shape).astype("f4"),
            "sequence_lens": rng.integers(1, self.steps + 1, self.batch).astype("i4"),
            "initial_h": rng.uniform(-1, 1, self.state).astype("f4"),
            "initial_c": rng.uniform(-2, 2, self.state).astype("f4"),
        }
        return {name: value for name, value in values.items() if name in ("X", *self.optional)}


@st.composite
def cases(draw) -> Case:
    """Layers of all kinds that ONNX Runtime computes, small ones and ones that fill no register tile."""
    kind = draw(st.sampled_from(sorted(GATES)))
    direction = draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    count = FUNCTIONS[kind] * (2 if direction == "bidirectional" else 1)
    attributes: dict = {"direction": direction}
    if draw(st.booleans()):
        attributes["clip"] = draw(st.sampled_from([0.3, 1.0, 5.0]))
    if kind == "LSTM" and draw(st.booleans()):
        attributes["input_forget"] = 1
    if kind == "GRU" and draw(st.booleans()):
        attributes["linear_before_reset"] = 1
    if draw(st.booleans()):
        names = draw(st.lists(st.sampled_from(sorted(ACTIVATIONS)), min_size=count, max_size=count))
        attributes["activations"] = names
        for i, key in enumerate(("activation_alpha", "activation_beta")):
            wanted = sum(ACTIVATIONS[name] > i for name in names)
            if wanted:
                attributes[key] = draw(st.lists(st.sampled_from([0.1, 0.5, 0.9]), min_size=wanted, max_size=wanted))
    optional = ["B", "sequence_lens", "initial_h", *(["initial_c", "P"] if kind == "LSTM" else [])]
    results = ["Y", "Y_h", *(["Y_c"] if kind == "LSTM" else [])]
    subset = lambda names, least: tuple(  # noqa: E731
        sorted(draw(st.lists(st.sampled_from(names), unique=True, min_size=least)), key=names.index)
    )
    return Case(
        kind, draw(st.integers(1, 6)), draw(st.integers(1, 6)), draw(st.integers(1, 12)),
        draw(st.sampled_from([1, 2, 3, 5, 8, 13, 16, 17, 24, 31, 33, 40, 64])),
        subset(optional, 0), subset(results, 1), attributes, draw(st.integers(0, 99)), draw(st.sampled_from([0.3, 1.0])),
    )  # fmt: skip


def together(layers: list[Case]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """One network of several layers side by side, and its inputs: names begin with the number of the layer."""
    models = [compose.add_prefix(case.model(), f"l{i}_") for i, case in enumerate(layers)]
    graph = helper.make_graph([], "network", [], [])
    for model in models:
        graph.MergeFrom(model.graph)
    graph.name = "network"
    inputs = {f"l{i}_{name}": value for i, case in enumerate(layers) for name, value in case.given().items()}
    return helper.make_model(graph, opset_imports=models[0].opset_import, ir_version=8), inputs
