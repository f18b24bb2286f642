"""The text side of a model's folder: tokenizer, ends of replies, chat template. Needs the package's extra `text`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flexcomp.errors import InputError
from flexcomp.generation.template import ChatTemplate

TOKENIZER, TEMPLATE, CONFIG, GENAI = "tokenizer.json", "chat_template.jinja", "config.json", "genai_config.json"
_SETTINGS = (CONFIG, "tokenizer_config.json", "generation_config.json")  # of keys in several files the last one's counts
FILES = (TOKENIZER, TEMPLATE, GENAI, *_SETTINGS)  # all that is read; the first is needed
_MOST_NBYTES = 1 << 28  # of a file


class FolderTokenizer:
    """The tokenizer in a folder, with settings as hubs put them next to it."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Raises InputError for a folder without a tokenizer, or with broken files."""
        self.folder = Path(folder)
        self.tokenizer = _tokenizer(self.folder / TOKENIZER)
        self.settings = read_settings(self.folder)
        self.ends = frozenset(self._ends())  # tokens that end a reply
        self.never, self.never_first = self._tokens("suppress_tokens"), self._tokens("begin_suppress_tokens")  # of replies
        self._chat_template: ChatTemplate | None = None

    def require_within(self, vocabulary: int) -> None:
        """Raise InputError if the tokenizer has more tokens than a decoder knows."""
        tokens = self.tokenizer.get_vocab_size()
        if tokens > vocabulary:
            tokens_of = f"the tokenizer in {self.folder} has {tokens} tokens, and the decoder {vocabulary}"
            raise InputError(f"{tokens_of}: it is another model's")

    def encode(self, text: str, is_plain: bool = True) -> list[int]:
        """The tokens of a text; a plain one, which no template made, gets those that begin each text."""
        return self.tokenizer.encode(text, add_special_tokens=is_plain).ids

    def decoder_begin(self) -> list[int]:
        """Tokens that an encoder-decoder's text begins with. Raises InputError if the files do not say them."""
        start = self.settings.get("decoder_start_token_id", self.settings.get("bos_token_id"))
        if not isinstance(start, int):
            raise InputError(f"{self.folder}: no file says decoder_start_token_id, which texts of the decoder begin with")
        forced = self.settings.get("forced_decoder_ids") or []
        pairs = [one for one in forced if isinstance(one, list) and len(one) == 2] if isinstance(forced, list) else []
        later = [token for _, token in sorted(pairs, key=lambda one: one[0])] or [self.settings.get("forced_bos_token_id")]
        known = []
        for token in later:  # up to the first that is the model's own choice
            if not isinstance(token, int):
                break
            known.append(token)
        return [start, *known]

    def _tokens(self, setting: str) -> frozenset[int]:
        """The tokens that a setting lists. Raises InputError for anything else."""
        given = self.settings.get(setting) or []
        if not isinstance(given, list) or not all(type(one) is int and one >= -1 for one in given):
            raise InputError(f"{self.folder}: {setting} is no list of tokens: correct it, or leave it out")
        return frozenset(given) - {-1}  # which stands for none

    def _ends(self) -> Iterator[int]:
        given = self.settings.get("eos_token_id", [])
        yield from (one for one in (given if isinstance(given, list) else [given]) if isinstance(one, int))
        named = self._special("eos_token")
        if named and (token := self.tokenizer.token_to_id(named)) is not None:
            yield token

    def _special(self, name: str) -> str:
        """The text of a token with a name, such as eos_token; empty if there is none."""
        given = self.settings.get(name)
        given = given.get("content") if isinstance(given, dict) else given
        return given if isinstance(given, str) else ""

    def conversation(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt that the folder's template makes of messages. Raises InputError if none does."""
        names = {key: self._special(key) for key in self.settings if key.endswith("_token")}
        if self._chat_template is None:
            self._chat_template = ChatTemplate(self.chat_template())
        try:
            return self._chat_template.conversation(messages, names)
        except InputError as error:
            raise InputError(f"the chat template of {self.folder} {error}") from None

    def close(self) -> None:
        """End the process of the chat template, if there is one."""
        if self._chat_template is not None:
            self._chat_template.close()

    def chat_template(self) -> str:
        """The text of the folder's template. Raises InputError if there is none."""
        path = self.folder / TEMPLATE
        found = _read(path) if path.is_file() else self.settings.get("chat_template")
        if isinstance(found, list):  # several with names
            found = next((one.get("template") for one in found if isinstance(one, dict) and one.get("name") == "default"), None)
        if not isinstance(found, str):
            raise InputError(f"{self.folder} has no chat template ({TEMPLATE}): give a prompt")
        return found


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of all files in a model's folder. Raises InputError for broken files."""
    model = read_object(folder / GENAI).get("model")
    found = {key: value for key, value in (model.items() if isinstance(model, dict) else ()) if key.endswith("_token_id")}
    for name in _SETTINGS:
        found |= read_object(folder / name)
    return found


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is none. Raises InputError for anything else."""
    return read_json(path, dict)


def read_json(path: Path, kind: type) -> Any:
    """The JSON object or list in a file; empty if there is none. Raises InputError for anything else."""
    if not path.exists():
        return kind()
    try:
        found = json.loads(_read(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path} is no JSON: {error}") from None
    if not isinstance(found, kind):
        raise InputError(f"{path} is no JSON {'object' if kind is dict else 'list'}")
    return found


def _tokenizer(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise InputError("text needs the package tokenizers: pip install 'flexcomp[text]'") from None
    try:
        found = Tokenizer.from_str(_read(path))
        found.no_truncation()  # texts are as long as they are
        found.no_padding()
        return found
    except InputError:
        raise
    except Exception as error:  # the library raises nothing narrower
        raise InputError(f"{path} is no tokenizer: {error}") from None


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_NBYTES:
            raise InputError(f"{path} has more than {_MOST_NBYTES} bytes: it is no file of a tokenizer")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path} ({error}): give the model's folder, with its tokenizer") from None
