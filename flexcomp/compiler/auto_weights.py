"""`build(weights="auto")`: the fewest bytes of weights with which the outputs stay within an error.

The network is built for this machine with float32 weights, and its weights file is changed: a layer's weights are
rounded to a narrow type, one layer at a time, and the outputs on calibration inputs are compared with the unchanged ones.
That is done with values only; kernels, plans and rounding of everything else stay the same. Then all layers are narrowed as
far as possible, and layers with most error per saved byte are widened again until all together are within the
error. (Errors of layers are taken to be independent: their squares add up.) At last layers that were widened in
vain are narrowed again. The choice is built and run: kernels on narrow weights add up in other orders, which shows where
outputs are as steep as steps. If the error is too large there, less is allowed.
"""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Real
from pathlib import Path

from flexcomp.deferred import Array
from flexcomp.errors import InputError
from flexcomp.network import Network
from flexcomp.passes.fuse_attention import Evaluate
from flexcomp.program import Layer, Narrowing, WeightErrors
from flexcomp.report import Progress
from flexcomp.schedules.tiles.blocks import INT4
from flexcomp.schedules.tiles.panel import nbytes_of

from .artifact import Artifact
from .auto_shapes import OtherShape, in_shape
from .calibration import Given, inputs_of
from .weight_trial import Trial, asked_about, by_layer, require_telling, warn_of_silent_layers
from .weight_types import TypesInOrder, WeightTypes

# The narrowest first; a layer is widened to the next of these that has a smaller error.
_NARROW = (INT4, "int8", "float16", "bfloat16")

# How often a choice is built, and the allowed error after one that errs too much, as a part of the proportional error.
_ROUNDS = 4
_LESS = 0.9

_log = logging.getLogger(__name__)

Lower = Callable[[WeightTypes], Network]  # for this machine, with one kernel a layer


@dataclass(frozen=True)
class Chosen:
    """For all layers with weights, as passes ask for them, the choice and its candidates."""

    types: tuple[str, ...]
    errors: tuple[dict[str, float], ...]  # of the outputs, by the type of this layer's weights alone
    found: WeightErrors  # without its layers

    def record(self, network: Network, layers: Sequence[Layer]) -> WeightErrors:
        """For a program with some of a network's layers."""
        return replace(self.found, layers=by_layer(network, layers, self.errors))


def choose(
    lower: Lower,
    compiled: Callable[[Network], Artifact],
    evaluate: Evaluate,
    given: Given,
    max_error: float,
    offered: Collection[str],
    report: Progress,
    shape: str = "",
    others: Sequence[OtherShape] = (),
) -> Chosen:
    """The types of those `offered` within `max_error` of the largest output, each output by its own, over all
    calibration inputs `given`, in this `shape` and all `others`.

    Raises InputError if the inputs do not fit the network, or all outputs on them are 0 or no numbers.
    """
    wide = WeightTypes("float32", evaluate, offered=offered, by_error=True)
    network = lower(wide)
    ports = network.base.inputs
    inputs = inputs_of(in_shape(given, ports, shape) if others else given, ports)
    artifact, nodes = compiled(network), wide.nodes
    with tempfile.TemporaryDirectory(prefix="flexcomp-auto-") as folder:
        trial = Trial(artifact, Path(folder), inputs)
        require_telling(trial.wanted, "random inputs" if given is None else "the calibration inputs")
        assert len(trial.kept) == len(nodes), f"{len(nodes)} layers were asked about, {len(trial.kept)} have weights"
        for number, other in enumerate(others):
            other.open(WeightTypes("float32", evaluate, offered=offered, by_error=True), nodes, given, Path(folder) / str(number))
        # Layers with the same weights have one type.
        found_at: dict[tuple[int, ...], int] = {}
        which = [found_at.setdefault(tuple(at for *_, at in panels), len(found_at)) for panels in trial.kept]
        own = [which.index(number) for number in range(len(found_at))]
        trial.kept = [trial.kept[index] for index in own]
        rounded: dict[str, list[list[Array]]] = {}
        fits: dict[str, list[bool]] = {}
        narrow, nowhere = [dtype for dtype in _NARROW if dtype in offered], [False] * len(nodes)
        for dtype in narrow:
            types = WeightTypes(dtype, evaluate, offered=offered, values_only=True, by_error=True)
            by_name = {name: array for name, array, _ in lower(types).weights}
            rounded[dtype] = [[by_name[name] for name, _, _ in panels] for panels in trial.kept]
            fits[dtype] = [types.fits[index] for index in own]
        errors: list[dict[str, float]] = []
        for index in range(len(own)):
            report("calibrate", index, len(own) + 1)
            moved = {"float32": 0.0}
            for dtype in narrow:
                # bfloat16 is for numbers that float16 does not have.
                if fits[dtype][index] and not (dtype == "bfloat16" and fits.get("float16", nowhere)[index]):
                    trial.put(index, rounded[dtype][index])
                    moved[dtype] = trial.error()
            trial.put_back(index)
            errors.append(moved)
        warn_of_silent_layers(trial, [nodes[index] for index in own], rounded, errors)
        report("calibrate", len(own), len(own) + 1)
        names = [node or layer.name for node, layer in zip(nodes, asked_about(artifact.program.layers), strict=True)]
        search = _Search(trial, rounded, errors, [names[index] for index in own])
        natural = wide.natural()
        allowed, lossless = max_error, [natural[index] for index in own]
        for _ in range(_ROUNDS):
            # A type that loses nothing in as few bits is better than any measured one.
            types = [min(pair, key=nbytes_of) for pair in zip(lossless, search.run(allowed), strict=True)]
            by_layers = [types[number] for number in which]
            error = trial.error_of(compiled(lower(TypesInOrder(by_layers, evaluate, offered))))
            error = max([error, *(other.error_of(by_layers) for other in others)])
            if error <= max_error:
                break
            allowed *= _LESS * max_error / error
        else:
            _log.warning(
                "auto: however little is allowed, kernels on narrow weights move outputs by more than %.1e (%.1e): weights stay "
                "as they are",
                max_error, error,
            )  # fmt: skip
            types, error = lossless, 0.0
        report("calibrate", len(own) + 1, len(own) + 1)
        found = search.record(types, error, max_error)
    return Chosen(tuple(types[number] for number in which), tuple(errors[number] for number in which), found)


class _Search:
    """The fewest widenings, those worth most first, after which all layers together are within the error."""

    def __init__(
        self, trial: Trial, rounded: Mapping[str, list[list[Array]]], errors: list[dict[str, float]],
        names: Sequence[str],
    ) -> None:
        self._trial, self._rounded, self._errors, self._names = trial, rounded, errors, names
        self._sizes = [trial.nbytes(index) for index in range(len(trial.kept))]  # as float32
        self._ladders = [_ladder(found) for found in errors]
        moves = []
        for index, ladder in enumerate(self._ladders):
            for narrow, wide in pairwise(ladder):
                more = (nbytes_of(wide) - nbytes_of(narrow)) * self._sizes[index]
                moves.append(((errors[index][narrow] ** 2 - errors[index][wide] ** 2) / more, index, narrow, wide))
        self._moves = [move[1:] for move in sorted(moves, key=lambda move: -move[0])]
        self._now = ["float32"] * len(self._ladders)
        self._tried: list[tuple[int, float]] = []

    def run(self, max_error: float) -> list[str]:
        """The types of all layers."""
        errors = self._errors
        # After all moves nothing is narrow, and the error is 0. The end is within the error, or that.
        low, high = 0, len(self._moves)
        while low < high:
            middle = (low + high) // 2
            if self._apply(self._after(middle)) <= max_error:
                high = middle
            else:
                low = middle + 1
        best = self._after(low)
        error = self._apply(best)
        for index, narrow, wide in sorted(self._moves[:low], key=lambda move: -self._sizes[move[0]]):
            if best[index] == wide and error**2 + errors[index][narrow] ** 2 - errors[index][wide] ** 2 <= max_error**2:
                found = self._apply([narrow if i == index else dtype for i, dtype in enumerate(best)])
                if found <= max_error:
                    best[index], error = narrow, found
        assert error <= max_error, f"{error} with types that were found to be within {max_error}"
        return best

    def record(self, types: Sequence[str], error: float, max_error: float) -> WeightErrors:
        """The way from float32 to the narrowest types, and the trials on this way."""
        narrowings = []
        before = self._after(len(self._moves))
        for count in reversed(range(len(self._moves))):
            after = self._after(count)
            for index, dtype in enumerate(after):
                if dtype != before[index]:
                    done = nbytes_of(types[index]) <= nbytes_of(dtype)
                    narrowings.append(Narrowing(self._names[index], dtype, self._nbytes(after), self._together(after), done))
            before = after
        tried = tuple(dict.fromkeys([*self._tried, (self._nbytes(types), error)]))
        return WeightErrors(error, max_error, self._nbytes(types), sum(self._sizes), tuple(narrowings), tried)

    def _apply(self, wanted: Sequence[str]) -> float:
        for index, dtype in enumerate(wanted):
            if dtype != self._now[index]:
                if dtype == "float32":
                    self._trial.put_back(index)
                else:
                    self._trial.put(index, self._rounded[dtype][index])
                self._now[index] = dtype
        error = self._trial.error()
        self._tried.append((self._nbytes(wanted), error))
        return error

    def _after(self, count: int) -> list[str]:
        """The types after so many moves."""
        wanted = [ladder[0] for ladder in self._ladders]
        for index, _, wide in self._moves[:count]:
            wanted[index] = max(wanted[index], wide, key=nbytes_of)
        return wanted

    def _nbytes(self, types: Sequence[str]) -> int:
        return sum(int(size * nbytes_of(dtype) // 4) for size, dtype in zip(self._sizes, types, strict=True))

    def _together(self, types: Sequence[str]) -> float:
        """The error as those of the layers add up."""
        return math.hypot(*(found[dtype] for found, dtype in zip(self._errors, types, strict=True)))


def _ladder(errors: Mapping[str, float]) -> list[str]:
    """The types that are worth having, the narrowest first: each has a smaller error than all before; at last float32.

    That an error was 0 by itself says little of layers together: outputs may move in steps.
    """
    result: list[str] = []
    for dtype in sorted(errors.keys() - {"float32"}, key=lambda name: (nbytes_of(name), errors[name])):
        if not result or errors[dtype] < errors[result[-1]]:
            result.append(dtype)
    return [*result, "float32"]


def checked_max_error(value: object) -> float:
    """The value; raises InputError for an impossible error."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < 1:
        raise InputError(f"max_error={value!r} is not a part of the largest output between 0 and 1, such as 0.005")
    return float(value)
