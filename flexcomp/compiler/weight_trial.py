"""A network whose weights are changed one layer at a time, to see the effect on its outputs."""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from flexcomp.deferred import Array
from flexcomp.errors import InputError
from flexcomp.network import Network
from flexcomp.program import FirstArg, Layer, WeightArg
from flexcomp.runtime import load

from .artifact import Artifact
from .calibration import Inputs

_log = logging.getLogger(__name__)
_RECURRENT = ("lstm", "gru", "rnn")


class Trial:
    """A network in files whose weights are changed, and how far that moves its outputs."""

    def __init__(self, artifact: Artifact, folder: Path, inputs: Sequence[Inputs]) -> None:
        self._library, self._weights = folder / "network.so", folder / "network.weights"
        artifact.export_library(self._library)
        with self._weights.open("rb") as file:
            self._data = 8 + struct.unpack("<Q", file.read(8))[0]
        # Of each layer (name, array, offset) of its panels: gated networks may have two.
        self.kept = [_panels(layer, artifact.weights) for layer in asked_about(artifact.program.layers)]
        self._inputs = inputs
        self.wanted = self._outputs(self._library)

    def put(self, index: int, arrays: Sequence[Array]) -> None:
        """Change the weights of a layer."""
        with self._weights.open("r+b") as file:
            for (_, _, offset), array in zip(self.kept[index], arrays, strict=True):
                file.seek(self._data + offset)
                file.write(np.ascontiguousarray(np.asarray(array)).tobytes())

    def put_back(self, index: int) -> None:
        """The weights that the layer has."""
        self.put(index, [array for _, array, _ in self.kept[index]])

    def same(self, index: int, arrays: Sequence[Array]) -> bool:
        """Whether these are the layer's weights."""
        pairs = zip(self.kept[index], arrays, strict=True)
        return all(np.array_equal(np.asarray(array), np.asarray(kept)) for (_, kept, _), array in pairs)

    def nbytes(self, index: int) -> int:
        """Of the weights that the layer has."""
        return sum(array.nbytes for _, array, _ in self.kept[index])

    def error(self) -> float:
        """The largest difference from the unchanged outputs, over the largest of these; infinite if one is no number."""
        return self._error(self._library)

    def error_of(self, artifact: Artifact) -> float:
        """The same of another build of the network."""
        library = self._library.with_name("other.so")
        artifact.export_library(library)
        return self._error(library)

    def _error(self, library: Path) -> float:
        worst = 0.0
        for outputs, wanted in zip(self._outputs(library), self.wanted, strict=True):
            for name, found in outputs.items():
                worst = max(worst, difference(found, wanted[name]))
        return worst

    def _outputs(self, library: Path) -> list[dict[str, np.ndarray]]:
        with load(library) as session:
            return [session.run(given) for given in self._inputs]


def require_telling(outputs: Sequence[Inputs], on: str) -> None:
    """InputError if outputs say nothing of errors, and a warning if some of them do not."""
    silent = [name for name in outputs[0] if not any(tells(each[name]) for each in outputs)]
    if not silent:
        return
    words = f"{on} make {_listed(silent)} 0, or no numbers: they say nothing of errors"
    if len(silent) == len(outputs[0]):
        raise InputError(f"{words}; give calibration inputs that the network is for")
    _log.warning("%s there", words)


def tells(output: np.ndarray) -> bool:
    """Whether there is something to compare with: other floats than 0."""
    if not is_float(output):
        return output.size > 0
    with np.errstate(invalid="ignore"):
        return bool(np.any(np.isfinite(output.astype(np.float64)) & (output != 0)))


def warn_of_silent_layers(
    trial: Trial, nodes: Sequence[str | None], rounded: Mapping[str, list[list[Array]]], errors: Sequence[Mapping[str, float]]
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


def asked_about(layers: Sequence[Layer]) -> list[Layer]:
    """Layers whose weights may have a type, as the passes ask for them: tables of embeddings, recurrent layers, all others."""
    order = {"take": 0, **dict.fromkeys(_RECURRENT, 1)}

    def is_asked(layer: Layer) -> bool:
        if layer.op in _RECURRENT:
            return isinstance(layer.args[1], WeightArg)  # its first panel
        return layer.fetched is not None or any(isinstance(arg, FirstArg) for arg in layer.args)

    return sorted(filter(is_asked, layers), key=lambda layer: order.get(layer.op, 2))


def by_layer(network: Network, layers: Sequence[Layer], errors: Sequence[Any]) -> tuple[Any, ...]:
    """Of errors of all layers with weights, those of some of a network's layers; None for others."""
    names = [layer.name for layer in asked_about(network.base.layers)]
    found = dict(zip(names, errors, strict=True))
    return tuple(found.get(network.origins[layer.name]) for layer in layers)


def _panels(layer: Layer, weights: Sequence[tuple[str, Array, int]]) -> list[tuple[str, Array, int]]:
    assert layer.weights is not None
    return [one for one in weights if 0 <= one[2] - layer.weights.offset < layer.weights.nbytes]
