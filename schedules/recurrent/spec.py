"""A recurrent layer in one direction, in ONNX's terms."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from ..tiles.emit import PARALLEL_FLOPS

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}  # of i o f c, z r h, and i: in this order in all weights

Shape = tuple[tuple[int, ...], str]  # of a tensor, and its element type
Activation = tuple[str, float, float]  # name in lower case, alpha, beta


@dataclass(frozen=True)
class RecurrentSpec:
    """One direction of a layer, float32, whose products with the inputs X·Wᵀ + Wb are known for all steps.

    Rows of steps and batch are (step, batch), or (batch, step) with `batch_major`: of the products float32[rows, directions ·
    gates · hidden], and of the result y float32[rows, hidden]. Initial states are float32[directions, batch, hidden], or
    [batch, directions, hidden]; final ones float32[batch, hidden].
    """

    cell: str  # one of GATES
    steps: int
    batch: int
    hidden: int
    directions: int  # of the layer
    direction: int  # which of them
    reverse: bool
    activations: tuple[Activation, ...]  # f, g and h of an LSTM, f and g of a GRU, f of an RNN
    batch_major: bool = False
    clip: float | None = None  # bounds the inputs of activations
    input_forget: bool = False  # LSTM: the forget gate is 1 - the input gate
    linear_before_reset: bool = False  # GRU: the reset gate multiplies the product, not the state
    peepholes: bool = False  # LSTM: gates see the cell, too
    has_lengths: bool = False  # every row of the batch has a number of steps of its own
    initial_h: bool = False
    initial_c: bool = False
    outputs: tuple[str, ...] = ("y", "h", "c")  # those that are written: all steps, the last state, the last cell
    quantised_state: bool = False  # LSTM: products are of the state in 8 bits, by the range of each step (state.py); without Rb
    weights: str = "float32"  # the type of recurrent weights (tiles/panel.py)

    @property
    def gates(self) -> int:
        return GATES[self.cell]

    @property
    def columns(self) -> int:
        """Of the products with the inputs."""
        return self.directions * self.gates * self.hidden

    @property
    def phases(self) -> tuple[tuple[int, ...], ...]:
        """The gates whose products with the state are computed together; a later phase waits for the previous one."""
        if self.cell == "GRU" and not self.linear_before_reset:
            return ((0, 1), (2,))
        if self.cell == "LSTM" and self.input_forget:
            return ((0, 1, 3),)
        return (tuple(range(self.gates)),)

    @property
    def inputs(self) -> Shape:
        """The products of the inputs with W, of all directions."""
        return (self.steps * self.batch, self.columns), "float32"

    @property
    def given(self) -> dict[str, Shape]:
        """The arguments of a kernel after the weights."""
        states = (self.directions * self.batch * self.hidden,), "float32"
        found = {"lengths": ((self.batch,), "int32")} if self.has_lengths else {}
        return found | ({"h0": states} if self.initial_h else {}) | ({"c0": states} if self.initial_c else {})

    @property
    def results(self) -> dict[str, Shape]:
        """The results of a kernel."""
        rows = {name: self.steps * self.batch if name == "y" else self.batch for name in self.outputs}
        return {name: ((count, self.hidden), "float32") for name, count in rows.items()}

    @property
    def step_flops(self) -> int:
        return 2 * self.batch * self.hidden**2 * sum(map(len, self.phases))

    @property
    def flops(self) -> int:
        return self.steps * self.step_flops

    @property
    def is_parallel(self) -> bool:
        """Whether threads share every step."""
        return self.step_flops >= PARALLEL_FLOPS

    def encode(self) -> str:
        """As text, for the operator in the IR."""
        return json.dumps(asdict(self))

    @staticmethod
    def decode(text: str) -> RecurrentSpec:
        """The inverse of `encode`."""
        fields = json.loads(text)
        fields["activations"] = tuple(map(tuple, fields["activations"]))
        return RecurrentSpec(**{**fields, "outputs": tuple(fields["outputs"])})

    def __str__(self) -> str:
        kept = f", {self.weights}" if self.weights != "float32" else ""
        way = " reverse" if self.reverse else ""
        return f"{self.cell} {self.hidden} × {self.steps} steps{f' of {self.batch}' if self.batch > 1 else ''}{way}{kept}"
