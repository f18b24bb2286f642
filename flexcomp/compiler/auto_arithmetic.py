"""`build(arithmetic="auto")`, or another with a `max_error`: layers that compute in fewer bits with the outputs within an error.

Products of 8 bits are the same on every machine, so the network is built for this one, with chosen layers in them.

Few machines that build compute in a board's 16 bits. So the network is built for this machine in float32, with every value
rounded that would be narrow on the board: weights of chosen layers, what goes in and comes out of them, and what stays narrow in
between. Sums of layers get the error that sums in float16 may have (`passes/narrow_activations.py`). Outputs on calibration
inputs are compared with those of the network without rounding.

Each layer is tried alone. Then layers are taken together, those with least error for their work first, as many as stay within the
error; errors of layers are taken to grow together, so their number is found by bisection. All that is kept was run.
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flexcomp.device import resolve_target
from flexcomp.errors import InputError
from flexcomp.network import Network
from flexcomp.passes.attributes import VALUES_OF
from flexcomp.passes.fuse_attention import Evaluate
from flexcomp.passes.weights import KeptWeight
from flexcomp.program import ArithmeticErrors, Layer
from flexcomp.report import Progress
from flexcomp.schedules.byte_products import together
from flexcomp.schedules.tiles.tile import VectorUnit

from .artifact import Artifact
from .auto_shapes import OtherShape, in_shape
from .calibration import Given, inputs_of
from .weight_trial import Trial, asked_about, by_layer, require_telling
from .weight_types import WeightTypes

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChosenArithmetic:
    """For all layers with weights, as passes ask for them, the type of these, and the error of fewer bits; None: not tried."""

    types: tuple[str, ...]
    errors: tuple[float | None, ...]
    found: ArithmeticErrors  # without its layers

    def record(self, network: Network, layers: Sequence[Layer]) -> ArithmeticErrors:
        """For a program with some of a network's layers."""
        return replace(self.found, layers=by_layer(network, layers, self.errors))


def choose(
    lower: Callable[[WeightTypes], Network],
    compiled: Callable[[Network], Artifact],
    usual: TypesOfLayers,
    in_order: Callable[[Sequence[str]], WeightTypes],
    given: Given,
    max_error: float,
    report: Progress,
    shape: str = "",
    others: Sequence[OtherShape] = (),
    judge: Callable[[], WeightTypes] | None = None,
) -> ChosenArithmetic:
    """The layers in fewer bits within `max_error` of the largest output, each output by its own, over all inputs `given`, in
    this `shape` and all `others`.

    `lower` makes a network of types, `usual` are those of this arithmetic. Errors are those from the network with the weights of
    `judge`; by default from that with layers of the same weights in float32. Raises InputError if the inputs do not fit the
    network, or all outputs on them are 0 or no numbers.
    """
    ports = lower(usual).base.inputs
    inputs = inputs_of(in_shape(given, ports, shape) if others else given, ports)
    candidates = [index for index in range(len(usual.kept)) if usual.tried(index)]

    def types(narrow: Collection[int], of: Callable[[int], str]) -> list[str]:
        return [of(i) if i in narrow else usual.wide(i) for i in range(len(usual.kept))]

    def build(narrow: Collection[int]) -> Artifact:
        return compiled(lower(in_order(types(narrow, usual.tried))))

    wide = build(())
    work = [layer.flops for layer in asked_about(wide.program.layers)]
    assert len(work) == len(usual.kept), f"{len(usual.kept)} layers were asked about, {len(work)} have weights"
    with tempfile.TemporaryDirectory(prefix="flexcomp-auto-") as folder:
        trial = Trial(wide if judge is None else compiled(lower(judge())), Path(folder), inputs)
        require_telling(trial.wanted, "random inputs" if given is None else "the calibration inputs")
        for number, other in enumerate(others):
            of_others = in_order(types((), usual.tried)) if judge is None else judge()
            other.open(of_others, usual.nodes, given, Path(folder) / str(number))

        def error_of(narrow: Collection[int]) -> float:
            in_others = (other.error_of(types(narrow, usual.tried)) for other in others)
            return max([trial.error_of(build(narrow)), *in_others])

        total = len(candidates) + 1
        errors = usual.errors()
        for done, index in enumerate(candidates):
            report("calibrate", done, total)
            errors[index] = trial.error_of(build((index,)))
        within = [(error, index) for index in candidates if (error := errors[index]) is not None and error <= max_error]
        order = [index for *_, index in sorted((error**2 / max(work[index], 1), index) for error, index in within)]
        report("calibrate", len(candidates), total)
        fewest, most, error = 0, len(order), 0.0 if judge is None else error_of(())
        count = most  # all together, mostly
        while fewest < most:
            tried = error_of(order[:count])
            if tried <= max_error:
                fewest, error = count, tried
            else:
                most = count - 1
            count = (fewest + most + 1) // 2
        report("calibrate", total, total)
    if lost := [str(usual.nodes[index]) for index in candidates if math.isinf(errors[index] or 0.0)]:
        _log.warning("computed in float32, because values leave the range of fewer bits: %s", ", ".join(lost))
    chosen = types(order[:fewest], usual.chosen)
    return ChosenArithmetic(tuple(chosen), tuple(errors), ArithmeticErrors(error, max_error, ()))


class TypesOfLayers(WeightTypes):
    """The types that an arithmetic gives to weights, and those of layers that may compute in it, as passes ask for them."""

    kept: list[str]

    def tried(self, index: int) -> str:
        """The type with which a layer is tried in fewer bits; empty if it computes in float32 anyway."""
        raise NotImplementedError

    def wide(self, index: int) -> str:
        """The type with which it computes in float32."""
        raise NotImplementedError

    def chosen(self, index: int) -> str:
        """The type in the network with the layers that were chosen."""
        raise NotImplementedError

    def errors(self) -> list[float | None]:
        """What is known of errors before layers are tried."""
        return [None] * len(self.kept)


class TypesOfHalf(TypesOfLayers):
    """Of arithmetic in a type of 16 bits."""

    def __init__(self, evaluate: Evaluate, offered: Collection[str], half: str) -> None:
        super().__init__(None, evaluate, offered=offered, values_only=True, usual=half, by_error=True)
        self.kept, self._half = [], half

    def _noted(self, names: Sequence[str], weight: KeptWeight) -> str:
        self.kept.append(super()._noted(names, weight))
        return self.kept[-1]

    def tried(self, index: int) -> str:
        rounded = VALUES_OF + self._half
        return rounded if self.kept[index] == rounded else ""

    def wide(self, index: int) -> str:
        return "float32" if self.tried(index) else self.kept[index].removeprefix(VALUES_OF)

    def chosen(self, index: int) -> str:
        return self._half

    def errors(self) -> list[float | None]:
        return [math.inf if kept == "float32" else None for kept in self.kept]


class TypesOfBytes(TypesOfLayers):
    """Of products of 8 bits. Raises InputError if this machine cannot measure what the unit computes."""

    def __init__(self, types: WeightTypes, evaluate: Evaluate, offered: Collection[str], unit: VectorUnit) -> None:
        """`types` are those of the weights."""
        super().__init__(None, evaluate, offered=offered, by_error=True)
        self.kept, self._types, self._of_unit = [], types, unit
        self._multiplies: list[bool] = []
        self._here = resolve_target("native").vector_unit

    def _noted(self, names: Sequence[str], weight: KeptWeight) -> str:
        self.kept.append(self._types.of(names, weight))
        self._multiplies.append(weight.multiplies_blocks)
        return self.kept[-1]

    def require_granted(self) -> None:
        self._types.require_granted()

    def tried(self, index: int) -> str:
        kept = together(self.kept[index], self._of_unit) if self._multiplies[index] else ""
        if kept and not together(self.kept[index], self._here):
            raise InputError(
                "arithmetic='int8' is measured on this machine, which has no dot products of integers: leave max_error out"
            )
        return kept

    def wide(self, index: int) -> str:
        return self.kept[index]

    def chosen(self, index: int) -> str:
        return self.tried(index)
