"""A draft model changes no token and no distribution, and ends where it does not pay."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

import flexcomp
from flexcomp import Generator, Sampling
from flexcomp.errors import BudgetError, CancelledError, InputError
from flexcomp.generation import Draft, Text, load_with_draft
from flexcomp.generation.caches import common
from flexcomp.generation.draft import Drafting
from flexcomp.generation.generator import Reply
from flexcomp.generation.sampling import Sampler
from flexcomp.generation.speculation import Account
from flexcomp.runtime import read_summary
from tests.cli import calls
from tests.exporters.genai import VOCABULARY
from tests.generation.test_speculation import GREEDY, Decoder, measured, prompts, random_pairs, repeating

DRAWN = Sampling(temperature=0.9, top_p=0.95, presence_penalty=0.2, seed=2)


class DraftDecoder(Decoder):
    """One whose caches and tokens are counted, too."""

    most = 8

    def forget(self, owner, sequence):
        del self.tokens[common(self.tokens, sequence) :]


def drafting(decoder):
    return SimpleNamespace(begin=lambda owner, sampler, vocabulary: Drafting(decoder, owner, sampler, vocabulary))


@pytest.fixture
def opened(library, draft_library):
    """The decoder, and by name one with a draft: another network, or the same one."""
    with ExitStack() as held:
        yield lambda path, budget="min": held.enter_context(flexcomp.load(path, budget, threads=1))


@pytest.fixture
def brisk(even_pace, monkeypatch):
    """Drafts that take hardly any time."""
    monkeypatch.setattr(Drafting, "token_s", 0.01)


@pytest.mark.parametrize("sampling, least", [(GREEDY, 0.0), (DRAWN, 0.05)], ids=["greedy", "drawn"])
def test_tokens_are_those_without(library, draft_library, opened, sampling, least, brisk):
    session = opened(library)
    plain = Generator(session, speculate=False)
    wanted = [list(plain.reply(prompt, 24, sampling=sampling)) for prompt in prompts(8)]
    for path, part in ((draft_library, least), (library, 1.0)):
        tried, right = Generator(session, draft=Draft(opened(path, "all"))), [0, 0]
        for prompt, tokens in zip(prompts(8), wanted, strict=True):
            reply = tried.reply(prompt, 24, sampling=sampling)
            assert list(reply) == tokens
            right[0] += reply.speculation.accepted
            right[1] += reply.speculation.proposed
        assert right[1] > 50 and right[0] >= part * right[1], right  # the same network proposes the same tokens


def test_turns_cancels_slides_and_long_texts_are_those_without(library, draft_library, opened, brisk, monkeypatch):
    """The draft has places for 512 tokens, and proposes nothing beyond."""
    session, small = opened(library), opened(draft_library)
    starts = [prompt * 30 for prompt in prompts(3)]
    plain = Generator(session, speculate=False)
    wanted = [list(plain.reply(prompt, 24)) for prompt in starts]
    long = [1, 2, 3] * 168
    wanted_long = list(plain.reply(long, 24))
    tried = Generator(session, saved_nbytes=1 << 20, draft=Draft(small, draft_library.parent))
    replies = [tried.reply(prompt, 24) for prompt in starts]
    run, left = type(session).run, [5]

    def interrupted(self, inputs):
        left[0] -= 1
        if left[0] % 13 == 0:
            raise CancelledError("the inference was cancelled")
        return run(self, inputs)

    monkeypatch.setattr(type(session), "run", interrupted)
    while any(not reply.finish for reply in replies):
        for reply in replies:
            with suppress(CancelledError):
                next(reply, None)
        small.set_budget("all" if left[0] % 2 else "min")
    monkeypatch.setattr(type(session), "run", run)
    assert [reply.tokens for reply in replies] == wanted and any(reply.speculation.proposed for reply in replies)
    reply = tried.reply(long, 24)
    assert list(reply) == wanted_long and len(tried.draft.decoder.tokens) <= 512
    sliding = [generator.reply([4, 5] * 1023, 8, slide=True) for generator in (plain, tried)]
    assert list(sliding[0]) == list(sliding[1])


def test_caches_of_both_are_saved_in_one_limit(library, draft_library, opened, brisk):
    generator = Generator(opened(library), draft=Draft(opened(draft_library)))
    limit = 64 * generator.place_nbytes
    generator.set_saved_limit(limit)
    replies = [generator.reply([number] * 12, 12) for number in range(3)]
    for _ in range(12):
        for reply in replies:
            next(reply)
            held = [one.saved.nbytes for one in (generator.decoder, generator.draft.decoder)]
            assert sum(held) <= limit
    assert all(held)


def test_the_distribution_is_that_without():
    """The draft has another one; of 6,000 texts each is as frequent as the product of its tokens' probabilities."""
    random = np.random.default_rng(7)
    scores, others = random.normal(0, 0.5, (3, 3)), random.normal(0, 0.5, (3, 3))
    parts = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    draws, accepted, proposed = 6_000, 0, 0
    counts = dict.fromkeys(product(range(3), repeat=3), 0)
    account = Account(measured(Decoder(lambda text: scores[text[-1]])), True)
    small = DraftDecoder(lambda text: others[text[-1]])
    for seed in range(draws):
        account.decoder.tokens, small.tokens = [], []
        sampling = Sampling(temperature=1.0, seed=seed)
        reply = Reply(account, [0, 1], 3, frozenset(), sampling, draft=drafting(small))
        counts[tuple(reply)] += 1
        accepted += reply.speculation.accepted
        proposed += reply.speculation.proposed
    assert proposed > draws / 2 and accepted > proposed / 3
    square = 0.0
    for (a, b, c), count in counts.items():
        expected = draws * parts[1, a] * parts[a, b] * parts[b, c]
        square += (count - expected) ** 2 / expected
    assert square < 54  # of 26 degrees of freedom: one in a thousand is above


def test_similar_distributions_draw_equal_tokens():
    """At least as often as the source says: (1 - d) / (1 + d), where d is the distance of the distributions."""
    random = np.random.default_rng(1)
    scores = random.normal(0, 1, 40)
    for noise in (0.0, 0.3, 1.0):
        other = scores + noise * random.normal(0, 1, 40)
        p, q = (np.exp(one) / np.exp(one).sum() for one in (scores, other))
        distance, draws = np.abs(p - q).sum() / 2, 4000
        sampler = Sampler(Sampling(temperature=1.0, seed=3))
        same = 0
        for _ in range(draws):
            ahead = sampler.ahead()
            same += ahead.draw(other, []) == sampler.draw(scores, [])
        assert same / draws >= (1 - distance) / (1 + distance) - 0.03
        assert same == draws or noise


@pytest.mark.parametrize("cost", [0.05, 0.3, 1.0])
def test_a_draft_that_is_wrong_ends(cost):
    """It may lose eight inferences, and a few until its times are known."""
    plain, tried = (Decoder(random_pairs, (1.0, 1.1), change=5) for _ in range(2))
    small = DraftDecoder(lambda text: random_pairs(text[::-1]), (cost, cost))
    clock = [0.0]
    proposer = drafting(small)
    wanted = list(Reply(Account(plain, False), [0, 1, 2, 3], 600, frozenset(), GREEDY))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flexcomp.generation.speculation.time.perf_counter", lambda: clock[0] + small.time)
        reply = Reply(Account(tried, True), [0, 1, 2, 3], 600, frozenset(), GREEDY, draft=proposer)
        assert list(reply) == wanted and reply.speculation.proposed
        assert tried.time + small.time - plain.time <= 8 + 8 * cost + 3 + 0.03 * 600
        plain, tried = (Decoder(repeating, (1.0, 1.1)) for _ in range(2))
        small = DraftDecoder(repeating, (cost / 5, cost / 5))
        list(Reply(Account(plain, False), [0, 1], 300, frozenset(), GREEDY))
        reply = Reply(Account(tried, True), [0, 1], 300, frozenset(), GREEDY, draft=drafting(small))
        list(reply)
        assert plain.time >= 1.5 * (tried.time + small.time)


def test_few_drafts_where_few_are_right():
    """Half of all proposals are wrong, and each takes half an inference: more than one or two are not asked for."""
    tried = Decoder(lambda text: np.eye(4)[(text[-1] + 1 + (len(text) % 2)) % 4], (1.0, 1.0))
    small = DraftDecoder(lambda text: np.eye(4)[(text[-1] + 1) % 4], (0.3, 0.3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flexcomp.generation.speculation.time.perf_counter", lambda: small.time)
        reply = Reply(Account(tried, True), [0, 1], 200, frozenset(), GREEDY, draft=drafting(small))
        list(reply)
    rounds = 200 - len(reply.tokens) + reply.passes
    assert reply.speculation.proposed <= 2 * rounds


def test_drafts_of_other_tokens_are_refused_by_name(library, draft_library, opened, tmp_path):
    session, small = opened(library), opened(draft_library)
    text = (draft_library.parent / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text.replace("<end>", "<fin>"))
    with pytest.raises(InputError, match=r"token 0 of the draft's tokenizer in .* is \"<fin>\", and \"<end>\" of that in"):
        Text(session, library.parent, draft=Draft(small, tmp_path))
    with pytest.raises(InputError, match=r"cannot read .*tokenizer\.json"):
        Text(session, library.parent, draft=Draft(small, tmp_path / "none"))
    with pytest.raises(InputError, match=r"a draft is for speculation: leave out speculate=False"):
        Generator(session, speculate=False, draft=Draft(small))
    draft = Draft(small)
    draft.decoder.vocabulary -= 1
    with pytest.raises(InputError, match=f"the draft knows {VOCABULARY - 1} tokens, and the decoder {VOCABULARY}"):
        Generator(session, draft=draft)
    (tmp_path / "tokenizer.json").write_text(text + "\n")  # another file of the same tokens
    assert Text(session, library.parent, draft=Draft(small, tmp_path)).generator.draft


def test_both_are_in_one_budget(library, draft_library):
    infos = [read_summary(path) for path in (library, draft_library)]
    least, most = (sum(one[key] for one in infos) for key in ("min_budget_bytes", "resident_bytes"))
    for budget in ("min", least, (least + most) // 2, "all", most, None, "90%"):
        sessions = load_with_draft(library, draft_library, budget, 1)
        with sessions[0] as session, sessions[1] as small:
            held = [one.stats()["arena_bytes"] for one in (session, small)]
            assert sum(held) <= {"min": least, "all": most, None: most, "90%": int(0.9 * most)}.get(budget, budget)
    with pytest.raises(BudgetError, match=r"of a decoder with its draft: a budget of .* is too small: the smallest"):
        load_with_draft(library, draft_library, least - 1, 1)


def test_the_command(library, draft_library):
    options = ["--prompt", "the cat", "--max-tokens", 12, "--budget", "min", "--threads", 1]
    plain, drafted = (calls.call("generate", library, *options, *more) for more in ([], ["--draft", draft_library]))
    assert drafted.returncode == 0 and drafted.stdout == plain.stdout
    assert "of memory" in drafted.stderr
    refused = calls.call("generate", library, *options, "--draft", draft_library, "--no-speculate")
    assert refused.returncode == 2 and "--no-speculate" in refused.stderr
