"""Names from models and libraries, as terminals and pictures may show them."""

from __future__ import annotations

import unicodedata

# Control characters, and those that order text anew or end a line: a terminal obeys them.
_OBEYED = ("Cc", "Cf", "Zl", "Zp")


def printable(text: str) -> str:
    """The text with escapes for terminal controls: an escape character becomes the four characters \\x1b."""
    if text.isprintable():
        return text
    return "".join(repr(c)[1:-1] if unicodedata.category(c) in _OBEYED else c for c in text)
