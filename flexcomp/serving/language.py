"""Decoders that a server answers with, each with a session of its own, and their part of the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexcomp.errors import BudgetError, InputError
from flexcomp.generation import Draft, Reply, Text, TokenBytes, Turns, draft_nbytes
from flexcomp.generation.tokenizer import TOKENIZER
from flexcomp.runtime import Budget, Pool, ladder_of, least_bytes, load, pool_bytes, ports_of, read_summary
from flexcomp.runtime.watch import Source, Watch
from flexcomp.units import Units, enough, human_bytes

from .limits import Room, Share
from .protocol import carried_nbytes

_CONVERSATIONS = 8  # whose caches a decoder may save besides its own
_STEP = 1.25  # between the budgets that a watch tries
_WATCH_S, _PATIENCE_S = 0.2, 2.0


def is_decoder(path: Path) -> bool:
    """Whether a library is for text: it keeps caches, and a tokenizer lies next to it."""
    return (path.resolve().parent / TOKENIZER).exists() and bool(read_summary(path).get("states"))


@dataclass(frozen=True)
class Part:
    """What one of several may take of a budget, in bytes."""

    least: int
    most: int  # more would not help


def parted(nbytes: int, parts: Sequence[Part]) -> list[int]:
    """Bytes for each part: the least of all, and of the rest in proportion to what each could use. Raises BudgetError."""
    least = sum(part.least for part in parts)
    if nbytes < least:
        raise BudgetError(
            f"{human_bytes(nbytes)} are too few for decoders and models together: {enough(least, Units.BINARY)} are the fewest"
        )
    useful = [part.most - part.least for part in parts]
    rest = min(nbytes - least, sum(useful))
    return [part.least + rest * one // max(sum(useful), 1) for part, one in zip(parts, useful, strict=True)]


def pool_part(summaries: Sequence[Mapping[str, Any]], most: int = 0) -> Part:
    """Of a pool with the libraries of these summaries, which others may join if it may have `most`."""
    if not summaries:
        return Part(0, most)
    return Part(least_bytes([ladder_of(one) for one in summaries]), max(most, sum(one["resident_bytes"] for one in summaries)))


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
            paths = [path] if draft is None else [path, draft]
            self.sessions = [
                opened.enter_context(load(one, part, threads)) for one, part in zip(paths, self._held[1:], strict=True)
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
        """End replies in progress, and give memory back."""
        self.turns.close()
        self.text.tokenizer.close()
        for session in self.sessions:
            session.close()


class Whole:
    """A pool and decoders under one budget, as a watch follows it."""

    def __init__(self, pool: Pool, pool_part: Part, languages: Mapping[str, LanguageModel], nbytes: int) -> None:
        self._pool, self._pool_part, self._languages = pool, pool_part, languages
        self.budget = nbytes

    @property
    def closed(self) -> bool:
        """Whether the pool is closed."""
        return self._pool.closed

    @property
    def _parts(self) -> list[Part]:
        return [self._pool_part, *(one.needs.part for one in self._languages.values())]

    @property
    def ladder(self) -> tuple[Step, ...]:
        """Budgets a quarter apart."""
        least, most = sum(part.least for part in self._parts), sum(part.most for part in self._parts)
        found = [least]
        while found[-1] < most:
            found.append(min(most, int(found[-1] * _STEP) + 1))
        return tuple(map(Step, found))

    def set_budget(self, nbytes: int) -> None:
        """Hold so many bytes at most when this returns. Raises BudgetError, and changes nothing."""
        before, after = (parted(one, self._parts) for one in (self.budget, nbytes))
        settable = [self._set_pool, *(one.set_budget for one in self._languages.values())]
        changes = sorted(zip(before, after, settable, strict=True), key=lambda one: one[1] - one[0])  # those that shrink first
        for _, part, change in changes:
            change(part)
        self.budget = nbytes

    def watch(self, source: Source, most: Budget) -> Watch:
        """As `Pool.watch`."""
        return Watch(self, source, _WATCH_S, _PATIENCE_S, pool_bytes(most))

    def _set_pool(self, nbytes: int) -> None:
        self._pool.set_budget(max(nbytes, 1))

    def resident_arena(self) -> int:
        """Bytes in memory, of all arenas."""
        return self._pool.resident_arena() + sum(
            session.resident_arena() for one in self._languages.values() for session in one.sessions
        )


@dataclass(frozen=True)
class Step:
    """A budget that a watch may choose."""

    budget_bytes: int
