"""A chat in the terminal: messages by the line, replies as they are computed, which Ctrl-C stops."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from flexcomp.cli.supervise import INTERRUPTED, pass_interrupts_on
from flexcomp.errors import CancelledError, FlexcompError
from flexcomp.printable import printable
from flexcomp.units import human_bytes

if TYPE_CHECKING:
    from flexcomp.generation import Generator, TextReply

_PROMPT, _HINT = "> ", "(Ctrl-D ends the chat)"
_AGAIN_S = 0.02  # between attempts to cancel: none works between two inferences


def say(pieces: TextReply, generator: Generator, stopped: Callable[[], bool] = lambda: False) -> str:
    """Print a reply as it comes, and its figures on stderr; returns the text. Raises errors of inferences, unless stopped."""
    read_before, said = _total(generator, "total_bytes_read"), []
    try:
        while not stopped() and (piece := next(pieces, None)) is not None:
            typer.echo(_shown(piece) if sys.stdout.isatty() else piece, nl=False)
            said.append(piece)
    except CancelledError:
        if not stopped():
            raise
    typer.echo()
    reply, tried = pieces.reply, pieces.reply.speculation
    later_s = reply.seconds - reply.first_token_s
    figures = [
        f"{len(reply.tokens)} tokens after {reply.prompt_tokens}",
        f"the first after {reply.first_token_s * 1e3:.0f} ms",
        *([f"{(len(reply.tokens) - 1) / later_s:.1f} tokens/s"] if len(reply.tokens) > 1 else []),
        *([f"{tried.accepted} of {tried.proposed} tried tokens right"] if tried.proposed else []),
        f"{human_bytes(_total(generator, 'total_bytes_read') - read_before)} read",
        f"{human_bytes(_total(generator, 'arena_bytes'))} of memory",
        f"ended by {reply.finish or 'Ctrl-C'}",
    ]
    typer.echo(", ".join(figures), err=True)
    return "".join(said)


def _total(generator: Generator, name: str) -> int:
    return sum(session.stats()[name] for session in generator.sessions)


def _shown(piece: str) -> str:
    """Without controls that a terminal would obey."""
    return "".join(one if one in "\n\t" else printable(one) for one in piece)


def converse(
    reply_to: Callable[[list[dict[str, str]]], TextReply], generator: Generator, system: str | None, first: str | None
) -> None:
    """Replies to messages of the terminal, until its end. A message without a reply is not part of the conversation."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    with _interrupts(generator) as turn:
        for message in _messages(first):
            asked = [*messages, {"role": "user", "content": message}]
            try:
                with turn:
                    text = say(reply_to(asked), generator, lambda: turn.stopped)
            except FlexcompError as error:
                typer.echo(f"error: {printable(' '.join(str(error).split()))}", err=True)
                continue
            messages = [*asked, {"role": "assistant", "content": text}]


def _messages(first: str | None) -> Iterator[str]:
    if first is not None:
        yield first
    sys.stdin.reconfigure(errors="replace")
    while True:
        _ask()
        if not (line := sys.stdin.readline()):
            break
        if line := line.strip():
            yield line
    if sys.stdin.isatty():
        typer.echo(err=True)


def _ask() -> None:
    if sys.stdin.isatty():
        typer.echo(_PROMPT, nl=False, err=True)


class _Turn:
    """A reply in progress, from `with` to its end, that may be stopped."""

    def __init__(self, generator: Generator) -> None:
        self.stopped = False
        self._generator, self._runs = generator, False
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        self.stopped, self._runs = False, True

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._runs = False
            self._changed.notify_all()

    def stop(self) -> None:
        """Wait until the reply has ended; without one say how the chat ends."""
        with self._changed:
            if not self._runs:
                typer.echo(f"\n{_HINT}", err=True)
                _ask()
                return
            self.stopped = True
            while self._runs:
                self._generator.cancel()
                self._changed.wait(_AGAIN_S)


@contextmanager
def _interrupts(generator: Generator) -> Iterator[_Turn]:
    """Ctrl-C stops a turn, in whatever call this thread is: another thread waits for the signal."""
    turn = _Turn(generator)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(INTERRUPTED, lambda number, frame: None)
    earlier = signal.set_wakeup_fd(wake)

    def wait() -> None:
        while signals := os.read(woken, 64):
            if INTERRUPTED in signals:
                turn.stop()

    waiting = threading.Thread(target=wait, name="flexcomp-interrupts", daemon=True)
    waiting.start()
    pass_interrupts_on()
    try:
        yield turn
    finally:
        signal.signal(INTERRUPTED, signal.SIG_IGN)
        signal.set_wakeup_fd(earlier)
        os.close(wake)
        waiting.join()
        os.close(woken)
