"""`build(arithmetic="auto")`: the layers that compute in float16 with the outputs within an error.

Few machines that build compute in float16. So the network is built for this machine in float32, with every value rounded that
would be float16 on the board: weights of chosen layers, what goes in and comes out of them, and what stays narrow in between.
Sums of layers get the error that sums in float16 may have (`passes/narrow_activations.py`). Outputs on calibration inputs are
compared with those of the network without rounding.

Each layer is tried alone. Then layers are taken together, those with least error for their work first, as many as stay within the
error; errors of layers are taken to grow together, so their number is found by bisection. All that is kept was run.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flexcomp.network import Network
from flexcomp.passes.attributes import VALUES_OF
from flexcomp.passes.fuse_attention import Evaluate
from flexcomp.passes.weights import KeptWeight
from flexcomp.program import ArithmeticErrors, Layer
from flexcomp.report import Progress

from .artifact import Artifact
from .calibration import Given, inputs_of
from .weight_trial import Trial, asked_about, by_layer, require_telling
from .weight_types import TypesInOrder, WeightTypes

_HALF = "float16"
_ROUNDED = VALUES_OF + _HALF


@dataclass(frozen=True)
class ChosenArithmetic:
    """For all layers with weights, as passes ask for them, the type of these, and the error of float16; None: not tried."""

    types: tuple[str, ...]
    errors: tuple[float | None, ...]
    found: ArithmeticErrors  # without its layers

    def record(self, network: Network, layers: Sequence[Layer]) -> ArithmeticErrors:
        """For a program with some of a network's layers."""
        return replace(self.found, layers=by_layer(network, layers, self.errors))


def choose(
    lower: Callable[[WeightTypes], Network],
    compiled: Callable[[Network], Artifact],
    evaluate: Evaluate,
    given: Given,
    max_error: float,
    offered: Collection[str],
    report: Progress,
) -> ChosenArithmetic:
    """The layers in float16 within `max_error` of the largest output, each output by its own, over all inputs `given`.

    `lower` rounds what is near layers whose weights have the values of float16. Raises InputError if the inputs do not fit the
    network, or all outputs on them are 0 or no numbers.
    """
    usual = _Usual(evaluate, offered)
    inputs = inputs_of(given, lower(usual).base.inputs)
    candidates = [index for index, kept in enumerate(usual.kept) if kept == _ROUNDED]

    def types(narrow: Collection[int], rounded: str) -> list[str]:
        others = [kept.removeprefix(VALUES_OF) for kept in usual.kept]
        return [(rounded if i in narrow else "float32") if i in candidates else kind for i, kind in enumerate(others)]

    def build(narrow: Collection[int]) -> Artifact:
        return compiled(lower(TypesInOrder(types(narrow, _ROUNDED), evaluate, offered)))

    wide = build(())
    work = [layer.flops for layer in asked_about(wide.program.layers)]
    assert len(work) == len(usual.kept), f"{len(usual.kept)} layers were asked about, {len(work)} have weights"
    with tempfile.TemporaryDirectory(prefix="flexcomp-auto-") as folder:
        trial = Trial(wide, Path(folder), inputs)
        require_telling(trial.wanted, "random inputs" if given is None else "the calibration inputs")
        total = len(candidates) + 1
        errors: list[float | None] = [math.inf if kept == "float32" else None for kept in usual.kept]
        for done, index in enumerate(candidates):
            report("calibrate", done, total)
            errors[index] = trial.error_of(build((index,)))
        within = [(error, index) for index in candidates if (error := errors[index]) is not None and error <= max_error]
        order = [index for *_, index in sorted((error**2 / max(work[index], 1), index) for error, index in within)]
        report("calibrate", len(candidates), total)
        fewest, most, error = 0, len(order), 0.0
        count = most  # all together, mostly
        while fewest < most:
            tried = trial.error_of(build(order[:count]))
            if tried <= max_error:
                fewest, error = count, tried
            else:
                most = count - 1
            count = (fewest + most + 1) // 2
        report("calibrate", total, total)
    chosen = types(order[:fewest], _HALF)
    return ChosenArithmetic(tuple(chosen), tuple(errors), ArithmeticErrors(error, max_error, ()))


class _Usual(WeightTypes):
    """The types that arithmetic in float16 gives to weights, and what they are."""

    def __init__(self, evaluate: Evaluate, offered: Collection[str]) -> None:
        super().__init__(None, evaluate, offered=offered, values_only=True, usual=_HALF)
        self.kept: list[str] = []

    def of(self, names: Sequence[str], weight: KeptWeight) -> str:
        self.kept.append(super().of(names, weight))
        return self.kept[-1]
