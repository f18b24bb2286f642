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
from tests.exporters.genai import VOCABULARY

GREEDY = Sampling()


def prompts(count: int) -> list[list[int]]:
    """Some of which repeat themselves."""
    rng = np.random.default_rng(5)
    return [rng.integers(0, VOCABULARY, rng.integers(1, 9)).tolist() * rng.integers(1, 4) for _ in range(count)]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=0.3, top_p=0.9, seed=2)], ids=["greedy", "drawn"])
def test_tokens_are_those_without(session, sampling):
    plain, tried = (Generator(session, speculate=wanted) for wanted in (False, True))
    accepted = 0
    for prompt in prompts(20):
        reply = tried.reply(prompt, 24, sampling=sampling)
        assert list(reply) == list(plain.reply(prompt, 24, sampling=sampling))
        accepted += reply.speculation.accepted
    assert accepted > 20


def test_turns_stops_and_cancels_are_those_without(library, session, monkeypatch):
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


def test_a_full_cache_and_heads_of_the_last_token_take_no_drafts(session):
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

    capacity = 1 << 20

    def __init__(self, rows, times=(1.0, 1.0), read=(10, 10), change=0):
        self.rows, self.tokens, self.size = rows, [], 0
        self.read, self.change, self.time = dict(zip((1, 8), read, strict=True)), change, 0.0
        self.times = dict(zip((1, 8), times, strict=True))
        self.session = SimpleNamespace(stats=lambda: {"total_bytes_read": self.total})
        self.total = 0

    def turn_to(self, owner, sequence, encoded=None):
        pass

    def sizes_for_drafts(self):
        return [8]

    def rungs(self):
        return {size: SimpleNamespace(predicted_ms=self.times[size], streamed_bytes=self.read[size]) for size in (1, 8)}

    def advance(self, sequence, drafts=(), least=1):
        size = 8 if max(least, 1 + len(drafts), len(sequence) - len(self.tokens)) > 1 else 1
        more = self.change if self.size not in (0, size) else 0
        self.total += self.read[size] + more
        self.time += self.times[size] + more / max(self.read[1], 1)
        self.tokens, self.size = list(sequence), size
        text = [*sequence, *drafts]
        return np.array([self.rows(text[: len(sequence) + i]) for i in range(len(drafts) + 1)])

    def accept(self, drafts):
        self.tokens += drafts


def reply_of(decoder: Decoder, prompt: list[int], count: int, sampling: Sampling, wanted: bool | None) -> Reply:
    reply = Reply(decoder, prompt, count, frozenset(), sampling, wanted)
    list(reply)
    return reply


def test_the_distribution_is_that_without():
    """Of 20,000 texts of three tokens: each text is as frequent as the product of its tokens' probabilities."""
    scores = np.random.default_rng(7).normal(0, 0.5, (3, 3))
    parts = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    prompt, draws = [0, 1, 2, 0, 1], 20_000
    counts = dict.fromkeys(product(range(3), repeat=3), 0)
    accepted = 0
    for seed in range(draws):
        reply = reply_of(Decoder(lambda text: scores[text[-1]]), prompt, 3, Sampling(temperature=1.0, seed=seed), True)
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


def test_nothing_is_tried_where_all_weights_are_resident():
    reply = reply_of(Decoder(repeating, read=(0, 0)), [0, 1, 2, 3, 4], 100, GREEDY, None)
    assert not reply.speculation.proposed


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
    assert PromptLookup().propose(text, 5) == wanted
    grown = PromptLookup()
    for end in range(1, len(text)):
        grown.propose(text[:end], 5)
    assert grown.propose(text, 5) == wanted


def test_the_plan_of_each_shape_says_what_binds(library):
    with flexcomp.load(library, budget="min", threads=1) as session:
        least = session.rungs()
        session.set_budget("all")
        most = session.rungs()
    assert len(least) == len(session.shapes)
    assert all(one.streamed_bytes > 0 for one in least) and not any(one.streamed_bytes for one in most)
    assert all(one.predicted_ms > other.predicted_ms for one, other in zip(least, most, strict=True))
