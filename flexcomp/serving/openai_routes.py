"""The routes of OpenAI's protocol: models, chats, completions, whole or as a stream of server-sent events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
from fastapi import FastAPI, Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from flexcomp.generation import GRAMMAR_NBYTES, TextReply, Turn

from .account import Account, accounted
from .answers import UNKNOWN, Refusal, answer, error_object, refusal_of, send_json
from .embeddings import Embeddings
from .language import LanguageModel
from .limits import Share, until_gone
from .openai_answer import Answer, error_event
from .openai_logprobs import ENTRY_NBYTES, Logprobs
from .openai_request import Asked, read_chat, read_completion
from .service import Service

_TOKEN_NBYTES = 64  # of a token, with its piece of text until it is sent


def add_openai_routes(app: FastAPI, service: Service) -> None:
    """Have `app` answer by OpenAI's protocol, too."""
    began, embeddings = int(time.time()), Embeddings(service)

    def described(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": began, "owned_by": "flexcomp"}

    @app.get("/v1/models")
    async def models() -> Response:
        return answer({"object": "list", "data": [described(name) for name in (*service.languages, *embeddings.names)]})

    @app.get("/v1/models/{name}")
    async def model(name: str) -> Response:
        if name not in embeddings.names:
            _language(service, name)
        return answer(described(name))

    app.add_route("/v1/embeddings", embeddings, methods=["POST"])
    app.add_route("/v1/chat/completions", Completions(service, read_chat), methods=["POST"])
    app.add_route("/v1/completions", Completions(service, read_completion), methods=["POST"])


def _language(service: Service, name: str) -> LanguageModel:
    if (found := service.languages.get(name)) is None:
        service.models.require_loaded(name)
        known = ", ".join(service.languages) or "none: name a decoder's library, with its tokenizer next to it"
        raise Refusal(UNKNOWN, f"there is no model {name[:80]!r} for text; there is {known}")
    return found


class _Said:
    """What a reply's thread says, for a coroutine: of one that waits for its client, all that was said meanwhile is one piece."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._text, self._count = "", 0
        self._error: Exception | None = None
        self._ended, self._more = False, asyncio.Event()
        self.is_sent = False  # whether the server has the whole answer

    def say(self, turn: Turn, piece: str, error: Exception | None) -> None:
        """Called in the thread."""
        with suppress(RuntimeError):  # the loop is closed: the server has ended
            self._loop.call_soon_threadsafe(self._take, piece, len(turn.reply.reply.tokens), error, turn.reply.ended)

    def _take(self, piece: str, count: int, error: Exception | None, ended: bool) -> None:
        self._text += piece
        self._count, self._error, self._ended = count, error, ended
        self._more.set()

    async def pieces(self) -> AsyncIterator[tuple[str, int]]:
        """All, to the end of the reply, each with the number of tokens so far. Raises the reply's error."""
        ended = False
        while not ended:
            await self._more.wait()
            self._more.clear()
            text, error, ended = self._text, self._error, self._ended
            self._text = ""
            if text or error is None:
                yield text, self._count
            if error is not None:
                raise error


class Completions:
    """The application of a route. Raises Refusal, or ClientDisconnect where nobody waits any more.

    Nothing is raised once the answer has begun: one that is not complete ends with the connection.
    """

    def __init__(self, service: Service, read: Callable[[bytes], Asked]) -> None:
        self._service, self._read = service, read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with accounted(self._service, scope) as account:
            asked, model, reply = await self._asked(scope, receive, account)
            self._service.require_open()
            await self._answer(receive, account.noting(send), asked, model, reply, account.facts)

    async def _asked(
        self, scope: Scope, receive: Receive, account: Account
    ) -> tuple[Asked, LanguageModel, TextReply]:
        """The request, its model, and its reply, of which nothing is computed yet."""
        service = self._service
        most = max((one.most_nbytes for one in service.languages.values()), default=1 << 16)
        body = await account.read_json(scope, receive, most)
        async with service.reading:
            asked = await service.in_thread(partial(self._read, body))
            model = _language(service, asked.model)
            account.facts["model"] = account.model = asked.model
            tokens = await service.in_thread(partial(_tokens, model, asked))
            self._hold(account.share, model, asked, len(tokens))
            begun = partial(model.text.reply_to_tokens, tokens, asked.max_tokens, stop=asked.stop, sampling=asked.sampling)
            return asked, model, await service.in_thread(begun)

    def _hold(self, share: Share, model: LanguageModel, asked: Asked, tokens: int) -> None:
        """Have the room hold all that a reply may take. Raises Refusal."""
        capacity = model.text.generator.decoder.capacity
        more = 0 if asked.logprobs is None else (1 + asked.logprobs) * ENTRY_NBYTES
        nbytes = share.nbytes + (_TOKEN_NBYTES + more) * min(capacity, tokens + (asked.max_tokens or capacity))
        if asked.sampling.grammar is not None:
            model.hold_tables(self._service.room)
            nbytes += GRAMMAR_NBYTES
        share.hold(nbytes, "a request with its reply")

    async def _answer(
        self, receive: Receive, send: Send, asked: Asked, model: LanguageModel, begun: TextReply, facts: dict[str, Any]
    ) -> None:
        said = _Said()
        turn = model.turns.begin(begun, said.say)
        logprobs = None if asked.logprobs is None else Logprobs(model.token_bytes, asked.is_chat)
        answered = Answer(asked.model, asked.is_chat, logprobs)
        write = self._stream if asked.is_stream else self._whole
        writing = asyncio.ensure_future(write(send, asked, answered, said, turn.reply))
        gone = asyncio.ensure_future(until_gone(receive))
        try:
            await asyncio.wait((writing, gone), return_when=asyncio.FIRST_COMPLETED)
            if not writing.done() and not said.is_sent:  # after a whole answer nobody waits, either
                raise ClientDisconnect
            await writing
        finally:
            model.turns.cancel(turn)
            for task in (writing, gone):
                task.cancel()
            await asyncio.gather(writing, gone, return_exceptions=True)  # or they end when their memory is collected
            reply = turn.reply.reply
            model.count(reply)
            facts |= {"id": answered.id, "prompt_tokens": reply.prompt_tokens, "tokens": len(reply.tokens)}

    async def _whole(self, send: Send, asked: Asked, answered: Answer, said: _Said, reply: TextReply) -> None:
        text = "".join([piece async for piece, _ in said.pieces()])
        body = answered.whole(text, reply.reply)
        said.is_sent = True
        await send_json(send, body)

    async def _stream(self, send: Send, asked: Asked, answered: Answer, said: _Said, reply: TextReply) -> None:
        """The answer begins with the first piece: errors before have their status."""
        began = False

        async def write(body: bytes, more: bool = True) -> None:
            nonlocal began
            if not began:
                began = True
                headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
                body = answered.first() + body
            # `asyncio.wait_for` loses cancels before Python 3.12: a reply whose client has gone would be waited for.
            with anyio.move_on_after(self._service.within_s) as sending:
                await send({"type": "http.response.body", "body": body, "more_body": more})
            if sending.cancelled_caught:  # a client that takes nothing for so long loses the connection
                raise ClientDisconnect

        try:
            async for piece, count in said.pieces():
                if body := answered.piece(piece, reply.reply, count):
                    await write(body)
        except ClientDisconnect:
            raise
        except Exception as error:
            refusal = refusal_of(error)
            if not began or refusal is None:
                raise
            told = self._service.models.without_folders_in(refusal)
            await write(error_event(error_object(told, is_openai=True)), more=False)
            return
        said.is_sent = True
        await write(answered.last(reply.reply, asked.with_usage), more=False)


def _tokens(model: LanguageModel, asked: Asked) -> list[int]:
    if asked.is_chat:
        tokens = model.text.tokenizer.encode(model.text.tokenizer.conversation(asked.prompt), is_plain=False)
    else:
        tokens = asked.prompt if isinstance(asked.prompt, list) else model.text.tokenizer.encode(asked.prompt)
    model.text.generator.decoder.require_room(len(tokens))
    return tokens
