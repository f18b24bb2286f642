"""`flexcomp serve`: several compiled networks under one budget, over HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from flexcomp.cli.command import HelpAll
from flexcomp.cli.common import CANNOT_RUN, checked_budget, exit_on_error, finite
from flexcomp.cli.names import known_option, named_libraries, numbers_of
from flexcomp.cli.supervise import pass_signals_on
from flexcomp.errors import FlexcompError, InputError
from flexcomp.runtime import SHARING, Budget, Pool, parse_budget, read_summary
from flexcomp.runtime.watch import source_of
from flexcomp.serving import FORMATS
from flexcomp.units import human_bytes


def serve(
    budget: Annotated[str, typer.Option(callback=checked_budget, help="Memory of all models and requests together.")],
    libraries: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[NAME=]LIBRARY", help="Libraries of `flexcomp build`, loaded at once; NAME is the file's, without .so."
        ),
    ] = None,
    repository: Annotated[
        Path | None, typer.Option(help="A folder of more libraries, each loaded when a client asks for it by name.")
    ] = None,
    draft: Annotated[
        list[Path] | None,
        typer.Option(
            rich_help_panel="Sharing",
            metavar="NAME=LIBRARY",
            help="A smaller decoder proposes tokens of the decoder NAME, in the same budget.",
        ),
    ] = None,
    load_all: Annotated[
        bool, typer.Option("--load-all", rich_help_panel="Server", help="Load all that is in --repository at once.")
    ] = False,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than this machine's own need --token-file.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes one that is free.")] = 8080,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with a token, which clients send as `Authorization: Bearer TOKEN`.")
    ] = None,
    lanes: Annotated[int, typer.Option(rich_help_panel="Sharing", min=1, help="How many inferences run at the same time.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help="Compute threads of a lane.")] = None,
    queue: Annotated[
        int, typer.Option(rich_help_panel="Requests", min=1, help="Requests for a model that wait; more are refused.")
    ] = 64,
    urgency: Annotated[
        list[str] | None,
        typer.Option(rich_help_panel="Sharing", metavar="NAME=2", help="How much a second of a model matters."),
    ] = None,
    rate: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel="Sharing", metavar="NAME=30", help="Requests in a second; without it, learnt from those that come."
        ),
    ] = None,
    deadline_ms: Annotated[
        list[str] | None, typer.Option(metavar="NAME=100", help="Milliseconds for a request that names no time itself.")
    ] = None,
    sharing: Annotated[
        str, known_option(SHARING, "How models share the budget: the best shares, or SwapNet's rule", rich_help_panel="Sharing")
    ] = "exact",
    watch: Annotated[
        str | None,
        typer.Option(help="Follow what the system leaves, up to --budget: cgroup, pressure, or a control group's folder."),
    ] = None,
    request_memory: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Requests",
            callback=checked_budget,
            help="How much of the budget is for requests and their answers; an eighth, up to 32 MiB, unless told otherwise.",
        ),
    ] = None,
    body_timeout_ms: Annotated[
        float,
        typer.Option(
            min=100,
            callback=finite,
            rich_help_panel="Requests",
            help="Milliseconds for a body to arrive in, and for an answer to be taken.",
        ),
    ] = 30_000,
    grace_ms: Annotated[
        float,
        typer.Option(
            min=1000, max=86_400_000, rich_help_panel="Server", help="Milliseconds for admitted requests, once the server ends."
        ),
    ] = 10_000,
    log: Annotated[
        str,
        known_option(
            FORMATS, "What is said on stderr: lines for people, or JSON, with one for each request", rich_help_panel="Server"
        ),
    ] = "text",
    help_all: HelpAll = False,
) -> None:
    """Answer requests over HTTP for LIBRARIES under one budget.

    By the Open Inference Protocol, which KServe and Triton's clients speak, until SIGTERM or Ctrl-C. Decoders with a tokenizer
    next to their library answer by OpenAI's protocol.
    """
    with exit_on_error(CANNOT_RUN):
        named = named_libraries(libraries or [])
        if repository is not None and not repository.is_dir():
            raise InputError(f"--repository {repository} is no folder")
        if load_all and repository is None:
            raise InputError("--load-all is for what is in a --repository: name one")
        if not named and repository is None:
            raise InputError("there is nothing to serve: name libraries, or a --repository")
        known = None if repository is not None else list(named)
        options: dict[str, dict[str, float]] = {}
        for key, given in (("urgency", urgency), ("rate", rate), ("deadline_ms", deadline_ms)):
            hint = f"'--{key.replace('_', '-')}'"
            for name, number in numbers_of(given or [], known, hint).items():
                options.setdefault(name, {})[key] = number
        total = _bytes(budget, "--budget")
        asked = None if request_memory is None else _bytes(request_memory, "--request-memory").nbytes
        try:
            from flexcomp.serving import (
                Metrics,
                Models,
                Room,
                Service,
                Whole,
                bind,
                is_decoder,
                keep_freed_memory,
                libraries_in,
                log_to_stderr,
                make_app,
                needs_of,
                read_token,
                requests_nbytes,
            )
            from flexcomp.serving import serve as answer
        except ImportError as error:
            raise FlexcompError(f"{error.name} is missing: pip install 'flexcomp[serve]'") from None
        source = None if watch is None else source_of(watch)
        token = None if token_file is None else read_token(token_file)
        loaded = (libraries_in(repository) if load_all and repository is not None else {}) | named
        decoders = {name: path for name, path in loaded.items() if is_decoder(path)}
        drafts = _drafts(draft or [], decoders, loaded, repository)
        networks = {path.resolve() for name, path in loaded.items() if name not in decoders}
        summaries = [read_summary(path) for path in networks]
        least = [needs_of(path, drafts.get(name)).part.least for name, path in decoders.items()]
        room = Room(requests_nbytes(total, summaries, asked, least))
        models_budget = Budget(total.nbytes - room.nbytes, total.units)
        says = log_to_stderr(log)
        keep_freed_memory()
        with ExitStack() as held:
            listening = held.enter_context(bind(host, port, token is not None))
            pool = held.enter_context(Pool(models_budget, lanes, threads, queue=queue, sharing=sharing))
            whole = Whole(pool, models_budget.nbytes, threads, queue, drafts)
            held.callback(whole.close)
            models = Models(whole, named, repository, options)
            for name in loaded:
                began = time.monotonic()
                models.load(name)
                says.info("loaded", model=name, seconds=round(time.monotonic() - began, 3))
            if source is not None:
                held.enter_context(whole.watch(source, most=models_budget))
            metrics = Metrics(pool, room, whole)
            service = Service(pool, models, room, metrics, says, body_timeout_ms / 1e3, languages=whole)
            address, bound = listening.getsockname()[:2]
            pass_signals_on()
            says.info(
                "serving",
                url=f"http://{f'[{address}]' if ':' in address else address}:{bound}",
                models=", ".join([*models.names, *whole]),
                budget=human_bytes(whole.budget, total.units),
                requests=human_bytes(room.nbytes, total.units),
            )
            answer(make_app(service, token), service, listening, grace_ms / 1e3)
            says.info("ended")


def _drafts(
    given: list[Path], decoders: Mapping[str, Path], loaded: Mapping[str, Path], repository: Path | None
) -> dict[str, Path]:
    found = named_libraries(given)
    for name in found:
        if name not in decoders and (name in loaded or repository is None):
            known = ", ".join(decoders) or "none"
            raise InputError(f"--draft {name}=… is for a decoder that is served with its tokenizer; there is {known}")
    for path in found.values():
        read_summary(path)  # also of a decoder that a client loads later
    return found


def _bytes(text: str, option: str) -> Budget:
    parsed = parse_budget(text)
    if parsed.nbytes is None:
        raise InputError(f"{option} takes a number of bytes, such as 200MB, not {text}")
    return parsed
