"""Prompts are taken in the chunks that take least time, whatever their lengths, and no place without a token is read."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

import flexcomp
from flexcomp.generation import Generator
from flexcomp.generation.chunks import first_chunk
from tests.exporters.genai import VOCABULARY

from .decoders import FORM


@pytest.mark.parametrize(
    ("count", "times", "gives_all", "wanted"),
    [
        (9, {1: 1, 8: 2, 64: 10}, True, 8),
        (9, {1: 1, 8: 2, 64: 2.5}, True, 64),  # reading weights binds
        (1, {1: 1, 8: 1.1}, True, 1),
        (3, {8: 2}, True, 8),
        (3, {8: 2}, False, None),
        (3, {1: 1, 8: 2.5}, False, 1),
        (7, {1: 1, 8: 2}, False, 8),  # six of them, and the last one alone
        (1, {1: 1, 8: 0.5}, False, 1),
        (16, {1: 1, 8: 2}, False, 8),
        (0, {1: 1}, True, None),
    ],
)
def test_the_first_chunk_is_one_of_the_least_time(count, times, gives_all, wanted):
    assert first_chunk(count, times, gives_all) == wanted


def test_no_other_chunks_take_less_time():
    rng = np.random.default_rng(3)
    for _ in range(40):
        times = {int(size): float(rng.uniform(1, 9)) for size in {1, *rng.integers(2, 7, 2)}}
        count = int(rng.integers(1, 9))
        least = min(
            sum(times[size] for size in sizes)
            for length in range(1, count + 1)
            for sizes in itertools.product(times, repeat=length)
            if sum(sizes) >= count
        )
        left, took = count, 0.0
        while left > 0:
            size = first_chunk(left, times, gives_all=True)
            left, took = left - size, took + times[size]
        assert took == pytest.approx(least)


RNG = np.random.default_rng(7)
PROMPTS = [RNG.integers(1, VOCABULARY, count).tolist() for count in (1, 2, 3, 5, 7, 8, 9, 13, 40, FORM.capacity - 1)]


@pytest.fixture(scope="module")
def alone(library):
    with flexcomp.load(library, threads=1) as session:
        generator = Generator(session, speculate=False)
        generator.decoder._sizes = [1]
        return [list(generator.reply(prompt, 4)) for prompt in PROMPTS]


@pytest.mark.parametrize("gives_all", [True, False])
@pytest.mark.parametrize("slow", [1, 4, 8])
def test_tokens_are_those_of_other_chunks(library, alone, monkeypatch, gives_all, slow):
    """Whatever plans say. The caches' last places have no room for a chunk."""
    with flexcomp.load(library, threads=1) as session:
        generator = Generator(session, speculate=False)
        decoder, sizes = generator.decoder, set()
        monkeypatch.setattr(decoder, "_gives_all", gives_all)
        monkeypatch.setattr(
            decoder, "rungs", lambda: {size: SimpleNamespace(predicted_ms=99 if size == slow else 1) for size in decoder._sizes}
        )
        note = decoder.pace.note
        monkeypatch.setattr(decoder.pace, "note", lambda size, *rest: (sizes.add(size), note(size, *rest)))
        assert [list(generator.reply(prompt, 4)) for prompt in PROMPTS] == alone
        assert sizes == {1, 8} if slow == 4 else {1, 4, 8}
