"""`flexcomp generate`: text that follows a prompt."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flexcomp.cli.chat import converse, say
from flexcomp.cli.command import HelpAll
from flexcomp.cli.common import CANNOT_RUN, checked_budget, exit_on_error
from flexcomp.cli.names import BUDGETS, completed
from flexcomp.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from flexcomp.generation import Draft, Grammar, Pair
    from flexcomp.runtime import Session


def generate(
    library: Annotated[
        Path, typer.Argument(help="A decoder's library, built with --state for its caches. NAME.encoder.so runs before NAME.so.")
    ],
    prompt: Annotated[str | None, typer.Option(help="The text to go on from; in a chat the first message.")] = None,
    features: Annotated[
        Path | None, typer.Option(metavar="FILE.npy", help="What an encoder of sound takes, as NumPy saves arrays.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The model's folder, with tokenizer.json; by default the library's.")
    ] = None,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Reply to messages, one a line, until Ctrl-D, in the model's form; Ctrl-C stops a reply."),
    ] = False,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The message that a chat begins with.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Of the reply; by default until the caches are full.")] = None,
    slide: Annotated[
        bool, typer.Option("--slide", help="Full caches forget the older half of the text; by default the reply ends there.")
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option(
            callback=checked_budget,
            autocompletion=completed(BUDGETS),
            help="Memory; by default the smallest that is nearly as fast as any.",
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Compute threads; by default as built, within the cores.")] = None,
    speculate: Annotated[
        bool | None,
        typer.Option(
            "--speculate/--no-speculate",
            show_default=False,
            help="Try tokens that followed earlier; by default where reading weights binds. The text is the same.",
        ),
    ] = None,
    draft: Annotated[
        Path | None,
        typer.Option(
            metavar="LIBRARY", help="A smaller decoder of the same tokens proposes them, within --budget. The text is the same."
        ),
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Text before which the reply ends.")] = None,
    json_schema: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Replies are JSON that this schema describes.")
    ] = None,
    grammar: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Replies are texts of this grammar, in the language of Lark.")
    ] = None,
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
    frequency_penalty: Annotated[
        float, typer.Option(rich_help_panel="Sampling", help="Is subtracted as often as a token was there.")
    ] = 0.0,
    seed: Annotated[int | None, typer.Option(rich_help_panel="Sampling", min=0, help="The same one gives the same text.")] = None,
    help_all: HelpAll = False,
) -> None:
    """Print text that follows a prompt, or chat, by LIBRARY.

    Text comes as it is computed; after each reply stderr says how fast, how much was read, and in how much memory.
    """
    with exit_on_error(CANNOT_RUN):
        if prompt is None and not chat and features is None:
            raise InputError("there is nothing to reply to: give --prompt, or --chat")
        if chat and features is not None:
            raise InputError("--chat and --features exclude each other")
        if system is not None and not chat:
            raise InputError("--system is for a --chat")
        if json_schema is not None and grammar is not None:
            raise InputError("--json-schema and --grammar exclude each other")
        from flexcomp.generation import Sampling, Text

        options = {
            "max_tokens": max_tokens,
            "stop": stop or [],
            "slide": slide,
            "sampling": Sampling(
                temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, seed, frequency_penalty,
                grammar=_grammar(json_schema, grammar),
            ),
        }
        with ExitStack() as held:
            session, proposes = _opened(held, library, draft, budget, threads)
            text = Text(session, tokenizer or library.resolve().parent, speculate=speculate, draft=proposes)
            if chat:
                text.require_chat()
                converse(lambda messages: text.chat(messages, **options), text.generator, system, prompt)
            else:
                given = None if features is None else _features(features)
                say(text.reply(prompt or "", **options, features=given), text.generator)


def _opened(
    held: ExitStack, library: Path, draft: Path | None, budget: str | None, threads: int | None
) -> tuple[Session | Pair, Draft | None]:
    from flexcomp.generation import Draft, Pair, encoder_library, load_with_draft
    from flexcomp.runtime import load

    is_pair = encoder_library(library.resolve()).exists()
    if draft is None:
        return held.enter_context((Pair if is_pair else load)(library, budget, threads)), None
    if is_pair:
        raise InputError("an encoder-decoder takes no draft: leave out --draft")
    session, other = map(held.enter_context, load_with_draft(library, draft, budget, threads))
    return session, Draft(other, draft.resolve().parent)


def _features(path: Path) -> np.ndarray:
    import numpy as np

    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"cannot read {path}: {error}") from None


def _grammar(json_schema: Path | None, grammar: Path | None) -> Grammar | None:
    from flexcomp.generation import Grammar

    if (path := json_schema or grammar) is None:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    if json_schema is None:
        return Grammar.lark(text)
    try:
        schema = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{path} is no JSON: {error}") from None
    if not isinstance(schema, dict):
        raise InputError(f"{path} is no JSON object, as a schema is")
    return Grammar.json_schema(schema)
