"""Draws have the distribution that is asked for."""

import math
from itertools import combinations

import numpy as np
import pytest

from flexcomp.errors import ExecutionError, InputError
from flexcomp.generation.sampling import Sampler, Sampling

LOGITS = np.random.default_rng(3).normal(0, 2, 12).astype("float32")
EARLIER = [2, 2, 7]
OPTIONS = {
    "temperature": 0.7, "top_k": 5, "top_p": 0.8, "min_p": 0.1, "repetition_penalty": 1.4, "presence_penalty": 0.9,
    "frequency_penalty": 0.6,
}  # fmt: skip


def reference(
    temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0
) -> dict[int, float]:
    """Token by token, in plain Python."""
    scores = {}
    for token, score in enumerate(map(float, LOGITS)):
        if token in EARLIER:
            score = score / repetition_penalty if score > 0 else score * repetition_penalty
            score -= presence_penalty + EARLIER.count(token) * frequency_penalty
        scores[token] = score / temperature

    def parts(tokens):
        total = sum(math.exp(scores[token]) for token in tokens)
        return {token: math.exp(scores[token]) / total for token in tokens}

    left = sorted(scores, key=lambda token: -scores[token])
    if top_k:
        left = left[:top_k]
    before, kept = 0.0, []
    for token in left:
        if before < top_p:
            kept.append(token)
        before += parts(left)[token]
    left = [token for token in kept if parts(kept)[token] >= min_p * parts(kept)[kept[0]]]
    return parts(left)


SETS = [{}, *({name: OPTIONS[name]} for name in OPTIONS), *({a: OPTIONS[a], b: OPTIONS[b]} for a, b in combinations(OPTIONS, 2))]


@pytest.mark.parametrize("given", SETS, ids=lambda given: "+".join(given) or "plain")
def test_distributions(given):
    wanted = reference(**given)
    sampler = Sampler(Sampling(**{"temperature": 1.0, "seed": 5, **given}))
    tokens, found = sampler.distribution(LOGITS, EARLIER)
    assert dict(zip(tokens.tolist(), found, strict=True)) == pytest.approx(wanted)
    draws = 4000
    counts = np.bincount([sampler.draw(LOGITS, EARLIER) for _ in range(draws)], minlength=len(LOGITS))
    expected = np.array([draws * wanted.get(token, 0.0) for token in range(len(LOGITS))])
    assert not counts[expected == 0].any()
    statistic = (((counts - expected) ** 2)[expected > 0] / expected[expected > 0]).sum()
    assert statistic < 40  # 11 degrees of freedom at most: once in 30,000


def test_without_a_temperature_the_most_likely_token_is_taken():
    wanted = reference(repetition_penalty=1.4)
    assert Sampler(Sampling(repetition_penalty=1.4)).draw(LOGITS, EARLIER) == max(wanted, key=wanted.get)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers(bad):
    logits = LOGITS.copy()
    logits[3] = bad
    with pytest.raises(ExecutionError, match="no numbers"):
        Sampler(Sampling()).draw(logits, [])


def test_logits_of_tokens_that_are_ruled_out():
    logits = LOGITS.copy()
    logits[:6] = -math.inf
    sampler = Sampler(Sampling(temperature=1.0, seed=1))
    assert min(sampler.draw(logits, EARLIER) for _ in range(200)) >= 6


@pytest.mark.parametrize(
    "given",
    [{"temperature": -1}, {"temperature": math.nan}, {"top_k": 1.5}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.1}, {"min_p": "x"},
     {"repetition_penalty": 0}, {"presence_penalty": math.inf}, {"seed": True}],
    ids=str,
)  # fmt: skip
def test_options_that_mean_nothing(given):
    with pytest.raises(InputError, match=next(iter(given))):
        Sampling(**given)
