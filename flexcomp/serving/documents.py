"""The server's OpenAPI document: every route, with its arguments and possible answers."""

from __future__ import annotations

from typing import Any

from flexcomp.version import __version__

from .answers import (
    BAD,
    BUSY,
    CONFLICT,
    ENDING,
    FAULT,
    FORBIDDEN,
    LATE_BODY,
    OPENAI,
    TOO_LARGE,
    UNAUTHORISED,
    UNKNOWN,
    UNSUPPORTED,
)
from .auth import OPEN_PATHS
from .protocol import HEADER

_DATATYPES = [
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16",
]  # fmt: skip
_WORDS = {
    BAD: "The request is wrong, and the error says how",
    UNAUTHORISED: "A token is needed",
    FORBIDDEN: "A page of another site, or another host's name, and the server has no token",
    UNKNOWN: "There is no such model, or it is not loaded",
    LATE_BODY: "The body did not arrive in time",
    CONFLICT: "The budget has no room for the model",
    TOO_LARGE: "The body is larger than any that would be right",
    UNSUPPORTED: "The body is compressed",
    BUSY: "Queues or memory for bodies are full, or the deadline cannot be met",
    FAULT: "Weights could not be read, or a kernel failed",
    ENDING: "The server is ending, or has too many connections",
}
_OPENAI = "OpenAIError"
_NUMBER = {"type": "integer", "minimum": 0}
_SHAPE = {"type": "array", "items": _NUMBER}
_DATATYPE = {"type": "string", "enum": _DATATYPES}
_LATER = {"Retry-After": {"description": "Seconds", "required": True, "schema": {"type": "integer", "minimum": 1}}}


def openapi(*, with_token: bool) -> dict[str, Any]:
    """The document for a server that asks for a token, or for one that does not."""
    paths = {**_server(), **_models(), **_repository(), **_text()}
    for path, item in paths.items():
        for operation in item.values():
            refusals = () if path in OPEN_PATHS and with_token else (UNAUTHORISED if with_token else FORBIDDEN,)
            operation["responses"] |= _errors(*refusals, ENDING, of=_OPENAI if path.startswith(OPENAI) else "Error")
            if path in OPEN_PATHS:
                operation["security"] = []
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "flexcomp: Open Inference Protocol, and OpenAI's for text", "version": __version__},
        "paths": paths,
        "components": {"schemas": _schemas()},
    }
    if with_token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    return document


def _server() -> dict[str, Any]:
    no = {str(BAD): {"description": "No: it is ending, or a model cannot run any more"}}
    return {
        "/v2/health/live": {"get": _operation("Is the process alive?", _empty())},
        "/v2/health/ready": {"get": _operation("Does it take requests?", _empty(), no)},
        "/v2": {"get": _operation("The server", _json("Server"))},
        "/metrics": {
            "get": _operation("For Prometheus", _content("text/plain", {"type": "string"})),
        },
    }


def _models() -> dict[str, Any]:
    paths = {}
    for prefix, names in (("/v2/models/{name}", ("name",)), ("/v2/models/{name}/versions/{version}", ("name", "version"))):
        parameters = [_in_path(name) for name in names]
        known = _errors(UNKNOWN)
        paths[f"{prefix}/ready"] = {"get": _operation("Is a model loaded?", _empty(), known, parameters)}
        paths[prefix] = {"get": _operation("A model's inputs and outputs", _json("Model"), known, parameters)}
        answers = {
            "description": "Outputs",
            "headers": {HEADER: {"description": "Bytes of JSON before binary tensors", "schema": _NUMBER}},
            "content": {
                "application/json": {"schema": _ref("Inference")},
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            },
        }
        codes = _errors(BAD, UNKNOWN, LATE_BODY, TOO_LARGE, UNSUPPORTED, BUSY, FAULT)
        timeout = {
            "name": "timeout",
            "in": "header",
            "description": "Seconds within which the answer is wanted",
            "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": 1e6},
        }
        length = {"name": HEADER, "in": "header", "description": "Bytes of JSON before binary tensors", "schema": _NUMBER}
        paths[f"{prefix}/infer"] = {
            "post": _operation("Run a model", answers, codes, [*parameters, timeout, length])
            | {
                "requestBody": {
                    "required": True,
                    "content": {
                        "application/json": {"schema": _ref("Request")},
                        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
                    },
                }
            }
        }
    return paths


def _repository() -> dict[str, Any]:
    common = _errors(BAD, LATE_BODY, TOO_LARGE, UNSUPPORTED, BUSY)
    changes = common | _errors(UNKNOWN, CONFLICT, FAULT)
    name = [_in_path("name")]
    index = {"type": "object", "properties": {"ready": {"type": "boolean"}}}
    nothing = {"type": "object", "properties": {"parameters": {"type": "object", "maxProperties": 0}}}
    dependents = {"type": "object", "properties": {"unload_dependents": {}}, "additionalProperties": False}
    unloading = {"type": "object", "properties": {"parameters": dependents}}
    empty = _content("application/json", {"type": "object"})
    loading = _operation("Load a model", empty, changes, name) | _optional(nothing)
    return {
        "/v2/repository/index": {"post": _operation("What may be loaded", _json("Index"), common) | _optional(index)},
        "/v2/repository/models/{name}/load": {"post": loading},
        "/v2/repository/models/{name}/unload": {
            "post": _operation("Unload a model", empty, changes, name) | _optional(unloading)
        },
    }


def _text() -> dict[str, Any]:
    """OpenAI's routes, whose reference describes bodies in full."""
    known = _errors(UNKNOWN, of=_OPENAI)
    codes = _errors(BAD, UNKNOWN, LATE_BODY, TOO_LARGE, UNSUPPORTED, BUSY, FAULT, of=_OPENAI)
    found = _json("Completion")
    found["content"]["text/event-stream"] = {}
    paths = {
        "/v1/models": {"get": _operation("Decoders and encoders", _json("TextModels"))},
        "/v1/models/{name}": {"get": _operation("A decoder or encoder", _json("TextModel"), known, [_in_path("name")])},
    }
    for path, schema, summary in (
        ("/v1/chat/completions", "Chat", "A reply to messages"), ("/v1/completions", "Prompt", "Text that follows a prompt"),
    ):  # fmt: skip
        body = {"required": True, "content": {"application/json": {"schema": _ref(schema)}}}
        paths[path] = {"post": _operation(summary, found, codes) | {"requestBody": body}}
    body = {"required": True, "content": {"application/json": {"schema": _ref("Embedded")}}}
    paths["/v1/embeddings"] = {
        "post": _operation("Embeddings of texts", _json("Embeddings"), codes) | {"requestBody": body}
    }
    return paths


def _operation(summary: str, success: dict, others: dict | None = None, parameters: list | None = None) -> dict[str, Any]:
    return {"summary": summary, "parameters": parameters or [], "responses": {"200": success, **(others or {})}}


def _errors(*statuses: int, of: str = "Error") -> dict[str, Any]:
    listed = {}
    for status in statuses:
        listed[str(status)] = {"description": _WORDS[status], "content": {"application/json": {"schema": _ref(of)}}}
        if status in (BUSY, ENDING):
            listed[str(status)]["headers"] = _LATER
    return listed


def _optional(schema: dict) -> dict[str, Any]:
    return {"requestBody": {"required": False, "content": {"application/json": {"schema": schema}}}}


def _empty() -> dict[str, Any]:
    return {"description": "Yes"}


def _json(name: str) -> dict[str, Any]:
    return _content("application/json", _ref(name))


def _content(kind: str, schema: dict) -> dict[str, Any]:
    return {"description": "The answer", "content": {kind: {"schema": schema}}}


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "object", "properties": {**required, **(optional or {})}, "required": list(required)}


def _schemas() -> dict[str, Any]:
    text = {"type": "string"}
    port = _object({"name": text, "datatype": _DATATYPE, "shape": {"type": "array", "items": {"type": "integer", "minimum": -1}}})
    choice = {"type": "object", "properties": {"shapes": text, "padded": {"type": "boolean"}}}
    data = {"type": "array", "description": "Numbers in a row, or nested as the shape says"}
    given = {"type": "object", "properties": {"binary_data_size": _NUMBER}}
    wanted = {"type": "object", "properties": {"binary_data": {"type": "boolean"}}}
    settings = {"type": "object", "properties": {"binary_data_output": {"type": "boolean"}, "timeout": _TIMEOUT}}
    tensor = _object({"name": text, "datatype": _DATATYPE, "shape": _SHAPE}, {"parameters": given, "data": data})
    result = _object({"name": text, "datatype": _DATATYPE, "shape": _SHAPE}, {"parameters": {"type": "object"}, "data": data})
    model = _object({"id": text, "object": text, "created": _NUMBER, "owned_by": text})
    message = _object({"role": text, "content": {}})
    options = {"stream": {"type": "boolean"}, "max_tokens": {"type": "integer", "minimum": 1}, "stop": {}}
    return {
        "Error": _object({"error": text}),
        _OPENAI: _object({"error": _object({"message": text, "type": text, "param": {}, "code": {}})}),
        "TextModel": model,
        "TextModels": _object({"object": text, "data": {"type": "array", "items": model}}),
        "Chat": _object({"model": text, "messages": {"type": "array", "items": message, "minItems": 1}}, options),
        "Prompt": _object({"model": text, "prompt": {}}, options),
        "Embedded": _object({"model": text, "input": {}}, {"encoding_format": text}),
        "Embeddings": _object({"object": text, "data": {"type": "array"}, "model": text, "usage": {"type": "object"}}),
        "Completion": _object({"id": text, "object": text, "choices": {"type": "array"}, "usage": {"type": "object"}}),
        "Server": _object({"name": text, "version": text, "extensions": {"type": "array", "items": text}}),
        "Model": _object(
            {
                "name": text,
                "versions": {"type": "array", "items": text},
                "platform": text,
                "inputs": {"type": "array", "items": port},
                "outputs": {"type": "array", "items": port},
            },
            {"parameters": choice},
        ),
        "Index": {"type": "array", "items": _object({"name": text, "version": text, "state": text, "reason": text})},
        "Request": _object(
            {"inputs": {"type": "array", "items": tensor}},
            {
                "id": text,
                "parameters": settings,
                "outputs": {"type": "array", "items": _object({"name": text}, {"parameters": wanted})},
            },
        ),
        "Inference": _object(
            {"model_name": text, "model_version": text, "outputs": {"type": "array", "items": result}}, {"id": text}
        ),
    }


_TIMEOUT = {**_NUMBER, "maximum": 2**63 - 1, "description": "Microseconds within which the answer is wanted; 0 is no matter when"}
