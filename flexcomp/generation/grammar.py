"""Grammars of replies, which the package llguidance follows token by token: each masks the tokens that cannot come next."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from flexcomp.errors import InputError
from flexcomp.generation.token_bytes import TokenBytes

_SPACES = r"[ \n\r\t]{0,40}"  # between tokens of JSON: a reply of spaces without end is no reply
_TABLE_NBYTES = 256  # for each token, of the tables that all grammars share
_STATES = 1000  # of a grammar's automaton, which grows with the text
GRAMMAR_NBYTES = 1 << 21  # of a grammar with so many


@dataclass(frozen=True)
class Grammar:
    """Texts that a reply may be."""

    source: str  # as llguidance reads it

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any]) -> Grammar:
        """JSON that a schema describes. Raises InputError, also for a schema that asks for more than grammars can say."""
        try:
            options = {"whitespace_pattern": _SPACES}
            return cls(_llguidance().LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options))
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"the JSON schema is none: {error}") from None

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """Rules in the language of Lark, as llguidance has it; the rule `start` is the whole text."""
        return cls(_llguidance().LLMatcher.grammar_from_lark(text))


JSON_OBJECT: Mapping[str, Any] = {"type": "object"}


class Constraint(Protocol):
    """Of one reply."""

    def allowed(self) -> np.ndarray: ...  # of each token, whether it may come next
    def take(self, token: int) -> bool: ...  # a token has come; whether the text is complete, and nothing may follow


class Grammars:
    """Of a tokenizer. The first grammar makes tables of all tokens, for which others wait."""

    def __init__(self, tokenizer: Any, ends: Collection[int], vocabulary: int) -> None:
        self._tokenizer, self._ends, self._vocabulary = tokenizer, sorted(ends), vocabulary
        self._making = threading.Lock()
        self._tables: Any = None

    @property
    def nbytes(self) -> int:
        """Of the tables."""
        return _TABLE_NBYTES * self._vocabulary

    def begin(self, grammar: Grammar) -> Constraint:
        """Follow a grammar from the beginning of a reply. Raises InputError for one that is wrong or too complex."""
        if not self._ends:
            raise InputError("a grammar needs a token that ends replies: name the model's eos_token in generation_config.json")
        with self._making:
            if self._tables is None:
                self._tables = _tables(self._tokenizer, self._ends, self._vocabulary)
        limits = _llguidance().LLParserLimits(verbose_errors=False, max_lexer_states=_STATES)
        matcher = _llguidance().LLMatcher(self._tables, grammar.source, log_level=0, limits=limits)
        return _Followed(matcher, self._ends, self._vocabulary)


class _Followed:
    def __init__(self, matcher: Any, ends: Collection[int], vocabulary: int) -> None:
        self._matcher, self._ends, self._vocabulary = matcher, list(ends), vocabulary
        self._require_right()

    def allowed(self) -> np.ndarray:
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
        self._require_right()
        found = np.zeros(self._vocabulary, bool)
        found[: len(bits)] = bits[: self._vocabulary]
        found[self._ends] = self._matcher.is_accepting()
        if not found.any():
            raise InputError("no token of the model can go on in the grammar: change it")
        return found

    def take(self, token: int) -> bool:
        if token in self._ends:
            return True
        self._matcher.consume_token(token)
        self._require_right()
        return self._matcher.is_stopped()

    def _require_right(self) -> None:
        if self._matcher.is_error():
            words = " ".join(self._matcher.get_error().split())
            raise InputError(f"the grammar is refused: {words[:300]}")


def _tables(tokenizer: Any, ends: list[int], vocabulary: int) -> Any:
    library = _llguidance()
    wrapped = _Tokens(tokenizer, ends[0], vocabulary)
    tables = library.LLTokenizer(library.TokenizerWrapper(wrapped), eos_token=ends, slices=[])
    wrapped.cut = tables.greedy_tokenize
    wrapped.tokens = []  # are in the tables
    return tables


class _Tokens:
    """A tokenizer as llguidance wants it. Text that a grammar prescribes is cut greedily: any tokens of it are allowed."""

    bos_token_id = None

    def __init__(self, tokenizer: Any, end: int, count: int) -> None:
        found = TokenBytes(tokenizer)
        self.eos_token_id = end
        self.tokens = [found.of(token) for token in range(count)]
        self.special_token_ids = [token for token in range(count) if found.is_special(token)]
        self.cut: Any = None

    def __call__(self, text: bytes | str) -> list[int]:
        if self.cut is None:  # asked once, before there are tables, for what it takes
            return []
        return self.cut(text if isinstance(text, str) else text.decode())


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError:
        raise InputError("grammars need the package llguidance: pip install 'flexcomp[text]'") from None
    return llguidance
