"""Tokens through the C interface: those of Python's Generator, in any budget."""

from __future__ import annotations

from ctypes import byref, c_float, c_int64, c_void_p

import numpy as np
import pytest

import flexcomp
from flexcomp import Generator
from tests.api import bindings as api
from tests.api.bindings import refused
from tests.exporters.genai import VOCABULARY
from tests.generation.decoders import FORM, SIZES

RNG = np.random.default_rng(9)


def numbers(tokens):
    return (c_int64 * len(tokens))(*tokens)


def decoded(session, position, tokens):
    """The logits after these tokens, and the likeliest one."""
    logits, following = (c_float * VOCABULARY)(), c_int64()
    api.done("decode", session, position, numbers(tokens), len(tokens), logits, byref(following))
    assert following.value == np.argmax(np.ctypeslib.as_array(logits))
    return np.array(logits), following.value


@pytest.fixture(params=[api.SMALLEST, api.ALL], ids=["min", "all"])
def session(decoder_library, request):
    opened = api.opened(decoder_library, budget=request.param, threads=1)
    yield opened
    api.call("close", opened)


def test_it_describes_itself(session):
    info = api.given("describe_decoder", api.DecoderInfo, session)
    assert (info.vocabulary, info.capacity, info.longest) == (VOCABULARY, FORM.capacity, max(SIZES))


@pytest.mark.parametrize("length", [1, 3, 8, 9, 17])
def test_greedy_tokens_are_those_of_python(session, decoder_library, length):
    prompt = RNG.integers(0, VOCABULARY, length).tolist()
    with flexcomp.load(decoder_library, "min", threads=1) as opened:
        wanted = list(Generator(opened).reply(prompt, 12))
    found, position, rest = [], 0, prompt
    for _ in wanted:
        _, token = decoded(session, position, rest)
        position += len(rest)
        rest = [token]
        found.append(token)
    assert found == wanted


def test_logits_are_those_of_a_text_taken_anew(session):
    """Also after tokens were taken back, and after calls that failed."""
    text = RNG.integers(0, VOCABULARY, 21).tolist()
    whole, _ = decoded(session, 0, text)
    decoded(session, 5, RNG.integers(0, VOCABULARY, 9).tolist())
    refused(api.INPUT, "decode", session, 5, numbers([VOCABULARY]), 1, None, None, says=f"numbers from 0 to {VOCABULARY - 1}")
    api.done("decode", session, 5, numbers(text[5:12]), 7, None, None)
    again, _ = decoded(session, 12, text[12:])
    np.testing.assert_allclose(again, whole, rtol=1e-4, atol=1e-5)


def test_the_budget_may_change_between_tokens(session, decoder_library):
    text = RNG.integers(0, VOCABULARY, 30).tolist()
    whole, _ = decoded(session, 0, text)
    for at in range(0, 30, 3):
        api.done("set_budget", session, (api.SMALLEST, api.ALL)[at // 3 % 2])
        found, _ = decoded(session, at, text[at : at + 3])
    np.testing.assert_allclose(found, whole, rtol=1e-4, atol=1e-5)


def test_the_last_place_of_the_caches(session):
    text = RNG.integers(0, VOCABULARY, 3).tolist()
    api.done("decode", session, FORM.capacity - 3, numbers(text), 3, None, None)
    refused(api.INPUT, "decode", session, FORM.capacity - 2, numbers(text), 3, None, None, says=f"places for: {FORM.capacity}")
    refused(api.INPUT, "decode", session, FORM.capacity + 1, numbers(text), 1, None, None, says="places for")
    refused(api.INPUT, "decode", session, 2**64 - 1, numbers(text), 3, None, None, says="places for")


def test_wrong_arguments(session, library):
    one = numbers([1])
    refused(api.INPUT, "decode", session, 0, one, 0, None, None, says="no tokens")
    refused(api.INPUT, "decode", session, 0, None, 1, None, None, says='"tokens" is NULL')
    refused(api.INPUT, "decode", session, 0, numbers([-1]), 1, None, None, says="not -1")
    refused(api.INPUT, "describe_decoder", session, None, says='"info" is NULL')
    refused(api.CLOSED, "decode", c_void_p(2**40), 0, one, 1, None, None)
    other = api.opened(library)
    for name, *arguments in (("decode", 0, one, 1, None, None), ("describe_decoder", byref(api.DecoderInfo()))):
        refused(api.UNSUPPORTED, name, other, *arguments, says='it is not known what the decoder\'s input "x" is')
    api.call("close", other)
