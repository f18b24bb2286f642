"""How the next token is chosen among all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flexcomp.errors import ExecutionError, InputError


@dataclass(frozen=True)
class Sampling:
    """Filters of the distribution of the next token, in the order of transformers: penalties, temperature, top-k, top-p, min-p.

    The defaults choose the most likely token.
    `temperature`: a divisor of logits; 0: the most likely token.
    `top_k`: the number of most likely tokens that remain; 0: all.
    `top_p`: the fewest most likely tokens whose probabilities add up to this remain.
    `min_p`: tokens with less than this part of the most likely token's probability are dropped.
    `repetition_penalty`: divides positive logits of earlier tokens, and multiplies negative ones (CTRL, section 4.1).
    `presence_penalty`: is subtracted from the logits of earlier tokens.
    `seed`: equal seeds give equal draws.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        bounds = {
            "temperature": (0.0, math.inf), "top_k": (0, math.inf), "top_p": (0.0, 1.0), "min_p": (0.0, 1.0),
            "repetition_penalty": (0.0, math.inf), "presence_penalty": (-math.inf, math.inf), "seed": (0, math.inf),
        }  # fmt: skip
        whole = ("top_k", "seed")
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            if name == "seed" and value is None:
                continue
            kinds = (int, np.integer) if name in whole else (int, float, np.integer, np.floating)
            if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most or not math.isfinite(value):
                kind = "a whole number" if name in whole else "a number"
                raise InputError(f"{name} must be {kind} from {least} to {most}, not {value!r}")
        if not self.top_p or not self.repetition_penalty:
            raise InputError("top_p and repetition_penalty must be above 0: 1 has no effect")


class Sampler:
    """Draws of one reply."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def draw(self, logits: np.ndarray, earlier: Sequence[int]) -> int:
        """The next token, by logits [vocabulary]; `earlier` are the tokens before it. Raises ExecutionError."""
        if np.isnan(logits).any() or np.isposinf(logits).any():
            raise ExecutionError("the decoder's logits are no numbers: look at its weights, and at narrower types among them")
        tokens, parts = self.distribution(logits, earlier)
        return int(tokens[0] if len(tokens) == 1 else self._random.choice(tokens, p=parts))

    def distribution(self, logits: np.ndarray, earlier: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that remain, the most likely first, and their probabilities."""
        asked = self.sampling
        scores = self._penalised(logits.astype(np.float64), earlier)
        if not asked.temperature:
            return np.array([scores.argmax()]), np.ones(1)
        scores /= asked.temperature
        order = np.argsort(-scores, kind="stable")[: asked.top_k or None]
        parts = _softmax(scores[order])
        if asked.top_p < 1:  # as many as hold so much, the one that crosses the bound included
            kept = np.concatenate([[0.0], np.cumsum(parts)[:-1]]) < asked.top_p
            order, parts = order[kept], _softmax(scores[order[kept]])
        if asked.min_p:
            kept = parts >= asked.min_p * parts[0]
            order, parts = order[kept], _softmax(scores[order[kept]])
        return order, parts

    def _penalised(self, scores: np.ndarray, earlier: Sequence[int]) -> np.ndarray:
        asked = self.sampling
        if asked.repetition_penalty == 1 and not asked.presence_penalty:
            return scores
        seen = np.unique(np.asarray(earlier, np.int64))
        if asked.repetition_penalty != 1:
            factor = asked.repetition_penalty
            scores[seen] = np.where(scores[seen] > 0, scores[seen] / factor, scores[seen] * factor)
        scores[seen] -= asked.presence_penalty
        return scores


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()
