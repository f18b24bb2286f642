"""What narrow weights cost, where their types were chosen by it: a record in the library, and its reading.

The record is the program's metadata "weights", a JSON object, so that the runtime need not know it:

    {"error": 0.0031,                            of the outputs, all weights as they are kept
     "layers": [{"int8": 0.002, …}, null, …]}    per layer of the program the error if only its weights were kept so

Errors are parts of the largest output, on the calibration inputs; null where outputs are no numbers any more, or other integers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flexcomp.errors import ArtifactError

from .program import Program

KEY = "weights"


@dataclass(frozen=True)
class WeightErrors:
    """The record."""

    error: float
    layers: tuple[Mapping[str, float | None] | None, ...]  # None: a layer whose weights have one type only

    def metadata(self) -> dict[str, str]:
        """For a program with these layers."""
        layers = [None if one is None else {k: v if math.isfinite(v) else None for k, v in one.items()} for one in self.layers]
        return {KEY: json.dumps({"error": self.error, "layers": layers}, separators=(",", ":"), allow_nan=False)}


def read(program: Program) -> WeightErrors | None:
    """The record of a program; None if its types were not chosen by errors. Raises ArtifactError if it is malformed."""
    if KEY not in program.metadata:
        return None
    try:
        facts = json.loads(program.metadata[KEY])
        layers = [None if one is None else _errors(one) for one in facts["layers"]]
        if len(layers) != len(program.layers):
            raise ValueError("layers and errors do not match")
        return WeightErrors(float(facts["error"]), tuple(layers))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ArtifactError(f"the record of the weights' errors is malformed: {error}") from None


def _errors(facts: dict) -> dict[str, float | None]:
    return {str(kind): None if error is None else float(error) for kind, error in facts.items()}


def kept_as(dtypes: Sequence[str]) -> str:
    """The element type of a layer's weights, of the types of its tensors: the narrowest."""
    order = ("int8", "float16", "bfloat16", "float32")
    return min(dtypes, key=lambda dtype: order.index(dtype) if dtype in order else len(order))
