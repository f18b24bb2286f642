"""An encoder's folder: one input for each fact of a token, and shapes for texts of several lengths, padded in between."""

from __future__ import annotations

from collections.abc import Mapping

from flexcomp.generation.names import IDS, MASKS, POOLED, ROWS, TYPES

_LENGTHS = (16, 64, 256)  # of texts, besides the longest

Extents = tuple[int | None, ...]


def is_encoder(inputs: Mapping[str, Extents], outputs: Mapping[str, Extents]) -> bool:
    """Whether these are the inputs and outputs of a network that makes rows, or one row, of the tokens of a text."""
    known = (*IDS, *MASKS, *TYPES)
    return all(name in known for name in inputs) and any(name in (*POOLED, *ROWS) for name in outputs)


def encoder_shapes(
    inputs: Mapping[str, Extents], longest: int, pad: int, tokens: str
) -> tuple[dict[str, tuple[int | str, ...]], dict[str, list[int]], dict[str, int]]:
    """`input_shapes`, `shapes` and `pad` of a build, for texts of up to `longest` tokens; `pad` is the token that pads."""
    shapes: dict[str, tuple[int | str, ...]] = dict.fromkeys(inputs, (1, tokens))
    lengths = [*(length for length in _LENGTHS if length < longest), longest]
    return shapes, {tokens: lengths}, {name: pad if name in IDS else 0 for name in inputs}
