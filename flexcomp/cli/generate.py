"""`flexcomp generate`: text that follows a prompt."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from flexcomp.cli.command import HelpAll
from flexcomp.cli.common import CANNOT_RUN, checked_budget, exit_on_error
from flexcomp.cli.names import BUDGETS, completed
from flexcomp.units import human_bytes


def generate(
    library: Annotated[Path, typer.Argument(help="A decoder's library, built with --state for its caches.")],
    prompt: Annotated[str, typer.Option(help="The text to go on from.")],
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The model's folder, with tokenizer.json; by default the library's.")
    ] = None,
    as_chat: Annotated[bool, typer.Option("--as-chat", help="The prompt is a user's message, for the model's template.")] = False,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Of the reply; by default until the caches are full.")] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            callback=checked_budget,
            autocompletion=completed(BUDGETS),
            help="Memory; without it, the smallest that is nearly as fast as any.",
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Compute threads; by default as built, within the cores.")] = None,
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Text before which the reply ends.")] = None,
    temperature: Annotated[float, typer.Option(rich_help_panel="Sampling", help="0: the most likely token.")] = 0.0,
    top_k: Annotated[int, typer.Option(rich_help_panel="Sampling", help="Of so many likeliest tokens; 0: of all.")] = 0,
    top_p: Annotated[float, typer.Option(rich_help_panel="Sampling", help="Of the fewest that hold so much probability.")] = 1.0,
    min_p: Annotated[float, typer.Option(rich_help_panel="Sampling", help="Of those above so much of the likeliest.")] = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(rich_help_panel="Sampling", help="Divides the logits of tokens that were there.")
    ] = 1.0,
    presence_penalty: Annotated[
        float, typer.Option(rich_help_panel="Sampling", help="Is subtracted from the logits of tokens that were there.")
    ] = 0.0,
    seed: Annotated[int | None, typer.Option(rich_help_panel="Sampling", min=0, help="The same one gives the same text.")] = None,
    help_all: HelpAll = False,
) -> None:
    """Print text that follows a prompt, by a decoder's LIBRARY.

    It comes as it is computed; then stderr says how fast, and in how much memory.
    """
    with exit_on_error(CANNOT_RUN):
        from flexcomp.generation import Sampling, Text
        from flexcomp.runtime import load

        sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, seed)
        with load(library, budget, threads) as session:
            text = Text(session, tokenizer or library.resolve().parent)
            begin, options = time.perf_counter(), {"stop": stop or [], "sampling": sampling}
            if as_chat:
                pieces = text.chat([{"role": "user", "content": prompt}], max_tokens, **options)
            else:
                pieces = text.reply(prompt, max_tokens, **options)
            for piece in pieces:
                typer.echo(piece, nl=False)
            typer.echo()
            reply, stats = pieces.reply, session.stats()
            later = time.perf_counter() - begin - reply.first_token_s
            rate = f"{(len(reply.tokens) - 1) / later:.1f} tokens/s, " if len(reply.tokens) > 1 else ""
            counts = f"{len(reply.tokens)} tokens after {reply.prompt_tokens}"
            first = f"the first after {reply.first_token_s * 1e3:.0f} ms"
            memory = f"{human_bytes(stats['arena_bytes'])} of memory"
            typer.echo(f"{counts}, {first}, {rate}{memory}, ended by {reply.finish}", err=True)
