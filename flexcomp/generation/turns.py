"""Replies of one decoder to several callers, who take turns."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from flexcomp.errors import CancelledError, FlexcompError, InputError, RefusedError
from flexcomp.generation.text import Text, TextReply

_AGAIN_MS = 1e3
_PROMPTS = 2  # seconds that prompts may take ahead of their turns for each second of replies that have begun
Say = Callable[["Turn", str, "Exception | None"], None]


@dataclass(eq=False)
class Turn:
    """One caller's reply. `say(turn, piece, error)` is called from another thread; `reply.ended` tells the last piece."""

    reply: TextReply
    say: Say
    served: int = 0  # the number of the inference that was the last one of this reply
    is_cancelled: bool = False

    @property
    def is_prompt(self) -> bool:
        """Whether the reply has no token yet."""
        return not self.reply.reply.tokens


class Turns:
    """A thread in which replies are computed by turns, an inference each: a chunk of a prompt, or a token.

    The replies that came first take turns, as many as saved caches have room for; at most `waiting` others wait for their ends.
    A prompt of several chunks has more turns than others, up to two thirds of the time: its first token does not wait for as many
    tokens of each other reply as it has chunks.
    """

    def __init__(self, text: Text, saved_nbytes: int, waiting: int) -> None:
        self.text, self._generator = text, text.generator
        self.limit, self._most_waiting = saved_nbytes, waiting
        self._generator.set_saved_limit(saved_nbytes)
        self._turns: list[Turn] = []  # as they came
        self._current: Turn | None = None
        self._owed_s = 0.0  # to prompts
        self._calls: deque[Callable[[], None]] = deque()  # for the thread, between two inferences
        self._changed = threading.Condition()
        self._closed: Exception | None = None  # what callers are told
        self._thread = threading.Thread(target=self._work, name="flexcomp-turns", daemon=True)
        self._thread.start()

    def begin(self, reply: TextReply, say: Say) -> Turn:
        """Have a reply of `text` computed. Raises RefusedError where too many wait, and what `close` was given."""
        turn = Turn(reply, say)
        with self._changed:
            if self._closed is not None:
                raise self._closed
            waiting = len(self._turns) - len(self._taking_turns())
            if waiting >= self._most_waiting:
                raise RefusedError(f"{waiting} requests wait for the model already", "queue", _AGAIN_MS)
            self._turns.append(turn)
            self._changed.notify_all()
        return turn

    def cancel(self, turn: Turn) -> None:
        """End a reply, after the running kernel. Cancelling one that has ended is harmless."""
        with self._changed:
            turn.is_cancelled = True
            if turn is self._current:
                self._generator.cancel()
            elif turn in self._turns:
                self._remove(turn)

    def set_limit(self, saved_nbytes: int) -> None:
        """Hold so many bytes of saved caches at most. Replies in progress go on, in turns or one after the other."""
        done = threading.Event()

        def change() -> None:
            self.limit = saved_nbytes
            self._generator.set_saved_limit(saved_nbytes)
            done.set()

        with self._changed:
            self._calls.append(change)
            self._changed.notify_all()
        while not done.wait(0.1) and self._thread.is_alive():
            pass

    @property
    def saved_nbytes(self) -> int:
        """Bytes of saved caches now."""
        return self._generator.saved_nbytes

    @property
    def lengths(self) -> tuple[int, int]:
        """How many replies take turns, and how many wait."""
        with self._changed:
            turns = len(self._taking_turns())
            return turns, len(self._turns) - turns

    def close(self, told: Exception | None = None) -> None:
        """End all replies, whose callers are `told`, and the thread."""
        with self._changed:
            self._closed = told or InputError("the decoder is closed")
            if self._current is not None:
                self._generator.cancel()
            self._changed.notify_all()
        self._thread.join()
        with self._changed:
            left, self._turns = self._turns, []
        for turn in left:
            turn.reply.reply.finish = turn.reply.reply.finish or "cancelled"
            turn.say(turn, "", self._closed)

    def _work(self) -> None:
        count = 0
        while (turn := self._next()) is not None:
            count += 1
            turn.served = count
            goes_on = self._timed(turn)
            with self._changed:
                self._current = None
                if not goes_on or turn.is_cancelled:
                    self._remove(turn)

    def _next(self) -> Turn | None:
        """The reply whose turn is next; None at the end."""
        with self._changed:
            while self._closed is None:
                while self._calls:
                    self._calls.popleft()()
                if self._turns:
                    self._current = self._choose(self._taking_turns())
                    return self._current
                self._changed.wait()
        return None

    def _choose(self, turns: list[Turn]) -> Turn:
        prompts = [turn for turn in turns if turn.is_prompt]
        if not prompts:
            self._owed_s = 0.0
        return min(prompts if self._owed_s > 0 else turns, key=lambda turn: turn.served)

    def _taking_turns(self) -> list[Turn]:
        """The first replies, whose caches have room together; one alone has the session's."""
        room = self.limit
        for count, turn in enumerate(self._turns):
            room -= turn.reply.reply.most_places * self._generator.place_nbytes
            if room < 0:
                return self._turns[: max(count, 1)]
        return self._turns

    def _remove(self, turn: Turn) -> None:
        self._turns.remove(turn)
        turn.reply.reply.finish = turn.reply.reply.finish or "cancelled"  # nothing is saved for it any more

    def _timed(self, turn: Turn) -> bool:
        """As `_advance`; its time is noted for prompts, or as theirs where they came ahead of their turns."""
        is_prompt, began = turn.is_prompt, time.perf_counter()
        goes_on = self._advance(turn)
        seconds = time.perf_counter() - began
        if not is_prompt:
            self._owed_s += _PROMPTS * seconds
        elif self._owed_s > 0:
            self._owed_s -= seconds
        return goes_on

    def _advance(self, turn: Turn) -> bool:
        """One inference of a reply; whether it goes on."""
        piece, error = "", None
        try:
            piece = turn.reply.advance()
        except CancelledError:  # perhaps meant for the turn before
            return True
        except (FlexcompError, MemoryError) as raised:
            error = raised
        ended = error is not None or turn.reply.ended
        if piece or ended:
            turn.say(turn, piece, error)
        return not ended
