"""The routes of the Open Inference Protocol, version 2: health, metadata, inference, the model repository; and metrics.

Source: the protocol's specification and its extension for model repositories. `documents.py` says the same for machines.
"""

from __future__ import annotations

import asyncio
import json
from inspect import isroutine
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flexcomp.errors import FlexcompError
from flexcomp.version import __version__

from .answers import BAD, FAULT, Refusal, answer, ending, error_answer, refusal_of
from .auth import Guard
from .documents import openapi
from .inference import Inference
from .limits import Crowd, read_body
from .metrics import CONTENT_TYPE
from .models import VERSION, unknown
from .openai_routes import add_openai_routes
from .protocol import described, shape_parameters
from .service import Service

EXTENSIONS = ("binary_tensor_data", "model_repository", "model_repository(unload_dependents)")
_MOST_NBYTES = 1 << 16  # of a request that is no inference


def make_app(service: Service, token: str | None = None) -> ASGIApp:
    """The application for a server; without a token only for requests of this machine."""
    app = make_routes(service)
    document = json.dumps(openapi(with_token=token is not None)).encode()  # one, for all that take their time to read it

    @app.get("/openapi.json")
    async def document_of_routes() -> Response:
        return Response(document, media_type="application/json")

    return Crowd(Guard(_Shortcut(app, service), token), lambda: service.crowded())


def make_routes(service: Service) -> FastAPI:
    """All that is answered, to whoever asks."""
    app = FastAPI(title="flexcomp", version=__version__, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    _errors(app, service)
    _server(app, service)
    _models(app, service)
    _repository(app, service)
    add_openai_routes(app, service)
    return app


class _Shortcut:
    """Hands requests to the routes that are applications, past all that FastAPI does before; all others to FastAPI.

    FastAPI takes 0.3 ms for a request, and 4 KB for as long as that waits.
    """

    def __init__(self, app: FastAPI, service: Service) -> None:
        self._app = app
        self._service = service
        routes = [route for route in app.routes if isinstance(route, Route) and not isroutine(route.endpoint)]
        self._routes = sorted(routes, key=lambda route: len(route.path))  # most requests name no version

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            for route in self._routes:
                matched, found = route.matches(scope)
                if matched is Match.FULL:
                    scope.update(found)
                    await self._ask(route.endpoint, scope, receive, send)
                    return
        await self._app(scope, receive, send)

    async def _ask(self, application: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        began = False

        async def sending(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await application(scope, receive, sending)
        except ClientDisconnect:
            await Response(status_code=BAD)(scope, receive, send)  # which nobody receives
        except Exception as error:
            if not began:
                await _failed(self._service, scope["path"], error)(scope, receive, send)
            if began or refusal_of(error) is None:
                raise  # for the log


def _failed(service: Service, path: str, error: Exception) -> Response:
    refusal = refusal_of(error) or Refusal(FAULT, "the server failed; its log says why")
    if refusal.status == FAULT:
        service.log.warning("failed", path=path[:200], error=str(error))
    return error_answer(service.models.without_folders_in(refusal), path)


def _errors(app: FastAPI, service: Service) -> None:
    async def failed(request: Request, error: Exception) -> Response:
        return _failed(service, request.url.path, error)

    async def unrouted(request: Request, error: HTTPException) -> Response:
        words = f"there is no {request.url.path[:200]}" if error.status_code == 404 else str(error.detail)
        return error_answer(Refusal(error.status_code, words, headers=error.headers), request.url.path)

    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=BAD)  # which nobody receives

    for kind in (Refusal, FlexcompError, Exception):
        app.add_exception_handler(kind, failed)
    app.add_exception_handler(HTTPException, unrouted)
    app.add_exception_handler(ClientDisconnect, gone)


def _server(app: FastAPI, service: Service) -> None:
    @app.get("/v2/health/live")
    async def live() -> Response:
        return Response()

    @app.get("/v2/health/ready")
    async def ready() -> Response:
        return Response(status_code=BAD if service.ending or not service.models.all_ready() else 200)

    @app.get("/v2")
    async def metadata() -> Response:
        return answer({"name": "flexcomp", "version": __version__, "extensions": list(EXTENSIONS)})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(await asyncio.to_thread(service.metrics.text), headers={"Content-Type": CONTENT_TYPE})


def _models(app: FastAPI, service: Service) -> None:
    def require_version(name: str, version: str) -> None:
        if version != VERSION:
            raise unknown(f"{name}, version {version}")

    @app.get("/v2/models/{name}/ready")
    @app.get("/v2/models/{name}/versions/{version}/ready")
    async def ready(name: str, version: str = VERSION) -> Response:
        require_version(name, version)
        service.models.require_ready(name)
        return Response()

    @app.get("/v2/models/{name}")
    @app.get("/v2/models/{name}/versions/{version}")
    async def metadata(name: str, version: str = VERSION) -> Response:
        require_version(name, version)
        model = service.models.get(name)
        return answer(
            {
                "name": model.name,
                "versions": [VERSION],
                "platform": "flexcomp",
                "inputs": described(model.inputs),
                "outputs": described(model.outputs),
            }
            | ({"parameters": parameters} if (parameters := shape_parameters(model.fitting)) else {})
        )

    inference = Inference(service, require_version)
    app.add_route("/v2/models/{name}/infer", inference, methods=["POST"])
    app.add_route("/v2/models/{name}/versions/{version}/infer", inference, methods=["POST"])


def _repository(app: FastAPI, service: Service) -> None:
    async def parameters(request: Request, known: dict[str, type]) -> dict[str, Any]:
        """The JSON object in the body, if there is one, whose known entries have their types."""
        with service.room.share() as share:
            body = await read_body(request.scope, request.receive, share, _MOST_NBYTES, service.within_s)
            try:
                asked = json.loads(text) if (text := bytes(body)).strip() else {}
            except (ValueError, RecursionError) as error:
                raise Refusal(BAD, f"the request is not JSON: {error}") from None
        if not isinstance(asked, dict):
            raise Refusal(BAD, "the request must be a JSON object")
        for name, kind in known.items():
            if name in asked and not isinstance(asked[name], kind):
                raise Refusal(BAD, f"{name} must be a JSON {'object' if kind is dict else 'true or false'}")
        return asked

    async def change(request: Request, name: str, event: str) -> Response:
        asked = await parameters(request, {"parameters": dict})
        for one in asked.get("parameters", {}):
            if (event, one) != ("unload", "unload_dependents"):
                raise Refusal(BAD, f"{event} takes no parameter {one[:80]!r}: what may be loaded is said when the server starts")
        if service.ending:
            raise ending()
        try:
            await asyncio.to_thread(getattr(service.models, event), name)
        except (Refusal, FlexcompError) as error:
            service.log.warning(f"{event} refused", model=name[:80], error=str(error))
            raise
        service.log.info(f"{event}ed", model=name)
        return answer({})

    @app.post("/v2/repository/index")
    async def index(request: Request) -> Response:
        asked = await parameters(request, {"ready": bool})
        listed = await asyncio.to_thread(service.models.index)
        return answer([entry for entry in listed if entry["state"] == "READY" or not asked.get("ready")])

    @app.post("/v2/repository/models/{name}/load")
    async def load(request: Request, name: str) -> Response:
        return await change(request, name, "load")

    @app.post("/v2/repository/models/{name}/unload")
    async def unload(request: Request, name: str) -> Response:
        return await change(request, name, "unload")
