"""Answers of OpenAI's protocol: whole ones, parts of streams, usage."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

from flexcomp.generation import Reply

_FINISH = {"stop": "stop", "length": "length", "capacity": "length"}
DONE = b"data: [DONE]\n\n"


class Answer:
    """The objects of one answer, all with the same identity."""

    def __init__(self, model: str, is_chat: bool) -> None:
        self._is_chat = is_chat
        prefix = "chatcmpl" if is_chat else "cmpl"
        self.id = f"{prefix}-{secrets.token_hex(12)}"
        self._common = {"id": self.id, "created": int(time.time()), "model": model}

    def whole(self, text: str, reply: Reply) -> bytes:
        """All of the text."""
        content = {"message": {"role": "assistant", "content": text, "refusal": None}} if self._is_chat else {"text": text}
        kind = "chat.completion" if self._is_chat else "text_completion"
        return _json(self._object(kind, [self._choice(content, reply.finish)]) | {"usage": usage(reply)})

    def first(self) -> bytes:
        """What a stream begins with."""
        return self._part({"role": "assistant", "content": ""}) if self._is_chat else b""

    def piece(self, text: str) -> bytes:
        """More of the text."""
        return self._part({"content": text} if self._is_chat else text)

    def last(self, reply: Reply, with_usage: bool) -> bytes:
        """What a stream ends with."""
        end = self._part({} if self._is_chat else "", reply.finish)
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        used = _event(self._object(kind, []) | {"usage": usage(reply)}) if with_usage else b""
        return end + used + DONE

    def _part(self, delta: Any, finish: str = "") -> bytes:
        if self._is_chat:
            return _event(self._object("chat.completion.chunk", [self._choice({"delta": delta}, finish)]))
        return _event(self._object("text_completion", [self._choice({"text": delta}, finish)]))

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"object": kind, **self._common, "choices": choices}

    def _choice(self, content: dict[str, Any], finish: str) -> dict[str, Any]:
        return {"index": 0, **content, "logprobs": None, "finish_reason": _FINISH.get(finish)}


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
