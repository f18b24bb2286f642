"""A decoder that a server answers with: a session of its own, and what it may take of a budget."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from flexcomp.errors import InputError
from flexcomp.generation import Draft, Reply, Text, TokenBytes, Turns, draft_nbytes
from flexcomp.generation.tokenizer import TOKENIZER
from flexcomp.runtime import load, ports_of, read_summary

from .answers import UNKNOWN, Refusal
from .limits import Room, Share
from .protocol import carried_nbytes

_CONVERSATIONS = 8  # whose caches a decoder may save besides its own


def is_decoder(path: Path) -> bool:
    """Whether a library is for text: it keeps caches, and a tokenizer lies next to it."""
    return (path.resolve().parent / TOKENIZER).exists() and bool(read_summary(path).get("states"))


def weights_of(path: Path) -> Path:
    """The weights of a library: next to the library, or, if that is a link without weights, next to its target."""
    beside = path.with_suffix(".weights")
    return beside if beside.exists() or not path.is_symlink() else path.resolve().with_suffix(".weights")


@dataclass(frozen=True)
class Part:
    """What one of several may take of a budget, in bytes."""

    least: int
    most: int  # more would not help


@dataclass(frozen=True)
class Needs:
    """Of a decoder, perhaps with a draft, in bytes."""

    sessions: tuple[Part, ...]  # the decoder's, and that of the draft
    caches: int  # of one conversation
    carried: int  # inputs and outputs of an inference

    @property
    def session(self) -> Part:
        """Of all sessions together."""
        return Part(sum(one.least for one in self.sessions), sum(one.most for one in self.sessions))

    @property
    def part(self) -> Part:
        """Of the budget."""
        most = self.session.most + self.carried + _CONVERSATIONS * self.caches
        return Part(self.session.least + self.carried, most)

    def divided(self, nbytes: int) -> tuple[int, ...]:
        """Of so many bytes those of saved caches, and those of each session."""
        left, session = nbytes - self.carried, self.session
        saved = min(_CONVERSATIONS * self.caches, max(left - session.most, (left - session.least) // 4))
        decoder, *drafts = self.sessions
        parts = [draft_nbytes(left - saved, decoder.least, one.most) for one in drafts]
        return saved, left - saved - sum(parts), *parts


def needs_of(path: Path, draft: Path | None = None) -> Needs:
    """The needs of the decoder in a library, with its draft."""
    summaries = [read_summary(one) for one in (path, draft) if one is not None]
    carried = 0
    for summary in summaries:
        shapes = summary.get("shapes") or [summary]
        carried += max(carried_nbytes(ports_of(one["inputs"]), ports_of(one["outputs"])) for one in shapes)
    sessions = tuple(Part(one["min_budget_bytes"], one["resident_bytes"]) for one in summaries)
    return Needs(sessions, sum(one["state_bytes"] for one in summaries), carried)


class LanguageModel:
    """A decoder with its tokenizer, and perhaps a draft, whose replies take turns."""

    def __init__(self, path: Path, nbytes: int, threads: int | None, waiting: int, draft: Path | None = None) -> None:
        """Raises FlexcompError: for a library that is no decoder, a broken tokenizer, weights that cannot be read, a draft of
        other tokens.
        """
        self.needs = needs_of(path, draft)
        self.prompt_tokens = self.tokens = self.tried = self.right = 0  # of replies that have ended
        self._held = self.needs.divided(nbytes)
        with ExitStack() as opened:
            libraries = [path] if draft is None else [path, draft]
            self.sessions = [
                opened.enter_context(load(one, part, threads, weights=weights_of(one)))
                for one, part in zip(libraries, self._held[1:], strict=True)
            ]
            proposes = None if draft is None else Draft(self.sessions[1], draft.resolve().parent)
            self.text = Text(self.sessions[0], path.resolve().parent, draft=proposes)
            if self.text.generator.decoder.encoded:
                raise InputError(f"{path} is of an encoder-decoder, which a server does not run: `flexcomp generate` does")
            self.turns = Turns(self.text, self._held[0], waiting)
            opened.pop_all()
        self.token_bytes = TokenBytes(self.text.tokenizer.tokenizer)
        capacity = self.text.generator.decoder.capacity
        self.most_nbytes = (1 << 16) + 32 * capacity  # of the body of a request
        self._tables: Share | None = None  # of grammars
        self._holding, self._closed = threading.Lock(), False

    @property
    def budget(self) -> int:
        """Bytes of sessions and saved caches, with inputs and outputs."""
        return sum(self._held) + self.needs.carried

    def count(self, reply: Reply) -> None:
        """A reply has ended."""
        self.prompt_tokens += reply.prompt_tokens
        self.tokens += len(reply.tokens)
        self.tried += reply.speculation.proposed
        self.right += reply.speculation.accepted

    def hold_tables(self, room: Room) -> None:
        """Have the room hold the tables for grammars, from the first grammar on. Raises Refusal."""
        with self._holding:
            if self._closed:
                raise unloaded()
            tables = self._tables or Share(room)
            tables.hold(self.text.grammars.nbytes, "the tables of all tokens that grammars need, before the first of them,")
            self._tables = tables

    def set_budget(self, nbytes: int) -> None:
        """Hold so many bytes at most when this returns."""
        held, changes = self.needs.divided(nbytes), (self.turns.set_limit, *(one.set_budget for one in self.sessions))
        # What shrinks comes first, sessions before saved caches: an inference in progress gives memory back at once.
        listed = reversed(list(zip(self._held, held, changes, strict=True)))
        for _, after, change in sorted(listed, key=lambda one: one[1] > one[0]):
            change(after)
        self._held = held

    def close(self) -> None:
        """End replies in progress, whose callers are told, and give memory back."""
        self.turns.close(unloaded())
        self.text.tokenizer.close()
        for session in self.sessions:
            session.close()
        with self._holding:
            self._closed = True
            if self._tables is not None:
                self._tables.hold(0)


def unloaded() -> Refusal:
    """A request came, or was being answered, when its model went."""
    return Refusal(UNKNOWN, "the model was unloaded before the reply was complete: send the request again when it is loaded")
