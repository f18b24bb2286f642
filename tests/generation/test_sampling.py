"""Draws have the distribution that is asked for."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.special import chdtri

from flexcomp.errors import ExecutionError, InputError
from flexcomp.generation.sampling import Sampler, Sampling
from tests.generation.draws import EARLIER, LOGITS, SETS, reference, statistic


@pytest.mark.parametrize("given", SETS, ids=lambda given: "+".join(given) or "plain")
def test_distributions(given):
    wanted = reference(**given)
    sampler = Sampler(Sampling(**{"temperature": 1.0, "seed": 5, **given}))
    tokens, found = sampler.distribution(LOGITS, EARLIER)
    assert dict(zip(tokens.tolist(), found, strict=True)) == pytest.approx(wanted)
    square, bound = statistic(sampler, wanted, 2000)
    assert len(wanted) > 2 and square < bound


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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_suppressed_tokens_are_not_drawn(temperature):
    """As by SuppressTokensLogitsProcessor and SuppressTokensAtBeginLogitsProcessor of transformers."""
    order, given = np.argsort(-LOGITS), LOGITS.copy()
    sampler = Sampler(Sampling(temperature=temperature, top_k=1), never=[order[0], order[2]], never_first=[order[1]])
    assert [sampler.draw(LOGITS, EARLIER) for _ in range(3)] == [order[3], order[1], order[1]]
    np.testing.assert_array_equal(LOGITS, given)
    with pytest.raises(ExecutionError, match="suppress all tokens that may follow"):
        Sampler(Sampling(), never=range(len(LOGITS))).draw(LOGITS, EARLIER)


@pytest.mark.parametrize(
    "given",
    [{"temperature": -1}, {"temperature": math.nan}, {"top_k": 1.5}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.1}, {"min_p": "x"},
     {"repetition_penalty": 0}, {"presence_penalty": math.inf}, {"seed": True}],
    ids=str,
)  # fmt: skip
def test_options_that_mean_nothing(given):
    with pytest.raises(InputError, match=next(iter(given))):
        Sampling(**given)


def normal(width):
    return lambda rng: rng.normal(0, width, 20_000)


def mostly_elsewhere(rng):
    """Every 32nd token says nothing of the others."""
    logits = np.full(20_000, -30.0)
    logits[1::50], logits[0] = rng.normal(0, 0.1, 400), 5
    return logits


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.999999])
@pytest.mark.parametrize("made", [normal(0.01), normal(3.0), mostly_elsewhere], ids=["flat", "normal", "elsewhere"])
def test_top_p_of_many_tokens(top_p, made):
    """With few of 20,000 tokens that hold it, or nearly all of them."""
    logits = made(np.random.default_rng(2)).astype("float32")
    tokens, parts = Sampler(Sampling(temperature=1.0, top_p=top_p)).distribution(logits, [])
    exact = np.exp(logits.astype("float64"))
    exact /= exact.sum()
    order = np.argsort(-exact, kind="stable")
    count = int(np.searchsorted(np.cumsum(exact[order]), top_p)) + 1
    assert sorted(tokens) == sorted(order[:count]) and parts.sum() == pytest.approx(1)
    assert parts == pytest.approx(exact[tokens] / exact[tokens].sum())


def test_of_many_tokens_unlikely_ones_are_drawn_as_often_as_they_should_be():
    """Each takes a hundred-thousandth of the probability at most, and all of them a third."""
    logits = np.random.default_rng(4).normal(-3.52, 0.05, 200_000).astype("float32")
    likely = [7, 70_000, 199_999]
    logits[likely] = 8.5, 8.3, 8.0
    exact = np.exp(logits.astype("float64"))
    sampler, bins = Sampler(Sampling(temperature=1.0, seed=1)), np.linspace(0, len(logits), 4)
    draws = [sampler.draw(logits, []) for _ in range(600)]
    found = [draws.count(one) for one in likely]
    found += np.histogram([one for one in draws if one not in likely], bins)[0].tolist()
    parts = [exact[one] for one in likely]
    exact[likely] = 0
    parts = np.array([*parts, *(exact[int(a) : int(b)].sum() for a, b in pairwise(bins))])
    expected = len(draws) * parts / parts.sum()
    assert expected[3:].sum() > 100 and ((found - expected) ** 2 / expected).sum() < chdtri(5, 1e-3)


def test_chances_of_many_tokens():
    logits = np.random.default_rng(2).normal(0, 3, 20_000).astype("float32")
    logits[5] = -math.inf
    exact = logits.astype("float64") - np.log(np.exp(logits.astype("float64")).sum())
    chance = Sampler(Sampling(logprobs=5)).chance(logits, 17)
    assert chance.logprob == pytest.approx(exact[17])
    assert [token for token, _ in chance.likeliest] == np.argsort(-exact)[:5].tolist()
    assert [one for _, one in chance.likeliest] == pytest.approx(np.sort(exact)[:-6:-1])
    assert Sampler(Sampling(logprobs=0)).chance(logits, 5) == (-9999.0, ())


def test_of_equal_tokens_the_first_are_among_the_largest():
    logits = np.array([1, 3, 1, 3, 1, 1], "float32")
    for count, wanted in ((1, {1}), (2, {1, 3}), (3, {0, 1, 3}), (5, {0, 1, 2, 3, 4}), (9, set(range(6)))):
        tokens, _ = Sampler(Sampling(temperature=1.0, top_k=count)).distribution(logits, [])
        assert set(tokens.tolist()) == wanted
