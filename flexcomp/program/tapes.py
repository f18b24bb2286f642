"""The plan of a rung: steps, and tapes, which are lists of operations of the loader with how many of them each step needs.

A rung has an operation table and several tapes, each with operations of the table in an order of its own:

- `first`: the first inference; the arena holds nothing before.
- `fill`: brings the weights that stay, and computes nothing; the arena holds nothing before.
- `steady`: any later inference.
- `second`, `settle`: only where the first inference computes some steps by kernels that take weights as stored. `second` is
  the inference after that, and prepares the weights; `settle` prepares them without computing. Both change what stays in the
  same order.

Operations ahead, which begin in the inference before, are the first of a tape.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby


@dataclass(frozen=True)
class Step:
    """One kernel call of a rung."""

    layer: int
    first: int
    count: int
    weights_at: int  # arena address of byte `first * block_nbytes` of the weights; -1 without weights
    scratch_at: int  # arena address of the scratch; -1 without scratch


@dataclass(frozen=True)
class Read:
    """From the data section of the weights file into the arena."""

    load: int  # of the rung, for people
    source: int  # multiple of PAGE
    nbytes: int  # multiple of PAGE
    to: int  # arena address; multiple of PAGE
    early: bool = False  # may begin at any time: nothing uses its place before its turn


@dataclass(frozen=True)
class Copy:
    """Within the arena."""

    load: int
    source: int  # arena address, as `to`; multiple of PAGE
    nbytes: int  # multiple of PAGE
    to: int


@dataclass(frozen=True)
class Prepare:
    """Blocks [first, first + count) of a layer's weights from stored ones, the first of which lies at `source`."""

    load: int
    layer: int
    first: int
    count: int
    source: int  # arena address, as `to`; multiple of ALIGN
    to: int


Operation = Read | Copy | Prepare


@dataclass(frozen=True)
class Tape:
    """Operations in their order; they complete in this order."""

    # (index into the table, steps after which it begins). 0 is when the inference has begun, -n is in the inference before, n - 1
    # steps before its end.
    turns: tuple[tuple[int, int], ...]
    need: tuple[int, ...]  # of each step: so many operations must be complete

    @property
    def runs(self) -> list[tuple[int, int, int]]:
        """(first, count, after) of neighbours in the table that begin after as many steps."""
        runs: list[tuple[int, int, int]] = []
        for index, after in self.turns:
            if runs and runs[-1][0] + runs[-1][1] == index and runs[-1][2] == after:
                runs[-1] = runs[-1][0], runs[-1][1] + 1, after
            else:
                runs.append((index, 1, after))
        return runs


@dataclass(frozen=True)
class Delivery:
    """What a tape does for one load: a read, or a preparation of weights that stay as stored, or both."""

    load: int
    after: int  # as in a tape
    operations: tuple[Operation, ...]

    @property
    def read(self) -> Read | None:
        """From the file."""
        return next((one for one in self.operations if isinstance(one, Read)), None)

    @property
    def prepare(self) -> Prepare | None:
        """Of the weights that steps use."""
        return next((one for one in self.operations if isinstance(one, Prepare)), None)

    @property
    def brought(self) -> tuple[int, int]:
        """(address, bytes) of the bytes of the file, as they are used or prepared; without bytes if they were there."""
        places = [(one.to, one.nbytes) for one in self.operations if not isinstance(one, Prepare)]
        return places[-1] if places else (self.operations[0].source, 0)


@dataclass(frozen=True)
class Tapes:
    """All tapes of a rung."""

    operations: tuple[Operation, ...]  # the table, by loads
    first_steps: tuple[tuple[int, Step], ...]  # steps that the first inference computes instead of those with these numbers
    first: Tape
    fill: Tape
    steady: Tape
    second: Tape | None = None
    settle: Tape | None = None

    @property
    def all(self) -> tuple[Tape, ...]:
        """In their order in a program."""
        return tuple(tape for tape in (self.first, self.fill, self.steady, self.second, self.settle) if tape is not None)

    @cached_property
    def filled(self) -> tuple[Delivery, ...]:
        """Of `fill`: weights that stay."""
        return tuple(self._deliveries(self.fill))

    @cached_property
    def repeated(self) -> tuple[Delivery, ...]:
        """Of `steady`: what every inference does."""
        return tuple(self._deliveries(self.steady))

    @property
    def awaited(self) -> tuple[int, ...]:
        """Per step: so many of `repeated` must be complete in any inference but the first."""
        done = [0]
        for one in self.repeated:
            done += [done[-1]] * (len(one.operations) - 1) + [done[-1] + 1]
        return tuple(done[need] for need in self.steady.need)

    def _deliveries(self, tape: Tape) -> Iterator[Delivery]:
        operations = ((self.operations[index], after) for index, after in tape.turns)
        for load, group in groupby(operations, key=lambda one: one[0].load):
            of, after = zip(*group, strict=True)
            yield Delivery(load, after[0], of)
