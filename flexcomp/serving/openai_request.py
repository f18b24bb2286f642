"""Requests of OpenAI's protocol for text: checked, and refused where they ask for more than there is.

Source: OpenAI's API reference, "Chat Completions" and "Completions". Besides its options there are `top_k`, `min_p` and
`repetition_penalty`, as other servers have them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flexcomp.errors import InputError
from flexcomp.generation import JSON_OBJECT, Grammar, Sampling

from .answers import BAD, Refusal

MOST_STOPS, MOST_MESSAGES = 16, 4096
_MOST_LOGPROBS = {True: 20, False: 5}  # says the protocol, of chats and of completions
_COMPLETION_TOKENS = 16  # of a completion, says the protocol, unless the request says otherwise
_SEEDS = 1 << 63
_ROLES = ("system", "developer", "user", "assistant")
_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed",
)  # fmt: skip
# Options that may be there, but only so; all other values would need more than there is.
_ONLY: Mapping[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "logit_bias": ({},), "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],),
    "function_call": ("none", "auto"), "echo": (False,), "suffix": ("",), "modalities": (["text"],), "audio": (),
    "prediction": (), "web_search_options": (), "store": (False,), "parallel_tool_calls": (True, False),
}  # fmt: skip
_IGNORED = ("user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key")  # that change no answer
_COMMON = (
    "model", "stream", "stream_options", "max_tokens", "stop", "logprobs", "top_logprobs", "response_format", *_SAMPLING, *_ONLY,
    *_IGNORED,
)  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """What both kinds of requests have."""

    model: str
    prompt: str | list[int] | list[dict[str, str]]  # a text, its tokens, or messages
    max_tokens: int | None
    stop: tuple[str, ...]
    sampling: Sampling
    is_stream: bool
    with_usage: bool  # at the end of a stream

    @property
    def is_chat(self) -> bool:
        """Whether the prompt is messages."""
        return isinstance(self.prompt, list) and isinstance(self.prompt[0], dict)

    @property
    def logprobs(self) -> int | None:
        """How many likeliest tokens to give for each, with its own probability; None: no probability."""
        return self.sampling.logprobs


def read_chat(body: bytes) -> Asked:
    """A request for a reply to messages. Raises Refusal."""
    given = _object(body, ("messages", "max_completion_tokens"))
    limits = [_whole(given, name) for name in ("max_completion_tokens", "max_tokens")]
    return _asked(given, _messages(given), next((one for one in limits if one is not None), None))


def read_completion(body: bytes) -> Asked:
    """A request for text that follows a prompt. Raises Refusal."""
    given = _object(body, ("prompt",))
    limit = _whole(given, "max_tokens")
    return _asked(given, _prompt(given), _COMPLETION_TOKENS if limit is None else limit)


def _object(body: bytes, own: tuple[str, ...]) -> dict[str, Any]:
    try:
        given = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise Refusal(BAD, f"the request is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise Refusal(BAD, "the request must be a JSON object")
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        if name not in (*_COMMON, *own):
            raise _wrong(name[:80], f"{name[:80]!r} is not known here: leave it out")
        if name in _ONLY and not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in _ONLY[name]):
            allowed = " or ".join(json.dumps(one) for one in _ONLY[name])
            raise _wrong(name, f"{name!r} is not supported{allowed and f', other than as {allowed}'}: leave it out")
    return given


def _asked(given: dict[str, Any], prompt: Any, max_tokens: int | None) -> Asked:
    options = _of(given, "stream_options", dict, {})
    if unknown := options.keys() - {"include_usage", "include_obfuscation"}:
        raise _wrong("stream_options", f"stream_options has {min(unknown)[:80]!r}, which is not known here")
    sampling = _sampling(given, _logprobs(given, is_chat="messages" in given))
    return Asked(
        _of(given, "model", str), prompt, max_tokens, _stops(given), sampling, _of(given, "stream", bool, False),
        _of(options, "include_usage", bool, False),
    )  # fmt: skip


def _logprobs(given: dict[str, Any], is_chat: bool) -> int | None:
    """As `Sampling` has it: chats ask by two options, completions by one."""
    most = _MOST_LOGPROBS[is_chat]
    if is_chat:
        wanted, count = _of(given, "logprobs", bool, False), given.get("top_logprobs", 0)
        if count and not wanted:
            raise _wrong("top_logprobs", "top_logprobs needs logprobs to be true")
    else:
        wanted, count = given.get("logprobs", False) is not False, given.get("logprobs") or 0
        if "top_logprobs" in given:
            raise _wrong("top_logprobs", "top_logprobs is an option of chats: a completion has the number in logprobs")
    if not _is_token(count) or not 0 <= count <= most:
        name = "top_logprobs" if is_chat else "logprobs"
        raise _wrong(name, f"{name} must be a whole number from 0 to {most}")
    return count if wanted else None


def _grammar(given: dict[str, Any]) -> Grammar | None:
    asked = _of(given, "response_format", dict, {"type": "text"})
    kind = asked.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Grammar.json_schema(JSON_OBJECT)
    if kind != "json_schema":
        raise _wrong("response_format", "response_format must be of type text, json_object or json_schema: others are not known")
    named = asked.get("json_schema")
    if not isinstance(named, dict) or not isinstance(named.get("schema"), dict):
        raise _wrong("response_format", "response_format.json_schema must be an object with a schema, which is an object")
    return Grammar.json_schema(named["schema"])


def _sampling(given: dict[str, Any], logprobs: int | None) -> Sampling:
    chosen = {"temperature": 1.0, **{name: given[name] for name in _SAMPLING if name in given}}
    if isinstance(seed := chosen.get("seed"), int) and not isinstance(seed, bool):
        chosen["seed"] = seed % _SEEDS  # clients may give negative ones
    try:
        grammar = _grammar(given)
    except InputError as error:
        raise _wrong("response_format", str(error)) from None
    try:
        return Sampling(**chosen, grammar=grammar, logprobs=logprobs)
    except InputError as error:
        raise _wrong(str(error).split()[0], str(error)) from None


def _stops(given: dict[str, Any]) -> tuple[str, ...]:
    found = given.get("stop", [])
    found = [found] if isinstance(found, str) else found
    if not isinstance(found, list) or len(found) > MOST_STOPS or not all(isinstance(one, str) and one for one in found):
        raise _wrong("stop", f"stop must be a text, or a list of up to {MOST_STOPS} texts, none of them empty")
    return tuple(found)


def _messages(given: dict[str, Any]) -> list[dict[str, str]]:
    found = _of(given, "messages", list)
    if not 0 < len(found) <= MOST_MESSAGES:
        raise _wrong("messages", f"messages must be a list of 1 to {MOST_MESSAGES}")
    return [_message(one, f"messages[{index}]") for index, one in enumerate(found)]


def _message(given: Any, where: str) -> dict[str, str]:
    if not isinstance(given, dict) or given.get("role") not in _ROLES:
        raise _wrong(where, f"{where} must have a role of {', '.join(_ROLES)}")
    if more := [name for name, value in given.items() if name not in ("role", "content", "name") and value is not None]:
        raise _wrong(f"{where}.{more[0][:80]}", f"{where} has {more[0][:80]!r}, which is not supported")
    content = given.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise _wrong(f"{where}.content", f"{where} must have a text for its content, or a list of parts of type text")
    for index, part in enumerate(parts):
        if not _is_text(part):
            kind = part.get("type") if isinstance(part, dict) else None
            found = f"of type {kind[:80]!r}" if isinstance(kind, str) else "without a type"
            here = f"{where}.content[{index}]"
            raise _wrong(here, f"{here} is {found}: only parts of type text, with a text, are supported")
    role = "system" if given["role"] == "developer" else given["role"]
    return {"role": role, "content": "".join(part["text"] for part in parts)}


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _prompt(given: dict[str, Any]) -> str | list[int]:
    found = given.get("prompt")
    if isinstance(found, list) and len(found) == 1 and not _is_token(found[0]):
        found = found[0]
    if isinstance(found, str) or (isinstance(found, list) and found and all(map(_is_token, found))):
        return found
    raise _wrong("prompt", "prompt must be one text, or the list of its tokens: several prompts are not supported")


def _is_token(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)


def _whole(given: dict[str, Any], name: str) -> int | None:
    found = given.get(name)
    if found is not None and (not _is_token(found) or found < 1):
        raise _wrong(name, f"{name} must be a whole number above 0")
    return found


def _of(given: dict[str, Any], name: str, kind: Callable, default: Any = None) -> Any:
    found = given.get(name, default)
    if not isinstance(found, kind):
        words = {str: "a text", bool: "true or false", list: "a list", dict: "an object"}
        raise _wrong(name, f"{name} must be {words[kind]}")
    return found


def _wrong(field: str, message: str) -> Refusal:
    return Refusal(BAD, message, field=field)
