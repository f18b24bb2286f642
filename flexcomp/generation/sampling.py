"""How the next token is chosen among all."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flexcomp.errors import ExecutionError, InputError
from flexcomp.generation.grammar import Constraint, Grammar

_LEAST_LOGPROB = -9999.0  # of a token that is impossible: JSON has no infinity
_FEW = 4096  # tokens that are drawn from at once
_LIKELY = 1e-5  # of the likeliest token's probability: less likely ones are drawn together
_SOME, _SURE = 32, 0.8  # of so many tokens one tells which are too unlikely for top_p, of so much of what these hold
_OTHERS = -1  # in the place of a token: those
_arrays = threading.local()  # of a vocabulary: new memory for each draw would take longer than computing
_GOLDEN, _ALL = 0x9E3779B97F4A7C15, (1 << 64) - 1


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
    `frequency_penalty`: the same, as often as they were there.
    `seed`: equal seeds give equal draws.
    `grammar`: only tokens with which the reply can be a text of the grammar remain; needs a `Text`.
    `logprobs`: the number of likeliest tokens to note at each place of the reply, with the one that was taken; None: nothing.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    seed: int | None = None
    frequency_penalty: float = 0.0
    grammar: Grammar | None = None
    logprobs: int | None = None

    def __post_init__(self) -> None:
        bounds = {
            "temperature": (0.0, math.inf), "top_k": (0, math.inf), "top_p": (0.0, 1.0), "min_p": (0.0, 1.0),
            "repetition_penalty": (0.0, math.inf), "presence_penalty": (-math.inf, math.inf),
            "frequency_penalty": (-math.inf, math.inf), "seed": (0, math.inf), "logprobs": (0, math.inf),
        }  # fmt: skip
        whole = ("top_k", "seed", "logprobs")
        for name, (least, most) in bounds.items():
            value = getattr(self, name)
            if name in ("seed", "logprobs") and value is None:
                continue
            kinds = (int, np.integer) if name in whole else (int, float, np.integer, np.floating)
            if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most or not math.isfinite(value):
                kind = "a whole number" if name in whole else "a number"
                raise InputError(f"{name} must be {kind} from {least} to {most}, not {value!r}")
        if not self.top_p or not self.repetition_penalty:
            raise InputError("top_p and repetition_penalty must be above 0: 1 has no effect")


class Chance(NamedTuple):
    """Logarithms of probabilities that the decoder gave: of the token that was taken, and of the likeliest at its place."""

    logprob: float
    likeliest: tuple[tuple[int, float], ...]


class Sampler:
    """Draws of one reply."""

    def __init__(
        self, sampling: Sampling, constraint: Constraint | None = None, never: Collection[int] = (),
        never_first: Collection[int] = (),
    ) -> None:  # fmt: skip
        """`constraint` follows the grammar of `sampling`. Tokens `never` are not drawn, nor those of `never_first` first."""
        self.sampling = sampling
        self._constraint = constraint
        self._never = np.array(sorted(never), np.int64)
        self._never_first = np.array(sorted({*never, *never_first}), np.int64)
        self._key = int(np.random.SeedSequence(sampling.seed).generate_state(1, np.uint64)[0])
        self._drawn = 0
        penalties = sampling.repetition_penalty != 1, sampling.presence_penalty, sampling.frequency_penalty
        self._is_penalised = any(penalties)

    def ahead(self) -> Sampler:
        """Draws as this one will from now on, without its grammar, of logits of another decoder.

        Of equal distributions equal tokens are drawn, and of similar ones mostly. Source: Daliri et al., "Coupling without
        Communication and Drafter-Invariant Speculative Decoding" (2024), section 2.
        """
        found = copy(self)
        found._constraint = None
        return found

    def draw(self, logits: np.ndarray, earlier: Sequence[int]) -> int:
        """The next token, by logits [vocabulary]; `earlier` are the tokens before it. Raises ExecutionError."""
        if not logits.max() < np.inf:  # not a number is the largest
            raise ExecutionError("the decoder's logits are no numbers: look at its weights, and at narrower types among them")
        if self._constraint is not None:
            logits = np.where(self._constraint.allowed(), logits, -np.inf)
        logits = self._without(logits, self._never if self._drawn else self._never_first)
        self._drawn += 1
        if not (self.sampling.temperature or self._is_penalised):
            return int(logits.argmax())
        tokens, rates = self._remaining(logits, earlier)
        if tokens is None and len(rates) <= _FEW:
            tokens = np.arange(len(rates))
        if tokens is not None:
            return int(tokens[self._first_of(tokens, rates)]) if len(tokens) > 1 else int(tokens[0])
        # Few tokens hold nearly all of the probability; which of the others it is is asked if one of those comes first.
        is_likely = rates > _LIKELY
        likely = np.flatnonzero(is_likely)
        others = max(rates.sum() - rates[likely].sum(), 0.0)
        first = self._first_of(np.append(likely, _OTHERS), np.append(rates[likely], others))
        if first < len(likely):
            return int(likely[first])
        unlikely = np.flatnonzero(~is_likely)
        return int(unlikely[self._first_of(unlikely, rates[unlikely])])

    def _first_of(self, tokens: np.ndarray, rates: np.ndarray) -> int:
        """Which comes first, of arrivals with these rates: each one's time depends on the draw and on the token alone."""
        return int(np.argmax(rates / -np.log(_uniform(self._key, self._drawn, tokens))))

    def _without(self, logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Logits by which none of these tokens is drawn."""
        if not len(tokens):
            return logits
        left = logits.copy()
        left[tokens[tokens < len(left)]] = -np.inf  # of a draft's, which may know fewer
        if np.isneginf(left.max()):
            raise ExecutionError("the model's files suppress all tokens that may follow: see suppress_tokens there")
        return left

    def chance(self, logits: np.ndarray, token: int) -> Chance | None:
        """Of a token by logits [vocabulary], if that is to be noted: before penalties and filters."""
        if (count := self.sampling.logprobs) is None:
            return None
        scores, parts = _doubles(len(logits))
        np.subtract(logits, logits.max(), out=scores)
        total = math.log(np.exp(scores, out=parts).sum())

        def logprob(one: int) -> float:
            return max(float(scores[one]) - total, _LEAST_LOGPROB)

        likeliest = sorted(_largest(scores, count).tolist() if count else (), key=lambda one: -scores[one])
        return Chance(logprob(token), tuple((one, logprob(one)) for one in likeliest))

    def completes(self, token: int) -> bool:
        """Note a token that was drawn; whether it completes a text of the grammar after which nothing may come."""
        return self._constraint is not None and self._constraint.take(token)

    def distribution(self, logits: np.ndarray, earlier: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that remain, in any order, and their probabilities."""
        tokens, rates = self._remaining(logits, earlier)
        return (np.arange(len(rates)) if tokens is None else tokens), rates / rates.sum()

    def _remaining(self, logits: np.ndarray, earlier: Sequence[int]) -> tuple[np.ndarray | None, np.ndarray]:
        """The same, until the next draw in this thread: None for all tokens, and probabilities over that of the likeliest."""
        asked = self.sampling
        scores, rates = _doubles(len(logits))
        np.copyto(scores, logits)
        if self._is_penalised:
            self._penalise(scores, earlier)
        if not asked.temperature:
            return np.array([scores.argmax()]), np.ones(1)
        if asked.temperature != 1:
            scores /= asked.temperature
        tokens = None
        if asked.top_k:
            tokens = _largest(scores, asked.top_k)
            scores = rates = scores[tokens]
        np.exp(np.subtract(scores, scores.max(), out=rates), out=rates)
        if asked.top_p < 1:
            kept = _holding(rates, asked.top_p)
            tokens, rates = kept if tokens is None else tokens[kept], rates[kept]
        if asked.min_p:
            kept = np.flatnonzero(rates >= asked.min_p)
            tokens, rates = kept if tokens is None else tokens[kept], rates[kept]
        return tokens, rates

    def _penalise(self, scores: np.ndarray, earlier: Sequence[int]) -> None:
        asked = self.sampling
        seen, counts = np.unique(np.asarray(earlier, np.int64), return_counts=True)
        if asked.repetition_penalty != 1:
            factor = asked.repetition_penalty
            scores[seen] = np.where(scores[seen] > 0, scores[seen] / factor, scores[seen] * factor)
        scores[seen] -= asked.presence_penalty + asked.frequency_penalty * counts


def _doubles(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Two arrays of the thread, which the next call gives again."""
    found = getattr(_arrays, "found", None)
    if found is None or found.shape[1] < count:
        _arrays.found = found = np.empty((2, count))
    return found[0, :count], found[1, :count]


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Where the `count` largest are; of equal ones the first. A vocabulary is not sorted for a few."""
    if count >= len(values):
        return np.arange(len(values))
    least = np.partition(values, -count)[-count]
    return _down_to(values, least, count, np.flatnonzero(values >= least))


def _down_to(values: np.ndarray, least: float, count: int, among: np.ndarray) -> np.ndarray:
    """Where the `count` largest are, of which `least` is the least, of these places."""
    if len(among) > count:
        above, equal = (among[np.flatnonzero(is_one)] for is_one in (values[among] > least, values[among] == least))
        among = np.concatenate([above, equal[: count - len(above)]])
    return among


def _holding(rates: np.ndarray, bound: float) -> np.ndarray:
    """Where the fewest largest are that hold this part of all together, the one that crosses the bound included."""
    total = rates.sum()
    others = (1 - bound) * total
    some = np.sort(rates[::_SOME])
    guessed = some[min(int(np.searchsorted(np.cumsum(some), _SURE * others / _SOME)), len(some) - 1)]
    for least in (guessed, others / len(rates), 0.0):  # the last one for sums that are rounded
        found = np.flatnonzero(rates >= least)
        ordered = np.sort(rates[found])[::-1]
        sums = np.cumsum(ordered / total)
        if sums[-1] >= bound:
            break
    count = min(int(np.searchsorted(sums, bound)) + 1, len(found))
    return _down_to(rates, ordered[count - 1], count, found)


def _uniform(key: int, draw: int, tokens: np.ndarray) -> np.ndarray:
    """Numbers between 0 and 1, of a key, the number of a draw, and a token. Source: SplitMix64, Steele et al. (2014)."""
    mixed = _mixed(np.array([key + draw * _GOLDEN & _ALL], np.uint64))  # arithmetic of arrays wraps around
    bits = _mixed(mixed + tokens.astype(np.uint64) * np.uint64(_GOLDEN))
    return ((bits >> np.uint64(11)) + 0.5) / 2.0**53


def _mixed(bits: np.ndarray) -> np.ndarray:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))
