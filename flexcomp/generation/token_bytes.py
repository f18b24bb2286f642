"""The bytes that tokens stand for: text alone has none for a token that is part of a character."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "▁"  # as sentencepiece writes it


class TokenBytes:
    """Of the tokens of a tokenizer, by the way in which its decoder joins them."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._kinds = set(_kinds(json.loads(tokenizer.to_str()).get("decoder")))
        self._added = {token: one.content for token, one in tokenizer.get_added_tokens_decoder().items()}
        self._letters = _byte_level_letters() if "ByteLevel" in self._kinds else {}

    def of(self, token: int) -> bytes:
        """Of a token; none for a number that is no token's."""
        if (added := self._added.get(token)) is not None:
            return added.encode()
        if (written := self._tokenizer.id_to_token(token)) is None:
            return b""
        if self._letters and all(letter in self._letters for letter in written):
            return bytes(self._letters[letter] for letter in written)
        if "ByteFallback" in self._kinds and (found := _BYTE.fullmatch(written)) is not None:
            return bytes([int(found[1], 16)])
        if self._kinds & {"Metaspace", "Replace"}:
            return written.replace(_SPACE, " ").encode()
        return self._tokenizer.decode([token], skip_special_tokens=False).encode()

    def is_special(self, token: int) -> bool:
        """Whether a token was added to mark something."""
        return token in self._added


def _kinds(decoder: Any) -> Iterator[str]:
    if isinstance(decoder, dict):
        yield str(decoder.get("type"))
        for one in decoder.get("decoders") or []:
            yield from _kinds(one)


def _byte_level_letters() -> dict[str, int]:
    """The byte for each letter. Source: GPT-2's encoder.py: printable characters stand for themselves, others follow from 256."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}
