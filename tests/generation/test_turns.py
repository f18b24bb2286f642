"""Replies that take turns have the tokens that each has alone, and none waits for ever."""

import itertools
import threading
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest

import flexcomp
from flexcomp.errors import ExecutionError, RefusedError
from flexcomp.generation import Text, Turns
from tests.exporters.genai import DEPTH, SHARED, VOCABULARY

from .decoders import FORM

PLACE_NBYTES = FORM.layers * 2 * SHARED * DEPTH * 4
RNG = np.random.default_rng(6)
PROMPTS = [RNG.integers(1, VOCABULARY, count).tolist() for count in (3, 30, 9, 17)]
COUNT = 12


class Caller:
    """One that notes all that is said."""

    def __init__(self) -> None:
        self.pieces, self.error, self.ended = [], None, threading.Event()

    def say(self, turn, piece, error):
        self.pieces.append(piece)
        self.error = error
        if error is not None or turn.reply.ended:
            self.ended.set()


@pytest.fixture
def text(library):
    with flexcomp.load(library, budget="min", threads=1) as session:
        made = Text(session, library.parent)
        made.tokenizer.ends = frozenset()  # replies have as many tokens as are asked for
        yield made


def begin(turns, prompt, count, caller):
    return turns.begin(turns.text.reply_to_tokens(prompt, count), caller.say)


@pytest.fixture(scope="module")
def alone(library):
    with flexcomp.load(library, threads=1) as session:
        generator = flexcomp.Generator(session)
        return [list(generator.reply(prompt, COUNT)) for prompt in PROMPTS]


@pytest.mark.parametrize("places", [0, 60, 1000])
def test_tokens_are_those_of_a_reply_alone(text, alone, places):
    turns, callers = Turns(text, places * PLACE_NBYTES, waiting=8), [Caller() for _ in PROMPTS]
    begun = [
        begin(turns, prompt, COUNT, caller) for prompt, caller in zip(PROMPTS, callers, strict=True)
    ]
    for limit in (30, 5, places):  # while they run
        turns.set_limit(limit * PLACE_NBYTES)
    assert all(caller.ended.wait(30) for caller in callers)
    turns.close()
    assert [turn.reply.reply.tokens for turn in begun] == alone
    assert text.generator.decoder.saved.nbytes <= places * PLACE_NBYTES


def test_a_short_prompt_does_not_wait_for_a_long_one(text, monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr("flexcomp.generation.turns.time", SimpleNamespace(perf_counter=lambda: next(ticks)))  # all take 1 s
    turns, long, short = Turns(text, 4096 * PLACE_NBYTES, waiting=8), Caller(), Caller()
    slow = begin(turns, [1] * 1500, 500, long)
    quick = begin(turns, [2], 3, short)
    assert short.ended.wait(30) and not long.ended.is_set()
    assert quick.served < 12 and not slow.reply.reply.tokens
    turns.cancel(slow)
    turns.close()


def test_as_many_wait_as_may(text):
    turns, caller = Turns(text, 0, waiting=1), Caller()
    begun = [begin(turns, [1] * 1000, None, caller) for _ in range(2)]
    with pytest.raises(RefusedError, match="1 requests wait"):
        begin(turns, [1], 1, caller)
    turns.cancel(begun[0])
    turns.cancel(begun[0])
    last = Caller()
    turns.cancel(begun[1])
    begin(turns, [1], 1, last)
    assert last.ended.wait(30) and not caller.ended.is_set()
    turns.close()


def test_an_error_is_of_one_reply(text, monkeypatch):
    turns, good, bad = Turns(text, 4096 * PLACE_NBYTES, waiting=8), Caller(), Caller()
    from flexcomp.generation.sampling import Sampler

    draw = Sampler.draw

    def failing(self, logits, earlier):
        if earlier[0] == 7:
            raise ExecutionError("no numbers")
        return draw(self, logits, earlier)

    monkeypatch.setattr(Sampler, "draw", failing)
    begin(turns, [7, 1], 5, bad)
    begin(turns, [6, 1], 5, good)
    assert good.ended.wait(30) and bad.ended.wait(30)
    assert isinstance(bad.error, ExecutionError) and good.error is None
    turns.close()


@pytest.mark.parametrize(("seconds", "least", "most"), [(1, 8, 10), (32, 40, 57)])
def test_a_prompt_of_several_chunks_has_two_thirds_of_the_time(text, monkeypatch, seconds, least, most):
    """Beside three replies that have begun: by turns alone it would have a quarter. One that takes more leaves others theirs."""
    turns, begun, order, now = Turns(text, 4096 * PLACE_NBYTES, waiting=8), threading.Event(), [], [0.0]
    monkeypatch.setattr("flexcomp.generation.turns.time", SimpleNamespace(perf_counter=lambda: now[0]))
    advance = turns._advance

    def taking_a_second(turn):
        order.append((turn, turn.is_prompt))
        now[0] += seconds if turn.is_prompt else 1
        goes_on = advance(turn)
        if len({turn for turn, is_prompt in order if not is_prompt}) == 3:
            begun.set()
        return goes_on

    monkeypatch.setattr(turns, "_advance", taking_a_second)
    others = [begin(turns, [token], 600, Caller()) for token in (3, 4, 5)]
    assert begun.wait(30)
    caller = Caller()
    turn = begin(turns, [7] * 160, 1, caller)
    assert caller.ended.wait(30) and not any(one.reply.ended for one in others)
    turns.close()
    chunks = [at for at, (one, _) in enumerate(order) if one is turn]
    assert len(chunks) == 20
    spread = Counter(one for one, _ in order[chunks[0] : chunks[-1]] if one is not turn)
    assert least <= spread.total() <= most and max(spread.values()) - min(spread.values()) <= 1
