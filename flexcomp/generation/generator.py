"""Replies: tokens that follow a prompt."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

import numpy as np

from flexcomp.arguments import checked_number
from flexcomp.errors import InputError
from flexcomp.generation.decoder import Decoder
from flexcomp.generation.draft import Draft
from flexcomp.generation.grammar import Constraint
from flexcomp.generation.lookup import PromptLookup
from flexcomp.generation.pair import Pair, Source
from flexcomp.generation.sampling import Chance, Sampler, Sampling
from flexcomp.generation.speculation import Account, Speculation
from flexcomp.generation.tokenizer import FolderTokenizer
from flexcomp.runtime import Session


class Reply(Iterator[int]):
    """The tokens of a reply, each computed when it is asked for, and with it those that were proposed and are right."""

    def __init__(
        self, account: Account, prompt: Sequence[int], most: int, stop: frozenset[int], sampling: Sampling,
        slide: bool = False, constraint: Constraint | None = None, encoded: Mapping[str, np.ndarray] | None = None,
        source: Source | None = None, draft: Draft | None = None, never: Collection[int] = (), never_first: Collection[int] = (),
    ) -> None:  # fmt: skip
        decoder = account.decoder
        self.prompt_tokens = len(prompt)
        self.reused_tokens = 0  # of the prompt, that the caches held already
        self.tokens: list[int] = []
        self.chances: list[Chance] = []  # of the tokens, where `Sampling.logprobs` asks for them
        # "stop": a token of `stop`, or a whole text of the grammar; "length": as many as were asked for; "capacity": the caches
        # are full
        self.finish = ""
        self.passes = 0  # inferences
        self.first_token_s = self.seconds = 0.0  # from the first request to the first token, and to the last
        self.most_places = min(decoder.capacity, len(prompt) + most)  # of caches
        self._decoder, self._sequence, self._most, self._stop = decoder, list(prompt), most, stop
        self._encoded, self._source = encoded, source
        self._context, self._slides = list(prompt), slide  # the tokens that the next one depends on
        self._sampler, self._begin, self._given = Sampler(sampling, constraint, never, never_first), 0.0, 0
        proposer = PromptLookup() if draft is None else draft.begin(self, self._sampler, decoder.vocabulary)
        self.speculation = Speculation(account, proposer)

    def __next__(self) -> int:
        """Raises StopIteration at the end; errors of `Session.run`, after which the reply goes on where it was."""
        while len(self.tokens) == self._given:
            if self.finish:
                raise StopIteration
            self.advance()
        self._given += 1
        return self.tokens[self._given - 1]

    def advance(self) -> None:
        """One inference, after which there may be tokens more, or the end: a prompt takes as many as it has chunks.

        The first one comes after the encoder's, if there is one.
        """
        is_first = not self._begin
        self._begin = self._begin or time.perf_counter()
        if self._source is not None:
            self._encoded, self._source = self._decoder.encode(self._source), None
        if len(self._context) > self._decoder.capacity:
            self._slide()
        self._decoder.turn_to(self, self._context, self._encoded)
        if is_first:
            self.reused_tokens = len(self._decoder.tokens)
        left = len(self._context) - len(self._decoder.tokens)
        size, drafts = self.speculation.next(self._sequence, self._context, left, self._most - len(self.tokens))
        rows = self._decoder.advance(self._context, drafts, size)
        self.passes += 1
        if rows is None:
            return
        right = 0
        for row, draft in zip_longest(rows, drafts):
            token = self._sampler.draw(row, self._sequence)  # as it would be drawn without a draft: no distribution changes
            self._take(token, row)
            if token != draft:
                break
            right += 1
            if self.finish:
                break
        self._decoder.accept(drafts[:right])
        self.speculation.count(len(drafts), right)
        self.seconds = time.perf_counter() - self._begin
        self.first_token_s = self.first_token_s or self.seconds

    def _take(self, token: int, row: np.ndarray) -> None:
        if token in self._stop:
            self.finish = "stop"
            return
        is_complete = self._sampler.completes(token)
        self.tokens.append(token)
        self._sequence.append(token)
        self._context.append(token)
        if (chance := self._sampler.chance(row, token)) is not None:
            self.chances.append(chance)
        if is_complete:
            self.finish = "stop"
        elif len(self.tokens) == self._most:
            self.finish = "length"
        elif len(self._context) > self._decoder.capacity and not self._slides:
            self.finish = "capacity"

    def _slide(self) -> None:
        """Forget the older half of the context but its first token, which much of attention goes to."""
        self._context = [self._context[0], *self._context[1 - self._decoder.capacity // 2 :]]
        self._decoder.forget(self, self._context)

    def cut(self, count: int) -> None:
        """End after the first `count` tokens: a text of stop was among them."""
        del self.tokens[count:], self.chances[count:]
        self.finish = "stop"


class Generator:
    """Replies of a decoder, one at a time. What the caches hold of an earlier prompt or reply is not computed again.

    Replies may take turns. `saved_nbytes` is memory for the caches of replies, and of earlier ones, that the session does not
    hold at the moment; those that have no room are computed again.

    `speculate`: take tokens along that followed when the last ones were there before, and keep those that are right. The text is
    that without, in fewer inferences. None: while such an inference takes hardly longer, by the plan where reading weights binds,
    and as measured. True: wherever the shapes allow it, until that has lost a few inferences.
    `draft`: a smaller decoder proposes the tokens instead, until that has lost a few inferences.
    """

    def __init__(
        self, session: Session | Pair, saved_nbytes: int = 0, speculate: bool | None = None, draft: Draft | None = None,
        tokenizer: FolderTokenizer | None = None,
    ) -> None:  # fmt: skip
        """`session`: of a decoder, or the `Pair` of an encoder and its decoder. `tokenizer`: that of the draft must be the same.

        Raises InputError for a library that is no decoder with caches as its state, and for a draft of other tokens.
        """
        self.decoder, self.draft = Decoder(session), draft
        if draft is not None:
            if speculate is False:
                raise InputError("a draft is for speculation: leave out speculate=False (--no-speculate), or the draft")
            draft.require_for(self.decoder, tokenizer)
        self._account = Account(self.decoder, speculate if draft is None else True)
        self.set_saved_limit(checked_number(saved_nbytes, "saved_nbytes", least=0))

    @property
    def place_nbytes(self) -> int:
        """Bytes that a token takes in caches, with those of the draft."""
        return sum(one.saved.place_nbytes for one in self._decoders)

    @property
    def saved_nbytes(self) -> int:
        """Bytes of saved caches now."""
        return sum(one.saved.nbytes for one in self._decoders)

    @property
    def _decoders(self) -> list[Decoder]:
        return [self.decoder, *([] if self.draft is None else [self.draft.decoder])]

    @property
    def sessions(self) -> list[Session | Pair]:
        """The decoder's, with that of the encoder or of the draft."""
        return [one.pair or one.session for one in self._decoders]

    def set_saved_limit(self, nbytes: int) -> None:
        """Hold so many bytes of saved caches at most, from now on: of as many tokens by the decoder as by its draft."""
        for one in self._decoders:
            one.saved.set_limit(nbytes * one.saved.place_nbytes // self.place_nbytes)

    def cancel(self) -> None:
        """End the inference in progress, as `Session.cancel`."""
        for session in self.sessions:
            session.cancel()

    def reply(
        self, prompt: Sequence[int], max_tokens: int | None = None, *, stop: Collection[int] = (),
        sampling: Sampling | None = None, slide: bool = False, constraint: Constraint | None = None,
        encoded: Mapping[str, np.ndarray] | None = None, source: Source | None = None, never: Collection[int] = (),
        never_first: Collection[int] = (),
    ) -> Reply:  # fmt: skip
        """An iterator over the tokens that follow `prompt`: up to `max_tokens`, to a token of `stop`, or until caches are full.

        With `slide`, full caches forget the older half of the text but its first token, and the rest is computed again.
        `source` is what the encoder of a `Pair` takes: the tokens of a text, or features. Of another encoder `encoded` is what
        it made, by the names of states that stay as they are set and of inputs `encoder_…`.
        `constraint` follows the grammar of `sampling` (`Grammars.begin`); a `Text` makes it. Tokens `never` do not occur in the
        reply, and those of `never_first` do not begin it: suppress_tokens and begin_suppress_tokens of transformers, which a
        `Text` reads from the model's folder. Raises InputError for a prompt without tokens, or, without `slide`, of more than
        the caches have places for.
        """
        decoder, prompt = self.decoder, self._checked(prompt, "a prompt's tokens")
        if not prompt:
            raise InputError("a prompt has at least one token")
        if slide:
            decoder.require_sliding()
        else:
            decoder.require_room(len(prompt))
        if decoder.pair is None or encoded is None:
            decoder.require_source(source)
        if source is None:
            decoder.require_encoded(encoded or {})
        elif encoded is not None:
            raise InputError("source and encoded exclude each other")
        ends = frozenset(self._checked(stop, "tokens of stop"))
        never, never_first = (self._checked(tokens, "suppressed tokens") for tokens in (never, never_first))
        endless = sys.maxsize if slide else decoder.capacity + 1
        most = endless if max_tokens is None else checked_number(max_tokens, "max_tokens", least=1)
        sampling = sampling or Sampling()
        if (sampling.grammar is None) != (constraint is None):
            raise InputError("a grammar is of texts: give it to the reply of a Text, which has a tokenizer")
        return Reply(
            self._account, prompt, most, ends, sampling, slide, constraint, encoded, source, self.draft, never, never_first
        )

    def _checked(self, tokens: Iterable[int], what: str) -> list[int]:
        """Raises InputError for anything but tokens of the decoder."""
        most = self.decoder.vocabulary - 1
        given = list(tokens) if isinstance(tokens, Iterable) else [None]
        for token in given:
            if isinstance(token, bool) or not isinstance(token, int | np.integer) or not 0 <= token <= most:
                raise InputError(f"{what} must be whole numbers from 0 to {most}, not {tokens if given == [None] else token!r}")
        return list(map(int, given))
