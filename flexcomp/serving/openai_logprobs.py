"""Log probabilities of an answer's tokens, in the two forms of OpenAI's protocol."""

from __future__ import annotations

import codecs
from typing import Any

from flexcomp.generation import Chance, Reply, TokenBytes

ENTRY_NBYTES = 512  # of a token with its probability, until it is sent


class Logprobs:
    """Of one answer, from its first token on."""

    def __init__(self, tokens: TokenBytes, is_chat: bool) -> None:
        self.count = 0  # of tokens that were given
        self._tokens, self._is_chat = tokens, is_chat
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0  # of the text so far

    def until(self, reply: Reply, count: int) -> dict[str, Any] | None:
        """Of the tokens that follow those given before, of `count` in all; None if there are none."""
        if count <= self.count:
            return None
        places = range(self.count, count)
        self.count = count
        tokens, chances = [reply.tokens[place] for place in places], [reply.chances[place] for place in places]
        return self._of_chat(tokens, chances) if self._is_chat else self._of_completion(tokens, chances)

    def _of_chat(self, tokens: list[int], chances: list[Chance]) -> dict[str, Any]:
        entries = [
            self._entry(token, one.logprob) | {"top_logprobs": [self._entry(*other) for other in one.likeliest]}
            for token, one in zip(tokens, chances, strict=True)
        ]
        return {"content": entries, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        found = self._tokens.of(token)
        return {"token": found.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(found)}

    def _of_completion(self, tokens: list[int], chances: list[Chance]) -> dict[str, Any]:
        offsets = [self._offset_of(self._tokens.of(token)) for token in tokens]
        return {
            "tokens": [self._name(token) for token in tokens],
            "token_logprobs": [one.logprob for one in chances],
            "top_logprobs": [{self._name(token): logprob for token, logprob in one.likeliest} for one in chances],
            "text_offset": offsets,
        }

    def _offset_of(self, token: bytes) -> int:
        """Where a token begins in the text: a part of a character where that does, and others after all that came before."""
        before = self._offset
        self._offset += len(self._characters.decode(token))
        return before if (text := _text(token)) is None else self._offset - len(text)

    def _name(self, token: int) -> str:
        """The text of a token; its bytes, as the protocol writes them, where they are no text."""
        found = self._tokens.of(token)
        if (text := _text(found)) is None:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in found)
        return text


def _text(token: bytes) -> str | None:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return None
