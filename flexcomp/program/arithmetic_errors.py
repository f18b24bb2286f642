"""The errors of layers computed in 16 bits, where these decided which ones are: a record in the library, and its reading.

The record is the program's metadata "arithmetic", a JSON object, unknown to the runtime:

    {"error": 0.0031,                of the outputs, all layers as they are computed
     "max_error": 0.005,             which was asked for
     "layers": [0.002, "range", null, …]}
                                     per layer of the program the error if it alone is computed in 16 bits; "range": its
                                     weights or values leave the range; null: it has no weights, or was not tried

Errors are parts of the largest output, on the calibration inputs.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

from flexcomp.errors import ArtifactError
from flexcomp.json_text import parse, real

from .program import Layer, Program

KEY = "arithmetic"
_RANGE = "range"
_COMPUTED = re.compile(r", computed in (b?float16|int8)$")  # as schedules/tiles/spec.py describes such a layer


@dataclass(frozen=True)
class ArithmeticErrors:
    """The record; infinite errors of layers are those beyond the range."""

    error: float
    max_error: float
    layers: tuple[float | None, ...]

    def metadata(self) -> dict[str, str]:
        """For a program with these layers."""
        layers = [_RANGE if error is not None and math.isinf(error) else error for error in self.layers]
        record = {"error": self.error, "max_error": self.max_error, "layers": layers}
        return {KEY: json.dumps(record, separators=(",", ":"), allow_nan=False)}


def read(program: Program) -> ArithmeticErrors | None:
    """The record of a program; None if its arithmetic was not chosen by errors. Raises ArtifactError for a malformed one."""
    if KEY not in program.metadata:
        return None
    try:
        facts = parse(program.metadata[KEY])
        layers = tuple(math.inf if error == _RANGE else _error(error) for error in facts["layers"])
        if len(layers) != len(program.layers):
            raise ValueError("layers and errors do not match")
        error, most = _error(facts["error"]), _error(facts["max_error"])
        if error is None or most is None:
            raise ValueError("there is no error")
        return ArithmeticErrors(error, most, layers)
    except (ValueError, TypeError, KeyError) as error:
        raise ArtifactError(f"the record of the arithmetic's errors is malformed: {error}") from None


def computed_in(layer: Layer) -> str | None:
    """What a layer with weights multiplies: "float16", "bfloat16", "int8" in blocks, or "float32"; None without weights."""
    if layer.weights is None:
        return None
    found = _COMPUTED.search(layer.description)
    return found[1] if found else "float32"


def _error(error: object) -> float | None:
    if error is None:
        return None
    if (found := real(error)) < 0:
        raise ValueError(f"an error is {found}")
    return found
