"""A draft model: a smaller decoder of the same tokens, which proposes what a larger one says next.

Sources: Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (2023); Chen et al., "Accelerating Large
Language Model Decoding with Speculative Sampling" (2023). Their rule of rejection keeps the distribution, and draws other tokens
than without a draft. Here both decoders draw by the same random numbers (`Sampler.ahead`), and a proposal is right if the larger
one draws the same token: a seed gives one text, whatever the budget lets the draft do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from flexcomp.errors import BudgetError, ExecutionError, InputError
from flexcomp.generation.caches import Owner
from flexcomp.generation.decoder import Decoder
from flexcomp.generation.sampling import Sampler
from flexcomp.generation.tokenizer import TOKENIZER, FolderTokenizer
from flexcomp.runtime import Budget, Session, load, read_summary
from flexcomp.runtime.budget import resolve


class Draft:
    """A decoder that proposes tokens of another one's replies. Nobody else may use its session."""

    def __init__(self, session: Session, folder: str | os.PathLike[str] | None = None) -> None:
        """`folder` has its tokenizer; without one, the two decoders must know equally many tokens. Raises InputError."""
        try:
            self.decoder = Decoder(session)
        except InputError as error:
            raise InputError(f"the draft: {error}") from None
        self.folder = None if folder is None else Path(folder)
        if self.decoder.least > 1:
            raise InputError(f"the draft takes {self.decoder.least} tokens at once or more: build it with a shape for 1, too")
        if self.decoder.encoded:
            raise InputError(f"the draft needs {', '.join(sorted(self.decoder.encoded))} of an encoder: take a decoder of text")

    def require_for(self, decoder: Decoder, tokenizer: FolderTokenizer | None) -> None:
        """Raise InputError unless it proposes tokens of `decoder`, which that verifies."""
        if decoder.encoded:
            raise InputError("replies to what an encoder made take no draft")
        if not decoder.gives_all:
            raise InputError("no shape of the decoder gives logits of several tokens, by which it could verify a draft")
        if self.folder is not None and tokenizer is not None:
            require_same_tokens(tokenizer, self.folder, self.decoder.vocabulary)
        elif self.decoder.vocabulary != decoder.vocabulary:
            counts = f"the draft knows {self.decoder.vocabulary} tokens, and the decoder {decoder.vocabulary}"
            raise InputError(f"{counts}: take a draft with the same tokenizer")

    def begin(self, owner: Owner, sampler: Sampler, vocabulary: int) -> Drafting:
        """Proposals for a reply."""
        return Drafting(self.decoder, owner, sampler, vocabulary)


class Drafting:
    """The proposals for one reply. A `Proposer`."""

    def __init__(self, decoder: Decoder, owner: Owner, sampler: Sampler, vocabulary: int) -> None:
        """`sampler` draws the reply's tokens, from `vocabulary` of them."""
        self._decoder, self._owner, self._sampler, self._vocabulary = decoder, owner, sampler, vocabulary
        self._sequence: Sequence[int] = ()
        self._context: Sequence[int] = ()

    @property
    def token_s(self) -> float | None:
        """Seconds of an inference of the draft."""
        return self._decoder.pace.seconds(self._decoder.least)

    def read(self, context: Sequence[int]) -> None:
        """Take a chunk of a prompt; of the reply's time that is a part of the prompt's."""
        if self._fits(context):
            self._is_ready(context)

    def most(self, sequence: Sequence[int], context: Sequence[int], count: int) -> int:
        """`count`, or what the draft's caches have room for; none until it has taken the text, of which it takes a chunk now."""
        self._sequence, self._context = sequence, context
        if not self._fits(context):
            return 0
        return min(count, self._decoder.capacity - len(context) + 1) if self._is_ready(context) else 0

    def propose(self, count: int) -> list[int]:
        """The tokens that the draft draws, an inference each."""
        found: list[int] = []
        sampler, sequence, context = self._sampler.ahead(), [*self._sequence], [*self._context]
        while len(found) < count:
            if (rows := self._decoder.advance(context)) is None:
                continue
            try:
                token = sampler.draw(rows[-1][: self._vocabulary], sequence)
            except ExecutionError as error:
                raise ExecutionError(f"the draft: {error}") from None
            for one in (found, sequence, context):
                one.append(token)
        return found

    def _fits(self, context: Sequence[int]) -> bool:
        """Whether the draft has places for a text, and knows all of its tokens."""
        return len(context) <= self._decoder.capacity and max(context) < self._decoder.vocabulary

    def _is_ready(self, context: Sequence[int]) -> bool:
        """Whether an inference takes what is left of a text; otherwise one takes a part of it."""
        decoder, before = self._decoder, context[:-1]  # the last one's logits are needed
        decoder.turn_to(self._owner, context)
        decoder.forget(self._owner, before)
        if len(context) - len(decoder.tokens) <= decoder.most:
            return True
        decoder.advance(context)
        return False


def require_same_tokens(tokenizer: FolderTokenizer, folder: Path, vocabulary: int) -> None:
    """Raise InputError unless the tokenizer in a draft's folder is that of the decoder, for a draft that knows so many tokens."""
    if _is_same_file(folder / TOKENIZER, tokenizer.folder / TOKENIZER):
        tokenizer.require_within(vocabulary)
        return
    other = FolderTokenizer(folder)
    other.require_within(vocabulary)
    ours, theirs = (one.tokenizer.get_vocab(with_added_tokens=True) for one in (tokenizer, other))
    if ours == theirs:
        return
    token = min(token for _, token in ours.items() ^ theirs.items())
    found = [next((json.dumps(text) for text, one in known.items() if one == token), "none") for known in (theirs, ours)]
    words = f"token {token} of the draft's tokenizer in {folder} is {found[0]}, and {found[1]} of that in {tokenizer.folder}"
    raise InputError(f"{words}: take a draft with the same tokenizer")


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()
    except OSError:
        return False


def draft_nbytes(nbytes: int, least: int, draft_most: int) -> int:
    """Of the bytes for a decoder that needs `least` and its draft, those for the draft: as many as it can use.

    A draft runs several times for each inference of the decoder, and reads what it does not keep as often.
    """
    return min(draft_most, nbytes - least)


def load_with_draft(
    library: Path, draft: Path, budget: int | float | str | Budget | None, threads: int | None
) -> tuple[Session, Session]:
    """Sessions of a decoder and of its draft, together within `budget`. Raises as `load`."""
    infos = [read_summary(path) for path in (library, draft)]
    least, most = (sum(one[key] for one in infos) for key in ("min_budget_bytes", "resident_bytes"))
    default = infos[0].get("default_budget_bytes", infos[0]["resident_bytes"]) + infos[1]["resident_bytes"]
    try:
        nbytes = resolve(budget, least, default, most)
    except BudgetError as error:
        raise BudgetError(f"of a decoder with its draft: {error}") from None
    part = draft_nbytes(nbytes, infos[0]["min_budget_bytes"], infos[1]["resident_bytes"])
    session = load(library, nbytes - part, threads)
    try:
        return session, load(draft, part, threads)
    except BaseException:
        session.close()
        raise
