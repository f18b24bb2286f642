"""`flexcomp serve`: several compiled networks under one budget, behind HTTP."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from flexcomp.cli.common import CANNOT_RUN, checked_budget, exit_on_error, finite
from flexcomp.cli.names import known_option, library_names, numbers_of
from flexcomp.cli.supervise import pass_signals_on
from flexcomp.errors import FlexcompError, InputError
from flexcomp.runtime import Budget, Pool, ladder_of, parse_budget, read_summary, shares
from flexcomp.runtime.watch import source_of
from flexcomp.serving import FORMATS
from flexcomp.units import human_bytes


def serve(
    budget: Annotated[str, typer.Option(callback=checked_budget, help="Memory of all models together.")],
    libraries: Annotated[
        list[Path] | None, typer.Argument(help="Libraries of `flexcomp build`, loaded at once; NAME is a file's, without .so.")
    ] = None,
    repository: Annotated[
        Path | None, typer.Option(help="A folder of more libraries, each loaded when a client asks for it by name.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than this machine's own need --token-file.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes one that is free.")] = 8080,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with a token, which clients send as `Authorization: Bearer TOKEN`.")
    ] = None,
    lanes: Annotated[int, typer.Option(min=1, help="How many inferences run at the same time.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="Compute threads of a lane.")] = None,
    queue: Annotated[int, typer.Option(min=1, help="Requests for a model that wait; more are refused.")] = 64,
    urgency: Annotated[list[str] | None, typer.Option(metavar="NAME=2", help="How much a second of a model matters.")] = None,
    rate: Annotated[
        list[str] | None, typer.Option(metavar="NAME=30", help="Requests in a second; without it, learnt from those that come.")
    ] = None,
    deadline: Annotated[
        list[str] | None, typer.Option(metavar="NAME=100", help="Milliseconds for a request that names no time itself.")
    ] = None,
    watch: Annotated[
        str | None,
        typer.Option(help="Follow what the system leaves, up to --budget: cgroup, pressure, or a control group's folder."),
    ] = None,
    request_memory: Annotated[
        str, typer.Option(callback=checked_budget, help="Memory for the bodies of requests, beside the budget.")
    ] = "32MiB",
    body_timeout: Annotated[float, typer.Option(min=0.1, callback=finite, help="Seconds for a body to arrive in.")] = 30.0,
    grace: Annotated[
        int, typer.Option(min=1, max=86400, help="Seconds for what has begun, once the server was told to end.")
    ] = 10,
    log: Annotated[
        str, known_option(FORMATS, "What is said on stderr: lines for people, or JSON, with one for each request")
    ] = "text",
) -> None:
    """Answer requests over HTTP for several LIBRARIES under one budget.

    By the Open Inference Protocol, which KServe and Triton's clients speak, until SIGTERM or Ctrl-C.
    """
    with exit_on_error(CANNOT_RUN):
        named = dict(zip(library_names(libraries or []), libraries or [], strict=True))
        if repository is not None and not repository.is_dir():
            raise InputError(f"--repository {repository} is no folder")
        if not named and repository is None:
            raise InputError("there is nothing to serve: name libraries, or a --repository")
        known = None if repository is not None else list(named)
        options: dict[str, dict[str, float]] = {}
        for key, given in (("urgency", urgency), ("rate", rate), ("deadline_ms", deadline)):
            hint = f"'--{key.removesuffix('_ms')}'"
            for name, number in numbers_of(given or [], known, hint).items():
                options.setdefault(name, {})[key] = number
        nbytes = _bytes(budget, "--budget")
        room_nbytes = _bytes(request_memory, "--request-memory").nbytes
        try:
            from flexcomp.serving import (
                Metrics,
                Models,
                Room,
                Service,
                bind,
                keep_freed_memory,
                log_to_stderr,
                make_app,
                read_token,
            )
            from flexcomp.serving import serve as answer
        except ImportError as error:
            raise FlexcompError(f"{error.name} is missing: pip install 'flexcomp[serve]'") from None
        source = None if watch is None else source_of(watch)
        token = None if token_file is None else read_token(token_file)
        if named:
            ladders = [ladder_of(read_summary(path)) for path in {path.resolve() for path in named.values()}]
            shares(ladders, [1.0] * len(ladders), nbytes.nbytes, units=nbytes.units)  # which says of all what is too little
        says = log_to_stderr(log)
        keep_freed_memory()
        with ExitStack() as held:
            listening = held.enter_context(bind(host, port, token is not None))
            pool = held.enter_context(Pool(nbytes, lanes, threads, queue=queue))
            room = Room(room_nbytes)
            models = Models(pool, named, repository, options)
            for name in named:
                began = time.monotonic()
                models.load(name)
                says.info("loaded", model=name, seconds=round(time.monotonic() - began, 3))
            if source is not None:
                held.enter_context(pool.watch(source, most=nbytes))
            service = Service(pool, models, room, Metrics(pool, room), says, body_timeout)
            address, bound = listening.getsockname()[:2]
            pass_signals_on()
            says.info(
                "serving",
                url=f"http://{f'[{address}]' if ':' in address else address}:{bound}",
                models=", ".join(models.names),
                budget=human_bytes(pool.budget, nbytes.units),
            )
            answer(make_app(service, token), service, listening, grace)
            says.info("ended")


def _bytes(text: str, option: str) -> Budget:
    parsed = parse_budget(text)
    if parsed.nbytes is None:
        raise InputError(f"{option} takes a number of bytes, such as 200MB, not {text}")
    return parsed
