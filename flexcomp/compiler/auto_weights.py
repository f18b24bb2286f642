"""`build(weights="auto")`: the fewest bytes of weights with which the outputs stay within an error.

The network is built for this machine with float32 weights, and its weights file is changed: a layer's weights become what
they are in a narrow type, one layer at a time, and the outputs on calibration inputs are compared with the unchanged ones.
That is done with values only; kernels, plans and rounding of everything else stay the same. Then all layers are narrowed as
far as they can be, and those that cost most error for the bytes they save are widened again until all of them together
are within the error. (Errors of layers are taken to be independent: their squares add up.) At last what was widened in vain is
narrowed again.
"""

from __future__ import annotations

import logging
import struct
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real
from pathlib import Path

import ml_dtypes
import numpy as np

from flexcomp.errors import InputError
from flexcomp.network import Network
from flexcomp.passes.fuse_attention import Evaluate
from flexcomp.program import Array, FirstArg, Layer, WeightErrors
from flexcomp.report import Progress
from flexcomp.runtime import load
from flexcomp.schedules.tiles.panel import WEIGHT_DTYPES

from .artifact import Artifact
from .calibration import Given, Inputs, inputs_of
from .weight_types import WeightTypes

_log = logging.getLogger(__name__)

# The narrowest first; a layer is widened to the next of these that has a smaller error.
_NARROW = ("int8", "float16", "bfloat16")

Lower = Callable[[WeightTypes], Network]  # for this machine, with one kernel a layer


@dataclass(frozen=True)
class Chosen:
    """For all layers with weights, as passes ask for them, what was chosen and what there was to choose from."""

    types: tuple[str, ...]
    errors: tuple[dict[str, float], ...]  # of the outputs, by the type of this layer's weights alone
    error: float  # with all weights as they were chosen

    def record(self, network: Network, layers: Sequence[Layer]) -> WeightErrors:
        """For a program with some of a network's layers."""
        names = [layer.name for layer in _asked_about(network.base.layers)]
        errors = dict(zip(names, self.errors, strict=True))
        return WeightErrors(self.error, tuple(errors.get(network.origins[layer.name]) for layer in layers))


def choose(
    lower: Lower,
    compiled: Callable[[Network], Artifact],
    evaluate: Evaluate,
    given: Given,
    max_error: float,
    offered: Collection[str],
    report: Progress,
) -> Chosen:
    """The types of those `offered` within `max_error` of the largest output, each output by its own, over all
    calibration inputs `given`.

    Raises InputError if the inputs do not fit the network, or all outputs on them are 0 or no numbers.
    """
    wide = WeightTypes("float32", evaluate)
    network = lower(wide)
    inputs = inputs_of(given, network.base.inputs)
    artifact, nodes = compiled(network), wide.nodes
    with tempfile.TemporaryDirectory(prefix="flexcomp-auto-") as folder:
        trial = _Trial(artifact, Path(folder), inputs)
        _require_telling(trial.wanted, "random inputs" if given is None else "the calibration inputs")
        assert len(trial.kept) == len(nodes), f"{len(nodes)} layers were asked about, {len(trial.kept)} have weights"
        rounded: dict[str, list[Array]] = {}
        fits: dict[str, list[bool]] = {}
        narrow, nowhere = [dtype for dtype in _NARROW if dtype in offered], [False] * len(nodes)
        for dtype in narrow:
            types = WeightTypes(dtype, evaluate, values_only=True)
            by_name = {name: array for name, array, _ in lower(types).weights}
            rounded[dtype] = [by_name[name] for name, _, _ in trial.kept]
            fits[dtype] = types.fits
        errors: list[dict[str, float]] = []
        for index in range(len(nodes)):
            report("calibrate", index, len(nodes) + 1)
            found = {"float32": 0.0}
            for dtype in narrow:
                # bfloat16 is for what float16 does not have.
                if fits[dtype][index] and not (dtype == "bfloat16" and fits.get("float16", nowhere)[index]):
                    trial.put(index, rounded[dtype][index])
                    found[dtype] = trial.error()
            trial.put(index, trial.kept[index][1])
            errors.append(found)
        _warn_of_silent_layers(trial, nodes, rounded, errors)
        report("calibrate", len(nodes), len(nodes) + 1)
        sizes = [array.nbytes for _, array, _ in trial.kept]
        types, error = _search(trial, rounded, errors, sizes, max_error)
        report("calibrate", len(nodes) + 1, len(nodes) + 1)
    return Chosen(tuple(types), tuple(errors), error)


def _search(
    trial: _Trial, rounded: Mapping[str, list[Array]], errors: list[dict[str, float]], sizes: list[int], max_error: float
) -> tuple[list[str], float]:
    """The fewest widenings, those worth most first, after which all layers together are within the error."""
    ladders = [_ladder(found) for found in errors]
    moves = []
    for index, ladder in enumerate(ladders):
        for narrow, wide in pairwise(ladder):
            more = (WEIGHT_DTYPES[wide] - WEIGHT_DTYPES[narrow]) * sizes[index]
            moves.append(((errors[index][narrow] ** 2 - errors[index][wide] ** 2) / more, index, narrow, wide))
    moves.sort(key=lambda move: -move[0])
    now = ["float32"] * len(ladders)

    def apply(wanted: Sequence[str]) -> float:
        for index, dtype in enumerate(wanted):
            if dtype != now[index]:
                trial.put(index, trial.kept[index][1] if dtype == "float32" else rounded[dtype][index])
                now[index] = dtype
        return trial.error()

    def after(count: int) -> list[str]:
        """The types after so many moves."""
        wanted = [ladder[0] for ladder in ladders]
        for _, index, _, wide in moves[:count]:
            wanted[index] = max(wanted[index], wide, key=WEIGHT_DTYPES.__getitem__)
        return wanted

    low, high = 0, len(moves)  # all of them: nothing is narrow, and the error is 0. The end is within the error, or that
    while low < high:
        middle = (low + high) // 2
        if apply(after(middle)) <= max_error:
            high = middle
        else:
            low = middle + 1
    best, error = after(low), apply(after(low))
    for _, index, narrow, wide in sorted(moves[:low], key=lambda move: -sizes[move[1]]):
        if best[index] == wide and error**2 + errors[index][narrow] ** 2 - errors[index][wide] ** 2 <= max_error**2:
            found = apply([narrow if i == index else dtype for i, dtype in enumerate(best)])
            if found <= max_error:
                best[index], error = narrow, found
    assert error <= max_error, f"{error} with types that were found to be within {max_error}"
    return best, error


def _ladder(errors: Mapping[str, float]) -> list[str]:
    """The types that are worth having, the narrowest first: each has a smaller error than those before it; at last float32.

    That an error was 0 by itself says little of layers together: outputs may move in steps.
    """
    result: list[str] = []
    for dtype in sorted(errors.keys() - {"float32"}, key=lambda name: (WEIGHT_DTYPES[name], errors[name])):
        if not result or errors[dtype] < errors[result[-1]]:
            result.append(dtype)
    return [*result, "float32"]


class _Trial:
    """A network in files whose weights are changed, and how far that moves its outputs."""

    def __init__(self, artifact: Artifact, folder: Path, inputs: Sequence[Inputs]) -> None:
        self._library, self._weights = folder / "network.so", folder / "network.weights"
        artifact.export_library(self._library)
        with self._weights.open("rb") as file:
            self._data = 8 + struct.unpack("<Q", file.read(8))[0]
        arrays = {offset: (name, array, offset) for name, array, offset in artifact.weights}
        self.kept = [arrays[layer.weights.offset] for layer in _asked_about(artifact.program.layers)]
        self._inputs = inputs
        self.wanted = [self._outputs(given) for given in inputs]

    def put(self, index: int, array: Array) -> None:
        """Change the weights of a layer."""
        with self._weights.open("r+b") as file:
            file.seek(self._data + self.kept[index][2])
            file.write(np.ascontiguousarray(np.asarray(array)).tobytes())

    def same(self, index: int, array: Array) -> bool:
        """Whether they are the weights that the layer has."""
        return np.array_equal(np.asarray(array), np.asarray(self.kept[index][1]))

    def error(self) -> float:
        """The largest difference from the outputs as they were, over the largest of them; infinite if one is no number."""
        worst = 0.0
        for given, wanted in zip(self._inputs, self.wanted, strict=True):
            for name, found in self._outputs(given).items():
                worst = max(worst, difference(found, wanted[name]))
        return worst

    def _outputs(self, given: Inputs) -> dict[str, np.ndarray]:
        with load(self._library) as session:
            return session.run(given)


def _require_telling(outputs: Sequence[Inputs], on: str) -> None:
    """InputError if outputs say nothing of errors, and a warning if some of them do not."""
    silent = [name for name in outputs[0] if not any(_tells(each[name]) for each in outputs)]
    if not silent:
        return
    words = f"{on} make {_listed(silent)} 0, or no numbers: they say nothing of errors"
    if len(silent) == len(outputs[0]):
        raise InputError(f"{words}; give calibration inputs that the network is for")
    _log.warning("%s there", words)


def _tells(output: np.ndarray) -> bool:
    """Whether there is something to compare with: other floats than 0."""
    if not is_float(output):
        return output.size > 0
    with np.errstate(invalid="ignore"):
        return bool(np.any(np.isfinite(output.astype(np.float64)) & (output != 0)))


def _warn_of_silent_layers(
    trial: _Trial, nodes: Sequence[str | None], rounded: Mapping[str, list[Array]], errors: Sequence[Mapping[str, float]]
) -> None:
    """Layers whose weights can be rounded to 8 bits without moving any output were not reached by the inputs, unless these
    weights lose nothing, or outputs move in steps.
    """
    if not any(is_float(output) for each in trial.wanted for output in each.values()):
        return
    silent = [
        nodes[index] or f"layer {index}"
        for index, found in enumerate(errors)
        if not any(found.values()) and any(not trial.same(index, arrays[index]) for arrays in rounded.values())
    ]
    if silent:
        _log.warning("the calibration inputs say nothing of %s: no output depends on their weights there", _listed(silent))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def is_float(array: np.ndarray) -> bool:
    """Whether outputs are compared by their distance."""
    return array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16


def difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference over the largest wanted value."""
    if not wanted.size:
        return 0.0
    if not is_float(wanted):
        return 0.0 if np.array_equal(found, wanted) else np.inf
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(invalid="ignore"):
        largest, apart = float(np.max(np.abs(wanted))), float(np.max(np.abs(found - wanted)))
    if not np.isfinite(apart):
        return 0.0 if np.array_equal(found, wanted, equal_nan=True) else np.inf
    return apart / largest if largest else (0.0 if not apart else np.inf)


def _asked_about(layers: Sequence[Layer]) -> list[Layer]:
    """Layers whose weights may have a type: tables of embeddings first, as the passes ask for them."""
    panels = [layer for layer in layers if any(isinstance(arg, FirstArg) for arg in layer.args)]
    return sorted(panels, key=lambda layer: layer.op != "take")


def checked_max_error(value: object) -> float:
    """The value; raises InputError if it is no error that can be kept."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < 1:
        raise InputError(f"max_error={value!r} is not a part of the largest output between 0 and 1, such as 0.005")
    return float(value)
