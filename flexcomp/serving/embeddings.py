"""OpenAI's route for embeddings: texts in, a row of numbers for each, by an encoder of the pool and the tokenizer next to it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from starlette.types import Receive, Scope, Send

from flexcomp.errors import InputError
from flexcomp.generation import FolderTokenizer, Pooling, read_pooling
from flexcomp.generation.names import IDS, MASKS, POOLED, ROWS, TYPES
from flexcomp.generation.tokenizer import TOKENIZER

from .account import Account, accounted
from .answers import BAD, FAULT, UNKNOWN, Refusal, send_json
from .inference import computed
from .models import Model
from .service import Service

_MOST_TEXTS = 2048  # of a request, says the protocol
_NUMBER_NBYTES = 24  # of a number as text, with its object
_NAMES = ("model", "input", "encoding_format", "dimensions", "user")


@dataclass(frozen=True)
class Encoder:
    """A model of the pool whose inputs are the tokens of a text, with its tokenizer and pooling."""

    tokenizer: FolderTokenizer
    pooling: Pooling
    output: str
    is_pooled: bool  # by the network
    most_tokens: int
    width: int

    @classmethod
    def of(cls, model: Model, folder: Path) -> Encoder:
        """Raises InputError for a model that is no encoder, or a broken tokenizer."""
        output = _output(model)
        if output is None:
            raise InputError(f"{model.name} is no encoder: its inputs and outputs are not those of one")
        ids = next(port for port in model.most_inputs if port.name in IDS)
        pooling, width = read_pooling(folder), next(port.shape[-1] for port in model.most_outputs if port.name == output)
        is_pooled = output in POOLED
        tokenizer = FolderTokenizer(folder)
        return cls(tokenizer, pooling, output, is_pooled, ids.shape[-1], width * (1 if is_pooled else len(pooling.modes)))

    def inputs(self, model: Model, tokens: Sequence[int]) -> dict[str, np.ndarray]:
        """Of one text."""
        values = {port: tokens if port.name in IDS else [int(port.name in MASKS)] * len(tokens) for port in model.inputs}
        return {port.name: np.array([value], port.array_dtype) for port, value in values.items()}

    def embedding(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Of one text."""
        found = outputs[self.output][0]
        return self.pooling.finished(found) if self.is_pooled else self.pooling.of(found)


def _output(model: Model) -> str | None:
    """The output that embeddings are made of; None for a model that is no encoder of texts of any length."""
    if not all(port.name in (*IDS, *MASKS, *TYPES) and port.shape == (1, -1) for port in model.inputs):
        return None
    names = [port.name for port in model.outputs]
    return next((name for name in (*POOLED, *ROWS) if name in names), None)


@dataclass(frozen=True)
class _Asked:
    model: str
    texts: list[str | list[int]]
    is_base64: bool


class Embeddings:
    """The application of the route. Raises Refusal, or ClientDisconnect where nobody waits any more."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._encoders: dict[str, tuple[Model, Encoder]] = {}

    @property
    def names(self) -> list[str]:
        """Of encoders that are loaded."""
        models = self._service.models
        return [name for name in models.names if _output(models.get(name)) and _folder(models.path(name)) is not None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with accounted(self._service, scope) as account:
            body = await self._answered(scope, receive, account)
            await send_json(send, body)

    async def _answered(self, scope: Scope, receive: Receive, account: Account) -> bytes:
        service, share, facts = self._service, account.share, account.facts
        body = await account.read_json(scope, receive, service.room.nbytes)
        async with service.reading:
            asked = await service.in_thread(partial(_read, body))
            model, encoder = await service.in_thread(partial(self._encoder, asked.model))
            facts["model"] = account.model = model.name
            texts = await service.in_thread(partial(_tokens, encoder, asked))
        numbers = encoder.width * len(texts)
        share.hold(share.nbytes + _NUMBER_NBYTES * numbers, "a request with its answer")
        found = []
        for tokens in texts:
            service.require_open()
            outputs = await computed(service, receive, model, encoder.inputs(model, tokens), account)
            found.append(encoder.embedding(outputs))
        count = sum(map(len, texts))
        facts["prompt_tokens"] = count
        async with service.reading:
            return await service.in_thread(partial(_written, asked, found, count))

    def _encoder(self, name: str) -> tuple[Model, Encoder]:
        service = self._service
        if name in service.languages:
            raise Refusal(BAD, f"the model {name[:80]!r} is a decoder, which has no embeddings: name an encoder")
        model = service.models.get(name)
        folder = _folder(service.models.path(name))
        if _output(model) is None or folder is None:
            listed = ", ".join(self.names) or f"none: build an encoder's folder, which keeps {TOKENIZER} next to the library"
            raise Refusal(UNKNOWN, f"the model {name[:80]!r} has no embeddings of texts; encoders are {listed}")
        known = self._encoders.get(name)
        if known is None or known[0] is not model:  # loaded anew meanwhile
            self._encoders[name] = known = (model, Encoder.of(model, folder))
        return known


def _folder(path: Path) -> Path | None:
    folder = path.resolve().parent
    return folder if (folder / TOKENIZER).exists() else None


def _read(body: bytes) -> _Asked:
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(BAD, f"the request is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise Refusal(BAD, "the request must be a JSON object")
    given = {name: value for name, value in given.items() if value is not None}
    if unknown := [name for name in given if name not in _NAMES]:
        raise Refusal(BAD, f"{unknown[0][:80]!r} is not known here: leave it out")
    if "dimensions" in given:
        raise Refusal(BAD, "'dimensions' is not supported: embeddings have as many as the encoder gives")
    if not isinstance(given.get("model"), str):
        raise Refusal(BAD, "model must be a text")
    if (form := given.get("encoding_format", "float")) not in ("float", "base64"):
        raise Refusal(BAD, "encoding_format must be float or base64")
    return _Asked(given["model"], _texts(given.get("input")), form == "base64")


def _texts(given: Any) -> list[str | list[int]]:
    texts = [given] if isinstance(given, str) or (isinstance(given, list) and given and all(map(_is_token, given))) else given
    if not isinstance(texts, list) or not 0 < len(texts) <= _MOST_TEXTS:
        raise Refusal(BAD, f"input must be a text, its tokens, or a list of 1 to {_MOST_TEXTS} of these")
    for index, one in enumerate(texts):
        if not one or not (isinstance(one, str) or (isinstance(one, list) and all(map(_is_token, one)))):
            raise Refusal(BAD, f"input[{index}] must be a text, or a list of its tokens, and not empty")
    return texts


def _is_token(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)


def _tokens(encoder: Encoder, asked: _Asked) -> list[list[int]]:
    found = []
    most = encoder.tokenizer.tokenizer.get_vocab_size()
    for index, one in enumerate(asked.texts):
        tokens = encoder.tokenizer.encode(one) if isinstance(one, str) else one
        if strange := [token for token in tokens if not 0 <= token < most]:
            raise Refusal(BAD, f"input[{index}] has the token {strange[0]}, and tokens are from 0 to {most - 1}")
        if not 0 < len(tokens) <= encoder.most_tokens:
            raise Refusal(BAD, f"input[{index}] has {len(tokens)} tokens, and the model takes 1 to {encoder.most_tokens}")
        found.append(tokens)
    return found


def _written(asked: _Asked, found: Sequence[np.ndarray], tokens: int) -> bytes:
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": base64.b64encode(one.astype("<f4").tobytes()).decode() if asked.is_base64 else one.tolist(),
        }
        for index, one in enumerate(found)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    answer = {"object": "list", "data": data, "model": asked.model, "usage": usage}
    try:
        return json.dumps(answer, allow_nan=False, separators=(",", ":")).encode()
    except ValueError:
        raise Refusal(FAULT, "the encoder's outputs are no numbers: look at its weights") from None
