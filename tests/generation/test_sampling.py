"""Draws have the distribution that is asked for."""

import math

import pytest

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


@pytest.mark.parametrize(
    "given",
    [{"temperature": -1}, {"temperature": math.nan}, {"top_k": 1.5}, {"top_k": -1}, {"top_p": 0}, {"top_p": 1.1}, {"min_p": "x"},
     {"repetition_penalty": 0}, {"presence_penalty": math.inf}, {"seed": True}],
    ids=str,
)  # fmt: skip
def test_options_that_mean_nothing(given):
    with pytest.raises(InputError, match=next(iter(given))):
        Sampling(**given)
