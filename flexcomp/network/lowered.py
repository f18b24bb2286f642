"""A network as layers, with all their facts: the result of lowering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tvm import tirx

from flexcomp.deferred import Array
from flexcomp.program import ALIGN, Layer, Port, State, Value, ValueArg, WeightArg
from flexcomp.schedules.row_bands import RowKernel


def align(nbytes: int) -> int:
    """`nbytes` rounded up to ALIGN."""
    return -(-nbytes // ALIGN) * ALIGN


@dataclass
class Lowered:
    """A network as layers."""

    values: list[Value] = field(default_factory=list)
    inputs: list[Port] = field(default_factory=list)
    outputs: list[Port] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    layers: list[Layer] = field(default_factory=list)
    work: list[float] = field(default_factory=list)  # per layer: operations, weighted by the kernel's speed
    rows: list[RowKernel | None] = field(default_factory=list)  # per layer: the kernel, if able to compute bands of rows
    seconds: list[float | None] = field(default_factory=list)  # per layer: measured for this target; None if not
    weights: list[tuple[str, Array, int]] = field(default_factory=list)  # name, array, offset in the file
    weights_nbytes: int = 0
    kernels: dict[str, tirx.PrimFunc] = field(default_factory=dict)  # by symbol
    nodes: dict[str, str] = field(default_factory=dict)  # by the name of a layer its ONNX node, where known

    @property
    def given(self) -> set[int]:
        """The values that hold something before the first layer: inputs and states."""
        return {port.value for port in self.inputs} | self.staying

    @property
    def wanted(self) -> set[int]:
        """The values that must not change to the end: outputs, states, their results, and values that restore exchanges."""
        kept = {arg.value for layer in self.layers if layer.exchanges for arg in layer.args}
        return {port.value for port in self.outputs} | {state.result for state in self.states} | self.staying | kept

    @property
    def staying(self) -> set[int]:
        """The value that holds the states from one inference to the next, if there are any."""
        return {state.value for state in self.states}

    def lifetimes(self, layers: Sequence[Layer] | None = None) -> dict[int, tuple[int, int]]:
        """For each value in use the layers in which it is live, half-open; positions in `layers`, if given."""
        layers = self.layers if layers is None else layers
        lives = dict.fromkeys(self.given, (0, 1))
        for index, layer in enumerate(layers):
            for arg in layer.args:
                if isinstance(arg, ValueArg):
                    lives[arg.value] = (lives.get(arg.value, (index, 0))[0], index + 1)
        for value in self.wanted:
            lives[value] = (lives[value][0], max(len(layers), 1))
        return dict(sorted(lives.items()))


def operand_bytes(layer: Layer) -> int:
    """Bytes that a layer reads and writes, weights included; of a table no more than the rows that are looked up."""
    values = sum(arg.touched_nbytes for arg in layer.args if isinstance(arg, ValueArg))
    weights = sum(arg.type.nbytes for arg in layer.args if isinstance(arg, WeightArg))
    return values + (min(weights, values) if layer.implementation == "embedding" else weights)
