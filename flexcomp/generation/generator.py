"""Replies: tokens that follow a prompt."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from flexcomp.arguments import checked_number
from flexcomp.errors import InputError
from flexcomp.generation.decoder import Decoder
from flexcomp.generation.sampling import Sampler, Sampling
from flexcomp.runtime import Session


class Reply(Iterator[int]):
    """The tokens of a reply, each computed when it is asked for."""

    def __init__(self, decoder: Decoder, prompt: Sequence[int], most: int, stop: frozenset[int], sampling: Sampling) -> None:
        self.prompt_tokens = len(prompt)
        self.reused_tokens = _common(decoder.tokens, prompt[:-1])  # the last one's logits are needed
        self.tokens: list[int] = []
        self.finish = ""  # "stop": a token of `stop`; "length": as many as were asked for; "capacity": the caches are full
        self.first_token_s = self.seconds = 0.0  # from the first request to the first token, and to the last
        self._decoder, self._prompt, self._most, self._stop = decoder, list(prompt), most, stop
        self._sampler, self._begin = Sampler(sampling), 0.0

    def __next__(self) -> int:
        """Raises StopIteration at the end; errors of `Session.run`, after which the reply goes on where it was."""
        if self.finish:
            raise StopIteration
        self._begin = self._begin or time.perf_counter()
        decoder, sequence = self._decoder, self._prompt + self.tokens
        if decoder.reply is not self:  # at first, and after another reply
            decoder.keep(_common(decoder.tokens, sequence[:-1]))
            decoder.reply = self
        token = self._sampler.draw(decoder.extend(sequence[len(decoder.tokens) :]), sequence)
        self.seconds = time.perf_counter() - self._begin
        self.first_token_s = self.first_token_s or self.seconds
        if token in self._stop:
            self.finish = "stop"
            raise StopIteration
        self.tokens.append(token)
        if len(self.tokens) == self._most:
            self.finish = "length"
        elif len(sequence) == decoder.capacity:
            self.finish = "capacity"
        return token


class Generator:
    """Replies of a decoder, one at a time. What the caches hold of an earlier prompt or reply is not computed again."""

    def __init__(self, session: Session) -> None:
        """Raises InputError for a library that is no decoder with caches as its state."""
        self.decoder = Decoder(session)

    def reply(
        self, prompt: Sequence[int], max_tokens: int | None = None, *, stop: Collection[int] = (),
        sampling: Sampling | None = None,
    ) -> Reply:  # fmt: skip
        """An iterator over the tokens that follow `prompt`: up to `max_tokens`, to a token of `stop`, or until caches are full.

        Raises InputError for a prompt without tokens, or of more than the caches have places for.
        """
        decoder, prompt = self.decoder, self._checked(prompt, "a prompt's tokens")
        if not prompt:
            raise InputError("a prompt has at least one token")
        if len(prompt) > decoder.capacity:
            raise InputError(f"the prompt has {len(prompt)} tokens, and the caches {decoder.capacity} places: shorten it")
        most = decoder.capacity + 1 if max_tokens is None else checked_number(max_tokens, "max_tokens", least=1)
        return Reply(decoder, prompt, most, frozenset(self._checked(stop, "tokens of stop")), sampling or Sampling())

    def _checked(self, tokens: Iterable[int], what: str) -> list[int]:
        """Raises InputError for anything but tokens of the decoder."""
        most = self.decoder.vocabulary - 1
        given = list(tokens) if isinstance(tokens, Iterable) else [None]
        for token in given:
            if isinstance(token, bool) or not isinstance(token, int | np.integer) or not 0 <= token <= most:
                raise InputError(f"{what} must be whole numbers from 0 to {most}, not {tokens if given == [None] else token!r}")
        return list(map(int, given))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with together."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
