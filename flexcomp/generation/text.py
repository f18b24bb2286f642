"""Text by a decoder and the tokenizer of its model folder: needs the package's extra `text`."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from flexcomp.errors import InputError
from flexcomp.generation.draft import Draft
from flexcomp.generation.generator import Generator, Reply
from flexcomp.generation.grammar import Grammars
from flexcomp.generation.pair import Pair, Source
from flexcomp.generation.sampling import Sampling
from flexcomp.generation.tokenizer import FolderTokenizer
from flexcomp.runtime import Session


class Text:
    """Prompts and replies as text. `folder` has tokenizer.json, and may have the files that hubs put next to it."""

    def __init__(
        self, session: Session | Pair, folder: str | os.PathLike[str], saved_nbytes: int = 0, speculate: bool | None = None,
        draft: Draft | None = None,
    ) -> None:  # fmt: skip
        """`session`: of a decoder, or the `Pair` of an encoder and its decoder.

        Raises InputError for a folder without a tokenizer, or with one of more tokens than the decoder knows."""
        self.tokenizer = FolderTokenizer(folder)
        self.generator = Generator(session, saved_nbytes, speculate, draft, self.tokenizer)
        vocabulary = self.generator.decoder.vocabulary
        self.tokenizer.require_within(vocabulary)
        self.grammars = Grammars(self.tokenizer.tokenizer, self.tokenizer.ends, vocabulary)

    def reply(
        self, prompt: str, max_tokens: int | None = None, *, stop: Collection[str] = (), sampling: Sampling | None = None,
        slide: bool = False, features: np.ndarray | None = None,
    ) -> TextReply:  # fmt: skip
        """An iterator over pieces of text that follow `prompt`, up to a text of `stop`. Raises as `Generator.reply` does.

        With an encoder, the text that `prompt` is rendered as; or, of `features`, the text that begins with `prompt`.
        """
        options = {"stop": stop, "sampling": sampling, "slide": slide}
        if (pair := self.generator.decoder.pair) is None:
            if features is not None:
                raise InputError("features are for an encoder of sound, and the library is a decoder alone")
            return self.reply_to_tokens(self.tokenizer.encode(prompt), max_tokens, **options)
        begin = self.tokenizer.decoder_begin()
        if features is None and not pair.takes_features:
            return self.reply_to_tokens(begin, max_tokens, **options, source=self.tokenizer.encode(prompt))
        begin += self.tokenizer.encode(prompt, is_plain=False)
        return self.reply_to_tokens(begin, max_tokens, **options, source=features)

    def require_chat(self) -> None:
        """Raise InputError for an encoder-decoder, or without a chat template."""
        if self.generator.decoder.pair is not None:
            raise InputError("an encoder-decoder makes one text of another, and has no conversations: give a prompt")
        self.tokenizer.chat_template()

    def chat(
        self, messages: Sequence[Mapping[str, str]], max_tokens: int | None = None, *, stop: Collection[str] = (),
        sampling: Sampling | None = None, slide: bool = False,
    ) -> TextReply:  # fmt: skip
        """The reply to a conversation of messages, {"role": …, "content": …}, in the form of the folder's template."""
        self.require_chat()
        tokens = self.tokenizer.encode(self.tokenizer.conversation(messages), is_plain=False)
        return self.reply_to_tokens(tokens, max_tokens, stop=stop, sampling=sampling, slide=slide)

    def reply_to_tokens(
        self, tokens: Sequence[int], max_tokens: int | None = None, *, stop: Collection[str] = (),
        sampling: Sampling | None = None, slide: bool = False, source: Source | None = None,
    ) -> TextReply:  # fmt: skip
        """As `reply`, to a prompt of tokens; with an encoder the tokens that the reply begins with, and its `source`."""
        if isinstance(stop, str) or not all(isinstance(one, str) and one for one in stop):
            raise InputError("stop is a collection of texts, none of them empty")
        constraint = None if sampling is None or sampling.grammar is None else self.grammars.begin(sampling.grammar)
        suppressed = {"never": self.tokenizer.never, "never_first": self.tokenizer.never_first}
        options = {"sampling": sampling, "slide": slide, "constraint": constraint, "source": source, **suppressed}
        reply = self.generator.reply(tokens, max_tokens, stop=self.tokenizer.ends, **options)
        return TextReply(reply, self.tokenizer, tuple(stop))


class TextReply(Iterator[str]):
    """Pieces of text, none of which splits a character; `reply` has the tokens and times."""

    def __init__(self, reply: Reply, tokenizer: FolderTokenizer, stop: tuple[str, ...]) -> None:
        from tokenizers.decoders import DecodeStream

        self.reply = reply
        self.ended = False
        self._stream, self._tokenizer = DecodeStream(skip_special_tokens=True), tokenizer.tokenizer
        self._stop, self._held = stop, ""

    def __next__(self) -> str:
        while not self.ended:
            if piece := self.advance():
                return piece
        raise StopIteration

    def advance(self) -> str:
        """One inference; the text that is certain by now, which may be none. Raises as `Reply.advance` does."""
        count = len(self.reply.tokens)
        self.reply.advance()
        piece = ""
        while count < len(self.reply.tokens) and not self.ended:
            piece += self._released(self._stream.step(self._tokenizer, self.reply.tokens[count]) or "")
            count += 1
        if self.ended:
            self.reply.cut(count)
        if self.reply.finish and not self.ended:
            self.ended = True
            piece += self._held
        return piece

    def _released(self, piece: str) -> str:
        """What is certain not to be a text of `stop`, of all that was held back and a new piece."""
        text = self._held + piece
        found = [text.index(one) for one in self._stop if one in text]
        if found:
            self.ended, self._held = True, ""
            return text[: min(found)]
        held = max((n for one in self._stop for n in range(1, len(one)) if text.endswith(one[:n])), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]
