"""A pool and decoders under one budget. Both kinds of models come and go; what one gives back the others get."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flexcomp.errors import BudgetError, InputError
from flexcomp.runtime import Budget, Pool, ladder_of, least_bytes, pool_bytes, read_summary
from flexcomp.runtime.watch import Source, Watch
from flexcomp.units import Units, enough, human_bytes

from .language import LanguageModel, Needs, Part, needs_of

_POOL = ""  # in the place of a decoder's name
_STEP = 1.25  # between the budgets that a watch tries
_WATCH_S, _PATIENCE_S = 0.2, 2.0


@dataclass(frozen=True)
class Step:
    """A budget that a watch may choose."""

    budget_bytes: int


@dataclass(frozen=True)
class _Network:
    """Of the pool."""

    path: Path
    summary: Mapping[str, Any]


class Whole(Mapping[str, LanguageModel]):
    """The decoders by name, with a pool that has what they leave: all of the budget, where there are none.

    Any thread may call. Whoever iterates sees the decoders of one moment.
    """

    def __init__(
        self, pool: Pool, nbytes: int, threads: int | None = None, waiting: int = 64, drafts: Mapping[str, Path] | None = None
    ) -> None:
        """`nbytes` is the pool's budget, and the budget of all. A decoder gets `threads`, and has up to `waiting` requests
        wait; `drafts` are of decoders with these names.
        """
        self.pool, self.budget, self.drafts = pool, nbytes, drafts or {}
        self._threads, self._waiting = threads, waiting
        self._changing = threading.RLock()
        self._decoders: Mapping[str, LanguageModel] = {}  # another one with each change: others are reading it
        self._networks: Mapping[str, _Network] = {}
        self._pool_nbytes = nbytes

    def __getitem__(self, name: str) -> LanguageModel:
        return self._decoders[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._decoders)

    def __len__(self) -> int:
        return len(self._decoders)

    def items(self) -> Any:
        """Of one moment, as all of these."""
        return self._decoders.items()

    def values(self) -> Any:
        """The decoders."""
        return self._decoders.values()

    @property
    def closed(self) -> bool:
        """Whether the pool is closed."""
        return self.pool.closed

    # ------------------------------------------------------------------------------------------------------ models

    def add(self, name: str, path: Path) -> None:
        """Open a decoder. The others give the memory that it needs first, and the budget's rest in proportion.

        Raises BudgetError where all together need more than there is, and what `LanguageModel` raises; then others have what
        they had.
        """
        draft = self.drafts.get(name)
        with self._changing:
            before, needs = self._held(), {**self._needs(), name: needs_of(path, draft)}
            held = self._parted(self._networks, needs, self.budget)
            own = held.pop(name)
            self._hold(held)
            try:
                decoder = LanguageModel(path, own, self._threads, self._waiting, draft)
            except BaseException:
                self._hold(before)
                raise
            self._decoders = {**self._decoders, name: decoder}

    def remove(self, name: str) -> None:
        """Close a decoder. Its replies end, and their callers are told."""
        with self._changing:
            decoder = self._decoders[name]
            self._decoders = {other: one for other, one in self._decoders.items() if other != name}
            decoder.close()
            self._hold(self._parted(self._networks, self._needs(), self.budget))

    def add_network(self, name: str, path: Path, **options: Any) -> None:
        """`Pool.add`, with memory that decoders give. Raises as that and `add`; then others have what they had."""
        if name in self.drafts:
            raise InputError(f'"{name}" is no decoder, and takes no draft')
        with self._changing:
            before, networks = self._held(), self._networks
            if self._decoders:  # otherwise the pool has all, and says itself what is too small
                networks = {**networks, name: _Network(path.resolve(), read_summary(path))}
                self._hold(self._parted(networks, self._needs(), self.budget))
            try:
                self.pool.add(name, path, **options)
            except BaseException:
                self._hold(before)
                raise
            self._networks = {**self._networks, name: _Network(path.resolve(), read_summary(path))}

    def remove_network(self, name: str) -> None:
        """`Pool.remove`; decoders get the memory."""
        with self._changing:
            self.pool.remove(name)
            self._networks = {other: one for other, one in self._networks.items() if other != name}
            self._hold(self._parted(self._networks, self._needs(), self.budget))

    def close(self) -> None:
        """Close all decoders."""
        with self._changing:
            decoders, self._decoders = self._decoders, {}
            for decoder in decoders.values():
                decoder.close()

    # ------------------------------------------------------------------------------------------------------ budget

    @property
    def ladder(self) -> Sequence[Any]:
        """Budgets a quarter apart."""
        with self._changing:
            if not self._decoders:
                return self.pool.ladder
            parts = self._parts(self._networks, self._needs()).values()
        least, most = sum(part.least for part in parts), sum(part.most for part in parts)
        found = [least]
        while found[-1] < most:
            found.append(min(most, int(found[-1] * _STEP) + 1))
        return tuple(map(Step, found))

    def set_budget(self, nbytes: int) -> None:
        """Hold so many bytes at most when this returns. Raises BudgetError, and changes nothing."""
        with self._changing:
            self._hold(self._parted(self._networks, self._needs(), nbytes))
            self.budget = nbytes

    def watch(self, source: Source, most: Budget) -> Watch:
        """As `Pool.watch`."""
        return Watch(self, source, _WATCH_S, _PATIENCE_S, pool_bytes(most))

    def resident_arena(self) -> int:
        """Bytes in memory, of all arenas."""
        with self._changing:  # no session is closed meanwhile
            sessions = [session for one in self._decoders.values() for session in one.sessions]
            return self.pool.resident_arena() + sum(session.resident_arena() for session in sessions)

    def _needs(self) -> dict[str, Needs]:
        return {name: one.needs for name, one in self._decoders.items()}

    def _held(self) -> dict[str, int]:
        """Bytes of the pool and of each decoder now."""
        return {_POOL: self._pool_nbytes} | {name: one.budget for name, one in self._decoders.items()}

    @staticmethod
    def _parts(networks: Mapping[str, _Network], needs: Mapping[str, Needs]) -> dict[str, Part]:
        summaries = {one.path: one.summary for one in networks.values()}  # one under two names is held once
        return {_POOL: pool_part(list(summaries.values()))} | {name: one.part for name, one in needs.items()}

    def _parted(self, networks: Mapping[str, _Network], needs: Mapping[str, Needs], nbytes: int) -> dict[str, int]:
        """Bytes of the pool and of each decoder, of so many. Raises BudgetError."""
        if not needs:
            return {_POOL: nbytes}
        parts = self._parts(networks, needs)
        return dict(zip(parts, parted(nbytes, list(parts.values()), (*networks, *needs)), strict=True))

    def _hold(self, wanted: Mapping[str, int]) -> None:
        """Give each so many bytes; those that get less come first. Where one cannot, all have what they had."""
        held = self._held()
        changes = sorted((name for name in wanted if wanted[name] != held[name]), key=lambda name: wanted[name] - held[name])
        done: list[str] = []
        try:
            for name in changes:
                self._set(name, wanted[name])
                done.append(name)
        except BaseException:
            for name in reversed(done):
                self._set(name, held[name])
            raise

    def _set(self, name: str, nbytes: int) -> None:
        if name == _POOL:
            self.pool.set_budget(max(nbytes, 1))
            self._pool_nbytes = nbytes
        else:
            self._decoders[name].set_budget(nbytes)


def parted(nbytes: int, parts: Sequence[Part], names: Sequence[str] = ()) -> list[int]:
    """Bytes for each part: the least of all, and of the rest in proportion to what each could use. Raises BudgetError, in which
    models have `names`.
    """
    least = sum(part.least for part in parts)
    if nbytes < least:
        listed = f" ({', '.join(names)})" if names else ""
        raise BudgetError(
            f"{human_bytes(nbytes)} are too few for decoders and models together{listed}: {enough(least, Units.BINARY)} are the "
            "fewest; unload one, or start the server with a larger budget"
        )
    useful = [part.most - part.least for part in parts]
    rest = min(nbytes - least, sum(useful))
    return [part.least + rest * one // max(sum(useful), 1) for part, one in zip(parts, useful, strict=True)]


def pool_part(summaries: Sequence[Mapping[str, Any]]) -> Part:
    """Of a pool with the libraries of these summaries."""
    if not summaries:
        return Part(0, 0)
    return Part(least_bytes([ladder_of(one) for one in summaries]), sum(one["resident_bytes"] for one in summaries))
