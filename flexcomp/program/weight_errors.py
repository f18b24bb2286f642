"""The errors of narrow weights, where these decided their types: a record in the library, and its reading.

The record is the program's metadata "weights", a JSON object, unknown to the runtime:

    {"error": 0.0031,                            of the outputs, all weights as they are kept
     "max_error": 0.005,                         which was asked for
     "bytes": [1200, 4000],                      of these weights as they are kept, and as float32
     "narrowings": [["/conv", "int8", 3000, 0.0001, true], …]
                                                 the way to the narrowest: a layer, its type, bytes of all layers
                                                 after it, error as those of layers add up, and whether it was done
     "tried": [[2500, 0.004], …]                 bytes of all layers, and the error as it was measured
     "layers": [{"int8": 0.002, …}, null, …]}    per layer of the program the error if only its weights were kept so

Errors are parts of the largest output, on the calibration inputs; null where outputs are no numbers any more, or other integers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from flexcomp.errors import ArtifactError
from flexcomp.json_text import parse, real, whole

from .program import Layer, Program, WeightArg

KEY = "weights"
_FOUR_BITS = "int4 in blocks of"  # as schedules/tiles/blocks.py has the type


@dataclass(frozen=True)
class Narrowing:
    """A step on the way from float32 to the narrowest types, those first with least error for the saved bytes."""

    layer: str  # its node, or its name
    dtype: str
    nbytes: int  # of all layers' weights after this step
    error: float | None  # of the outputs after this step, as the errors of layers add up
    done: bool  # whether the layer's weights are kept so, or in fewer bits


@dataclass(frozen=True)
class WeightErrors:
    """The record."""

    error: float
    max_error: float
    nbytes: int
    float32_nbytes: int
    narrowings: tuple[Narrowing, ...]
    tried: tuple[tuple[int, float | None], ...]
    layers: tuple[Mapping[str, float | None] | None, ...] = ()  # None: a layer whose weights have one type only

    def metadata(self) -> dict[str, str]:
        """For a program with these layers."""
        record = {
            "error": self.error,
            "max_error": self.max_error,
            "bytes": [self.nbytes, self.float32_nbytes],
            "narrowings": [[n.layer, n.dtype, n.nbytes, _rounded(n.error), n.done] for n in self.narrowings],
            "tried": [[nbytes, _rounded(error)] for nbytes, error in self.tried],
            "layers": [None if one is None else {k: _finite(v) for k, v in one.items()} for one in self.layers],
        }
        return {KEY: json.dumps(record, separators=(",", ":"), allow_nan=False, ensure_ascii=False)}


def read(program: Program) -> WeightErrors | None:
    """The record of a program; None if its types were not chosen by errors. Raises ArtifactError for a malformed one."""
    if KEY not in program.metadata:
        return None
    try:
        facts = parse(program.metadata[KEY])
        layers = [None if one is None else _errors(one) for one in facts["layers"]]
        if len(layers) != len(program.layers):
            raise ValueError("layers and errors do not match")
        nbytes, float32_nbytes = map(whole, facts["bytes"])
        narrowings = tuple(Narrowing(str(n), str(t), whole(b), _number(e), bool(d)) for n, t, b, e, d in facts["narrowings"])
        tried = tuple((whole(size), _number(error)) for size, error in facts["tried"])
        error, most = real(facts["error"]), real(facts["max_error"])
        return WeightErrors(error, most, nbytes, float32_nbytes, narrowings, tried, tuple(layers))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ArtifactError(f"the record of the weights' errors is malformed: {error}") from None


def _errors(facts: dict) -> dict[str, float | None]:
    return {str(kind): _number(error) for kind, error in facts.items()}


def _number(error: object) -> float | None:
    return None if error is None else real(error)


def _finite(error: float | None) -> float | None:
    return error if error is not None and math.isfinite(error) else None


def _rounded(error: float | None) -> float | None:
    """To three digits, which is all that a picture shows."""
    return None if _finite(error) is None else float(f"{error:.3g}")


def kept_by(layer: Layer) -> str | None:
    """The element type of a layer's weights, of the types of its tensors the narrowest; None without weights.

    Tensors of bytes that hold two integers each are known by the layer's description.
    """
    order = ("int8", "float16", "bfloat16", "float32")
    kinds = [arg.type.dtype for arg in layer.args if isinstance(arg, WeightArg)]
    if kinds and _FOUR_BITS in layer.description:
        return "int4"
    return min(kinds, key=lambda dtype: order.index(dtype) if dtype in order else len(order), default=None)
