"""Drafts change no token and no distribution; they make fewer inferences of text that repeats, and cost little elsewhere."""

from __future__ import annotations

from contextlib import suppress
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

import flexcomp
from flexcomp import Generator, Sampling
from flexcomp.errors import CancelledError
from flexcomp.generation import Text
from flexcomp.generation.generator import Reply
from flexcomp.generation.lookup import PromptLookup
from flexcomp.generation.pace import Pace
from flexcomp.generation.speculation import Account
from tests.exporters.genai import VOCABULARY

GREEDY = Sampling()


def prompts(count: int) -> list[list[int]]:
    """Some of which repeat themselves."""
    rng = np.random.default_rng(5)
    return [rng.integers(0, VOCABULARY, rng.integers(1, 9)).tolist() * rng.integers(1, 4) for _ in range(count)]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.3, top_p=0.9, seed=2)], ids=["greedy", "drawn"])
def test_tokens_are_those_without(session, sampling, even_pace):
    plain, tried = (Generator(session, speculate=wanted) for wanted in (False, True))
    accepted = 0
    for prompt in prompts(20):
        reply = tried.reply(prompt, 24, sampling=sampling)
        assert list(reply) == list(plain.reply(prompt, 24, sampling=sampling))
        accepted += reply.speculation.accepted
    assert accepted > 20


def test_turns_stops_and_cancels_are_those_without(library, session, monkeypatch, even_pace):
    run, left = type(session).run, [3]

    def interrupted(self, inputs):
        left[0] -= 1
        if left[0] % 5 == 0:
            raise CancelledError("the inference was cancelled")
        return run(self, inputs)

    plain = Generator(session, speculate=False)
    wanted = [list(plain.reply(prompt, 24)) for prompt in prompts(4)]
    tried = Generator(session, speculate=True)
    replies = [tried.reply(prompt, 24) for prompt in prompts(4)]
    monkeypatch.setattr(type(session), "run", interrupted)
    while any(not reply.finish for reply in replies):
        for reply in replies:
            with suppress(CancelledError):
                next(reply, None)
    assert [reply.tokens for reply in replies] == wanted
    monkeypatch.setattr(type(session), "run", run)
    texts = [Text(session, library.parent, speculate=wanted) for wanted in (False, True)]
    for text in texts:
        text.tokenizer.ends = frozenset()
    for prompt in ("the cat", "cat cat cat cat", "a b a b a b"):
        full = "".join(texts[0].reply(prompt, 60))
        for stop in (full[len(full) // 3 :][:2], full[len(full) // 2 :][:3]):
            found = [text.reply(prompt, 60, stop=[stop]) for text in texts]
            assert "".join(found[0]) == "".join(found[1]) == full[: full.index(stop)]
            assert found[0].reply.tokens == found[1].reply.tokens and found[1].reply.finish == "stop"


def test_a_full_cache_and_heads_of_the_last_token_take_no_drafts(session, even_pace):
    generator = Generator(session, speculate=True)
    reply = generator.reply([1, 2] * 1023)
    plain = list(Generator(session, speculate=False).reply([1, 2] * 1023))
    assert list(reply) == plain and reply.finish == "capacity"
    generator.decoder._gives_all = False
    reply = generator.reply([1, 2] * 8, 20)
    list(reply)
    assert not reply.speculation.proposed


class Decoder:
    """One that computes nothing: the scores of the next token are those that `rows` gives for a text."""

    capacity, least, vocabulary = 1 << 20, 1, VOCABULARY

    def __init__(self, rows, times=(1.0, 1.0), read=(10, 10), change=0, slower=lambda size: 1.0):
        self.rows, self.tokens, self.size = rows, [], 0
        self.read, self.change, self.time = dict(zip((1, 8), read, strict=True)), change, 0.0
        self.times, self.slower = dict(zip((1, 8), times, strict=True)), slower  # as predicted, and a factor of that
        self.pace = Pace()

    def turn_to(self, owner, sequence, encoded=None):
        pass

    def sizes_for_drafts(self):
        return [8]

    def rungs(self):
        return {size: SimpleNamespace(predicted_ms=self.times[size], streamed_bytes=self.read[size]) for size in (1, 8)}

    def advance(self, sequence, drafts=(), least=1):
        left = len(sequence) - len(self.tokens)
        size = 8 if max(least, left + len(drafts)) > 1 else 1
        more = self.change if self.size not in (0, size) else 0
        took = self.times[size] * self.slower(size) + more / (self.read[1] or 10)
        self.time += took
        self.pace.note(size, self.size, took)
        self.tokens, self.size = list(sequence[: len(sequence) - max(left - 8, 0)]), size
        if left > 8:
            return None
        text = [*sequence, *drafts]
        return np.array([self.rows(text[: len(sequence) + i]) for i in range(len(drafts) + 1)])

    def accept(self, drafts):
        self.tokens += drafts


def measured(decoder: Decoder) -> Decoder:
    """That has made two inferences before."""
    decoder.pace.note(1, 1, 1.0)
    return decoder


def reply_of(decoder: Decoder, prompt: list[int], count: int, sampling: Sampling, wanted: bool | None) -> Reply:
    reply = Reply(Account(decoder, wanted), prompt, count, frozenset(), sampling)
    list(reply)
    return reply


def test_the_distribution_is_that_without():
    """Of 20,000 texts of three tokens: each text is as frequent as the product of its tokens' probabilities."""
    scores = np.random.default_rng(7).normal(0, 0.5, (3, 3))
    parts = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    prompt, draws = [0, 1, 2, 0, 1], 20_000
    counts = dict.fromkeys(product(range(3), repeat=3), 0)
    account, accepted = Account(measured(Decoder(lambda text: scores[text[-1]])), True), 0
    for seed in range(draws):
        account.decoder.tokens = []
        reply = Reply(account, prompt, 3, frozenset(), Sampling(temperature=1.0, seed=seed))
        list(reply)
        counts[tuple(reply.tokens)] += 1
        accepted += reply.speculation.accepted
    assert accepted > draws / 20
    square = 0.0
    for (a, b, c), count in counts.items():
        expected = draws * parts[1, a] * parts[a, b] * parts[b, c]
        square += (count - expected) ** 2 / expected
    assert square < 54  # of 26 degrees of freedom: one in a thousand is above


def repeating(text):
    return np.eye(5)[len(text) % 5]


def random_pairs(text):
    """Ever new texts, in which pairs of tokens come again."""
    return np.random.default_rng(text[-12:]).normal(size=4)


@pytest.mark.parametrize("change", [0, 10], ids=["", "changes of shape read as much again"])
@pytest.mark.parametrize("more", [1.0, 1.02, 1.2, 1.5])
def test_drafts_pay_where_storage_binds(more, change):
    count = 300
    plain, tried = (Decoder(repeating, (1.0, more), change=change) for _ in range(2))
    reply_of(plain, [0, 1, 2, 3, 4], count, GREEDY, False)
    reply = reply_of(tried, [0, 1, 2, 3, 4], count, GREEDY, None)
    assert plain.time >= 1.5 * tried.time and reply.passes <= count / 1.5


@pytest.mark.parametrize("change", [0, 10], ids=["", "changes of shape read as much again"])
@pytest.mark.parametrize("more", [1.0, 1.02, 1.2, 1.5, 3.0])
@pytest.mark.parametrize("rows", [random_pairs, lambda text: (repeating if len(text) % 160 < 60 else random_pairs)(text)[:4]])
def test_drafts_that_are_wrong_cost_little(rows, more, change):
    plain, tried = (Decoder(rows, (1.0, more), change=change) for _ in range(2))
    for count in (20, 100, 500):
        replies = [
            reply_of(decoder, [0, 1, 2, 3], count, GREEDY, wanted) for decoder, wanted in ((plain, False), (tried, None))
        ]
        assert replies[0].tokens == replies[1].tokens
        assert tried.time <= plain.time / 0.97
        if more == 3.0:
            assert not replies[1].speculation.proposed


@pytest.mark.parametrize("read", [(10, 10), (0, 0)], ids=["streamed", "resident"])
@pytest.mark.parametrize("change", [0, 10], ids=["", "changes of shape read as much again"])
def test_drafts_that_are_asked_for_end_where_they_do_not_pay(change, read):
    """They may lose 8 inferences, and what the first ones take until the bytes of a change of shape are known."""
    for more in (3.0, 1.2):
        plain, tried = (Decoder(random_pairs, (1.0, more), read=read, change=change) for _ in range(2))
        replies = [
            reply_of(decoder, [0, 1, 2, 3], 600, GREEDY, wanted) for decoder, wanted in ((plain, False), (tried, True))
        ]
        assert replies[0].tokens == replies[1].tokens and replies[1].speculation.proposed
        assert tried.time - plain.time <= 8 + more + 2 * change + 0.03 * 600
    plain, tried = (Decoder(repeating, (1.0, 2.5), read=read) for _ in range(2))
    reply_of(plain, [0, 1, 2, 3, 4], 300, GREEDY, False)
    reply_of(tried, [0, 1, 2, 3, 4], 300, GREEDY, True)
    assert plain.time >= 1.5 * tried.time


@pytest.mark.parametrize("change", [0, 10])
@pytest.mark.parametrize("slower", [1.0, 1.4, 3.0, 7.0])
@pytest.mark.parametrize("wanted", [None, True], ids=["", "asked"])
def test_measured_times_count_where_plans_are_wrong(change, slower, wanted):
    """All is resident, and the larger shape takes longer than its plan says; a prompt of several chunks shows how much."""

    def times(rows):
        found = [Decoder(rows, read=(0, 0), change=change, slower=lambda size: slower if size > 1 else 1.0) for _ in range(2)]
        replies = [reply_of(one, prompt * 4, 400, GREEDY, use) for one, use in zip(found, (False, wanted), strict=True)]
        assert replies[0].tokens == replies[1].tokens
        return [one.time for one in found], replies[1].speculation.proposed

    prompt = [0, 1, 2, 3]
    for rows in (repeating, random_pairs):
        (plain, tried), proposed = times(lambda text, rows=rows: rows(text)[:4])
        assert tried <= plain / 0.97 + (8 + 2 * change + slower) * bool(wanted)
        assert bool(proposed) == (slower < 1.5 or bool(wanted))
    if slower < 1.5:
        (plain, tried), _ = times(repeating)
        assert plain >= 1.5 * tried


def test_nothing_is_tried_where_all_is_resident_before_a_prompt_shows_what_it_takes():
    reply = reply_of(Decoder(repeating, read=(0, 0)), [0, 1, 2, 3, 4], 100, GREEDY, None)
    assert not reply.speculation.proposed


def test_what_was_lost_counts_in_later_replies():
    """Drafts that were asked for lose eight inferences of a decoder, and not of each reply."""
    plain, tried = (Decoder(random_pairs, (1.0, 1.2)) for _ in range(2))
    account = Account(tried, True)
    for number in range(40):
        prompt = [0, 1, 2, number % 4]
        reply = Reply(account, prompt, 30, frozenset(), GREEDY)
        assert list(reply) == reply_of(plain, prompt, 30, GREEDY, False).tokens
        tried.tokens, plain.tokens = [], []
    assert tried.time - plain.time <= 8 + 1.2 + 2 + 0.03 * 40 * 30


@pytest.mark.parametrize("wanted", [None, True])
def test_looking_up_takes_its_part_of_what_may_be_lost(monkeypatch, wanted):
    """Half an inference each time: without proposals that are right it is left alone for a while."""
    clock, most, asked = [0.0], PromptLookup.most, []

    def slow(self, sequence, context, count):
        clock[0] += 0.5
        asked.append(count)
        return min(most(self, sequence, context, count), 0)

    monkeypatch.setattr(PromptLookup, "most", slow)
    monkeypatch.setattr("flexcomp.generation.speculation.time.perf_counter", lambda: clock[0])
    reply_of(measured(Decoder(random_pairs)), [0, 1, 2, 3], 600, GREEDY, wanted)
    assert len(asked) > 5 and 0.5 * len(asked) <= 8 + 2 + 0.02 * 600


def test_a_decision_while_others_ran_is_no_loss_for_ever():
    account = Account(measured(Decoder(random_pairs)), None)
    account.decoder.size = 1
    account.note(1, 1e6, 0, 0)
    assert 0 < account.lost <= 8


def test_times_of_another_plan_are_forgotten():
    pace = Pace()
    for seconds in (5.0, 1.0, 1.0, 9.0):
        pace.note(1, 1, seconds)
    pace.note(8, 1, 3.0)
    assert (pace.seconds(1), pace.seconds(8), pace.seconds(8, changed=True), pace.last_s) == (3.0, None, 3.0, 3.0)
    pace.follow("one")
    assert pace.seconds(1) == 3.0
    pace.follow("other")
    assert pace.seconds(1) is None


@pytest.mark.parametrize(
    "text, wanted",
    [
        ([1, 2, 3, 4, 1, 2, 3], [4, 1, 2, 3, 4]),
        ([9, 1, 2, 5, 7, 1, 2, 6, 3, 1, 2], [6, 3, 1, 2, 6]),  # the last time counts
        ([1, 2, 3, 9, 5, 2, 3, 7, 1, 2, 3], [9, 5, 2, 3, 7]),  # but three tokens more than two
        ([4, 4, 4], [4, 4, 4, 4, 4]),
        ([1, 2, 3], []),
        ([1], []),
    ],
)
def test_lookup(text, wanted):
    for grown in (False, True):
        lookup = PromptLookup()
        for end in range(1 if grown else len(text), len(text) + 1):
            count = lookup.most(text[:end], [], 5)
        assert lookup.propose(count) == wanted


def test_the_plan_of_each_shape_says_what_binds(library):
    with flexcomp.load(library, budget="min", threads=1) as session:
        least = session.rungs()
        session.set_budget("all")
        most = session.rungs()
    assert len(least) == len(session.shapes)
    assert all(one.streamed_bytes > 0 for one in least) and not any(one.streamed_bytes for one in most)
    assert all(one.predicted_ms > other.predicted_ms for one, other in zip(least, most, strict=True))
