"""Text by a decoder and the tokenizer of its model folder: needs the package's extra `text`."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flexcomp.errors import InputError
from flexcomp.generation.generator import Generator, Reply
from flexcomp.generation.sampling import Sampling
from flexcomp.runtime import Session

_TOKENIZER = "tokenizer.json"
_SETTINGS = ("tokenizer_config.json", "generation_config.json")
_TEMPLATE = "chat_template.jinja"
_MOST_NBYTES = 1 << 28  # of a file of settings or a tokenizer
_LONGEST_CHAT = 1 << 24  # characters of a conversation in its template


class Text:
    """Prompts and replies as text. `folder` has tokenizer.json, and may have the files that hubs put next to it."""

    def __init__(self, session: Session, folder: str | os.PathLike[str]) -> None:
        """Raises InputError for a folder without a tokenizer, or with one of more tokens than the decoder knows."""
        self.generator = Generator(session)
        self._folder = Path(folder)
        self._tokenizer = _tokenizer(self._folder / _TOKENIZER)
        tokens, known = self._tokenizer.get_vocab_size(), self.generator.decoder.vocabulary
        if tokens > known:
            raise InputError(f"the tokenizer in {folder} has {tokens} tokens, and the decoder {known}: it is another model's")
        self._settings = {key: value for name in _SETTINGS for key, value in _settings(self._folder / name).items()}
        self.ends = frozenset(self._ends())

    def _ends(self) -> Iterator[int]:
        """Tokens that end a reply."""
        given = self._settings.get("eos_token_id", [])
        yield from (one for one in (given if isinstance(given, list) else [given]) if isinstance(one, int))
        named = self._special("eos_token")
        if named and (token := self._tokenizer.token_to_id(named)) is not None:
            yield token

    def _special(self, name: str) -> str:
        """The text of a token with a name, such as eos_token; empty if there is none."""
        given = self._settings.get(name)
        given = given.get("content") if isinstance(given, dict) else given
        return given if isinstance(given, str) else ""

    def reply(
        self, prompt: str, max_tokens: int | None = None, *, stop: Collection[str] = (), sampling: Sampling | None = None
    ) -> TextReply:
        """An iterator over pieces of text that follow `prompt`, up to a text of `stop`. Raises as `Generator.reply` does."""
        return self._reply(prompt, True, max_tokens, stop, sampling)

    def chat(
        self, messages: Sequence[Mapping[str, str]], max_tokens: int | None = None, *, stop: Collection[str] = (),
        sampling: Sampling | None = None,
    ) -> TextReply:  # fmt: skip
        """The reply to a conversation of messages, {"role": …, "content": …}, in the form of the folder's template."""
        return self._reply(self.conversation(messages), False, max_tokens, stop, sampling)

    def _reply(
        self, prompt: str, is_plain: bool, most: int | None, stop: Collection[str], sampling: Sampling | None
    ) -> TextReply:
        if isinstance(stop, str) or not all(isinstance(one, str) and one for one in stop):
            raise InputError("stop is a collection of texts, none of them empty")
        tokens = self._tokenizer.encode(prompt, add_special_tokens=is_plain).ids
        reply = self.generator.reply(tokens, most, stop=self.ends, sampling=sampling)
        return TextReply(reply, self._tokenizer, tuple(stop))

    def conversation(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt that the folder's template makes of messages. Raises InputError if there is none, or it refuses."""
        path = self._folder / _TEMPLATE
        source = path.read_text() if path.is_file() else self._settings.get("chat_template")
        if not isinstance(source, str):
            raise InputError(f"{self._folder} has no chat template ({_TEMPLATE}): give a prompt")
        template, errors = _compiled(source)
        names = {key: self._special(key) for key in self._settings if key.endswith("_token")}
        parts, length = [], 0
        try:
            for part in template.generate(messages=[dict(one) for one in messages], add_generation_prompt=True, **names):
                parts.append(part)
                length += len(part)
                if length > _LONGEST_CHAT:
                    raise InputError(f"the chat template makes more than {_LONGEST_CHAT} characters: correct it")
        except errors as error:
            raise InputError(f"the chat template of {self._folder} refuses the messages: {error}") from None
        return "".join(parts)


class TextReply(Iterator[str]):
    """Pieces of text, none of which splits a character; `reply` has the tokens and times."""

    def __init__(self, reply: Reply, tokenizer: Any, stop: tuple[str, ...]) -> None:
        from tokenizers.decoders import DecodeStream

        self.reply = reply
        self._stream, self._tokenizer = DecodeStream(skip_special_tokens=True), tokenizer
        self._stop, self._held, self._ended = stop, "", False

    def __next__(self) -> str:
        while not self._ended:
            token = next(self.reply, None)
            if token is None:
                self._ended = True
                if self._held:
                    return self._held
                break
            piece = self._released(self._stream.step(self._tokenizer, token) or "")
            if piece:
                return piece
        raise StopIteration

    def _released(self, piece: str) -> str:
        """What is certain not to be a text of `stop`, of all that was held back and a new piece."""
        text = self._held + piece
        found = [text.index(one) for one in self._stop if one in text]
        if found:
            self._ended, self._held, self.reply.finish = True, "", "stop"
            return text[: min(found)]
        held = max((n for one in self._stop for n in range(1, len(one)) if text.endswith(one[:n])), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def _tokenizer(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise InputError("text needs the package tokenizers: pip install 'flexcomp[text]'") from None
    try:
        return Tokenizer.from_str(_read(path))
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


def _settings(path: Path) -> dict[str, Any]:
    """The object in a file; empty if there is none."""
    if not path.exists():
        return {}
    try:
        found = json.loads(_read(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"{path} is no JSON object")
    return found


def _compiled(source: str) -> tuple[Any, tuple[type[Exception], ...]]:
    """A template in a sandbox, and the errors that it raises."""
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise InputError("chat templates need the package jinja2: pip install 'flexcomp[text]'") from None
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment.globals["raise_exception"] = refuse
    try:
        return environment.from_string(source), (TemplateError, TypeError, ValueError, OverflowError, RecursionError)
    except TemplateError as error:
        raise InputError(f"the chat template is none: {error}") from None
