"""Replies are those of a decoder that computes every sequence anew."""

import numpy as np
import pytest

import flexcomp
from flexcomp import Generator, Sampling
from flexcomp.errors import CancelledError, InputError
from tests.exporters.genai import DEPTH, SHARED, VOCABULARY

from .decoders import FORM, SIZES

PLACE_NBYTES = FORM.layers * 2 * SHARED * DEPTH * 4
RNG = np.random.default_rng(4)


def tokens(count: int) -> list[int]:
    return RNG.integers(0, VOCABULARY, count).tolist()


def greedy(following, prompt: list[int], count: int) -> list[int]:
    sequence = list(prompt)
    for _ in range(count):
        sequence.append(int(following(sequence).argmax()))
    return sequence[len(prompt) :]


@pytest.mark.parametrize("length", [1, 3, 8, 9, 17, FORM.capacity])
def test_prompts_of_any_length(session, following, length):
    prompt, count = tokens(length), min(4, FORM.capacity - length + 1)
    reply = Generator(session).reply(prompt, count)
    assert list(reply) == greedy(following, prompt, count)
    assert (reply.finish, reply.prompt_tokens, reply.reused_tokens) == ("length", length, 0)
    assert 0 < reply.first_token_s <= reply.seconds


def test_a_reply_ends_where_caches_are_full_or_a_token_says_so(session, following):
    prompt = tokens(FORM.capacity - 3)
    wanted = greedy(following, prompt, 4)  # the last one has no place, and needs none
    reply = Generator(session).reply(prompt)
    assert list(reply) == wanted and reply.finish == "capacity"
    reply = Generator(session).reply(prompt, stop=[wanted[2]])
    assert list(reply) == wanted[: wanted.index(wanted[2])] and reply.finish == "stop"


def test_full_caches_slide_as_asked(session, following):
    """The first token and the last ones of half a context are the text from then on; prompts may be longer than the caches."""
    half = FORM.capacity // 2
    for count, speculate in ((FORM.capacity - 1, False), (FORM.capacity + 3, True)):
        sequence = context = tokens(count)
        wanted = []
        for _ in range(5):
            if len(context) > FORM.capacity:
                context = [context[0], *context[-(half - 1) :]]
            wanted.append(int(following(context).argmax()))
            context = [*context, wanted[-1]]
        reply = Generator(session, speculate=speculate).reply(sequence, 5, slide=True)
        assert list(reply) == wanted and reply.finish == "length"
        with pytest.raises(InputError, match="shorten it, or slide"):
            Generator(session).reply(tokens(FORM.capacity + 1))


def test_the_beginning_of_an_earlier_conversation_is_not_computed_again(session, following, monkeypatch):
    generator, taken = Generator(session, speculate=False), []
    run = type(session).run
    monkeypatch.setattr(type(session), "run", lambda self, inputs: taken.append(inputs["input_ids"].size) or run(self, inputs))
    prompt = tokens(9)
    first = list(generator.reply(prompt, 3))
    taken.clear()
    longer = [*prompt, *first, *tokens(2)]
    reply = generator.reply(longer, 2)
    assert list(reply) == greedy(following, longer, 2)
    assert reply.reused_tokens == len(prompt) + len(first) - 1 and sum(taken) <= 3 + SIZES[1]
    another = [*prompt[:4], *tokens(3)]
    other = generator.reply(another, 2)
    assert list(other) == greedy(following, another, 2)
    assert other.reused_tokens >= 4


@pytest.mark.parametrize("places", [0, 12, 100])
def test_replies_that_take_turns(session, following, monkeypatch, places):
    start = tokens(4)  # of two of them
    prompts = [[*start, *tokens(5)], tokens(6), [*start, *tokens(2)]]
    generator = Generator(session, saved_nbytes=places * PLACE_NBYTES, speculate=False)
    taken, run = [], type(session).run
    monkeypatch.setattr(type(session), "run", lambda self, inputs: taken.append(inputs["input_ids"].size) or run(self, inputs))
    replies = [generator.reply(prompt, 6) for prompt in prompts]
    found = [[next(reply) for reply in replies] for _ in range(6)]
    assert [list(one) for one in zip(*found, strict=True)] == [greedy(following, prompt, 6) for prompt in prompts]
    assert generator.decoder.saved.nbytes <= places * PLACE_NBYTES
    if places == 100:  # enough for all: prompts are computed once, and one token in each turn
        assert taken.count(1) >= 15 and replies[2].reused_tokens == len(start)
        again = generator.reply([*prompts[0], *replies[0].tokens], 1)
        assert list(again) == greedy(following, [*prompts[0], *replies[0].tokens], 1)
        assert again.reused_tokens == len(prompts[0]) + 5


def test_a_change_of_turns_copies_what_caches_hold(session, monkeypatch):
    copied, get, put = [], type(session).state_parts, type(session).set_state_parts

    def counted_get(self, count, axis):
        found = get(self, count, axis)
        copied.append(sum(one.nbytes for one in found.values()))
        return found

    def counted_put(self, parts):
        copied.append(sum(one.nbytes for one in parts.values()))
        put(self, parts)

    monkeypatch.setattr(type(session), "state_parts", counted_get)
    monkeypatch.setattr(type(session), "set_state_parts", counted_put)
    generator = Generator(session, saved_nbytes=100 * PLACE_NBYTES, speculate=False)
    one, other = (generator.reply(tokens(5), 4) for _ in range(2))
    next(one)
    next(other)
    assert copied == [5 * PLACE_NBYTES]
    next(one)
    assert sum(copied) == (5 + 5 + 5) * PLACE_NBYTES


def test_caches_of_replies_that_have_ended_go_first(session):
    generator = Generator(session, saved_nbytes=25 * PLACE_NBYTES)
    running, ended, third = (generator.reply(tokens(10), count) for count in (5, 1, 5))
    next(running)
    list(ended)
    next(third)
    fourth = generator.reply(tokens(10), 5)
    next(fourth)
    (kept, other) = generator.decoder.saved._entries
    assert {kept.owner, other.owner} == {running, third}
    generator.decoder.saved.set_limit(5)
    assert not generator.decoder.saved.nbytes


def test_a_cancelled_token_is_computed_when_it_is_asked_for_again(session, following, monkeypatch):
    prompt, run, left = tokens(9), type(session).run, [1, 0]

    def interrupted(self, inputs):
        if left and not left.pop():
            raise CancelledError("the inference was cancelled")
        return run(self, inputs)

    monkeypatch.setattr(type(session), "run", interrupted)
    reply = Generator(session).reply(prompt, 3)
    with pytest.raises(CancelledError):
        next(reply)
    assert list(reply) == greedy(following, prompt, 3)


def test_the_same_seed_gives_the_same_reply(session):
    generator, prompt = Generator(session), tokens(4)

    def drawn(seed: int) -> list[int]:
        return list(generator.reply(prompt, 12, sampling=Sampling(temperature=1.5, seed=seed)))

    assert drawn(1) == drawn(1) != drawn(2)


@pytest.mark.parametrize(
    "prompt, options, reason",
    [
        ([], {}, "at least one token"),
        ([VOCABULARY], {}, "from 0 to 63"),
        ([1] * (FORM.capacity + 1), {}, "2049 tokens, and the caches 2048 places"),
        ([1], {"max_tokens": 0}, "max_tokens"),
        ([1], {"max_tokens": "x"}, "max_tokens"),
        ([1.5], {}, "whole numbers from 0 to 63, not 1.5"),
        (["a"], {}, "not 'a'"),
        ([1], {"stop": 5}, "tokens of stop must be .* not 5"),
    ],
)
def test_bad_prompts(session, prompt, options, reason):
    with pytest.raises(InputError, match=reason):
        Generator(session).reply(prompt, **options)


def test_a_library_that_is_no_decoder(tmp_path):
    from benchmarks.networks.graph import Graph

    g = Graph("other", seed=0)
    flexcomp.build(g.model(g.relu(g.input("x", (1, 8))), (1, 8)), threads=1, probe=False).export_library(tmp_path / "other.so")
    with flexcomp.load(tmp_path / "other.so") as other, pytest.raises(InputError, match="one input must be the tokens"):
        Generator(other)
