"""Answers of OpenAI's protocol: whole ones, parts of streams, usage."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

from flexcomp.generation import Reply

from .openai_logprobs import Logprobs

_FINISH = {"stop": "stop", "length": "length", "capacity": "length"}
DONE = b"data: [DONE]\n\n"


class Answer:
    """The objects of one answer, all with the same identity."""

    def __init__(self, model: str, is_chat: bool, logprobs: Logprobs | None = None) -> None:
        self._is_chat, self._logprobs = is_chat, logprobs
        prefix = "chatcmpl" if is_chat else "cmpl"
        self.id = f"{prefix}-{secrets.token_hex(12)}"
        self._common = {"id": self.id, "created": int(time.time()), "model": model}

    def whole(self, text: str, reply: Reply) -> bytes:
        """All of the text."""
        content = {"message": {"role": "assistant", "content": text, "refusal": None}} if self._is_chat else {"text": text}
        kind = "chat.completion" if self._is_chat else "text_completion"
        choice = self._choice(content, reply, len(reply.tokens), reply.finish)
        return _json(self._object(kind, [choice]) | {"usage": usage(reply)})

    def first(self) -> bytes:
        """What a stream begins with."""
        return self._part({"role": "assistant", "content": ""}) if self._is_chat else b""

    def piece(self, text: str, reply: Reply, count: int) -> bytes:
        """More of the text, to which the first `count` tokens have led; none where there is neither text nor a token's chance."""
        if not text and (self._logprobs is None or self._logprobs.count == count):
            return b""
        return self._part({"content": text} if self._is_chat else text, reply, count)

    def last(self, reply: Reply, with_usage: bool) -> bytes:
        """What a stream ends with."""
        end = self._part({} if self._is_chat else "", reply, 0, reply.finish)
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        used = _event(self._object(kind, []) | {"usage": usage(reply)}) if with_usage else b""
        return end + used + DONE

    def _part(self, delta: Any, reply: Reply | None = None, count: int = 0, finish: str = "") -> bytes:
        content = {"delta": delta} if self._is_chat else {"text": delta}
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        return _event(self._object(kind, [self._choice(content, reply, count, finish)]))

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"object": kind, **self._common, "choices": choices}

    def _choice(self, content: dict[str, Any], reply: Reply | None, count: int, finish: str) -> dict[str, Any]:
        logprobs = None if self._logprobs is None or reply is None else self._logprobs.until(reply, count)
        return {"index": 0, **content, "logprobs": logprobs, "finish_reason": _FINISH.get(finish)}


def usage(reply: Reply) -> dict[str, Any]:
    """How many tokens a reply took and gave."""
    prompt, completion = reply.prompt_tokens, len(reply.tokens)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": reply.reused_tokens},
    }


def error_event(error: dict[str, Any]) -> bytes:
    """An error in the middle of a stream."""
    return _event(error)


def _event(value: Any) -> bytes:
    return b"data: " + _json(value) + b"\n\n"


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
