"""The work of a session as tapes: lists of operations of its loader, and how many of them each step needs.

A rung has an operation table and several tapes, each with operations of the table in an order of its own:

- `first`: the first inference; the arena holds nothing before.
- `fill`: brings the weights that stay, and computes nothing; the arena holds nothing before.
- `steady`: any later inference.
- `second`, `settle`: only where the first inference takes weights as stored (`Rung.cold`). `second` is the inference after that,
  and prepares the weights; `settle` prepares them without computing. Both change what stays in the same order.

Operations ahead, which begin in the inference before, are the first of a tape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from flexcomp.errors import ArtifactError

from .program import PAGE, Cold, FirstArg, Layer, Load, Prepared, Rung, Step, Weights


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


# ------------------------------------------------------------------------------------------------------- from loads


def tapes_of(rung: Rung, layers: Sequence[Layer]) -> Tapes:
    """The tapes of a rung."""
    writer = _Writer(rung, layers)
    first, fill, steady = writer.tape(writer.first, True), writer.tape(writer.fill), writer.tape(writer.steady, True)
    second, settle = (writer.tape(writer.second, True), writer.tape(writer.settle)) if rung.cold else (None, None)
    operations, at = writer.table()
    return Tapes(operations, _first_steps(rung, layers), *(tape and at(tape) for tape in (first, fill, steady, second, settle)))


def _first_steps(rung: Rung, layers: Sequence[Layer]) -> tuple[tuple[int, Step], ...]:
    steps = []
    for cold in rung.cold:
        own, weights = layers[cold.layer], _weights(layers[cold.layer])
        at = cold.at + weights.offset % PAGE
        scratch_at = rung.steps[cold.step].scratch_at if own.scratch_nbytes else -1
        steps.append((cold.step, Step(cold.layer, 0, weights.blocks, rung.steps[cold.step].need, at, scratch_at)))
    return tuple(steps)


def _weights(layer: Layer) -> Weights:
    if layer.weights is None:
        raise ValueError(f"layer {layer.name} has no weights")
    return layer.weights


def _pages_of(layer: Layer) -> tuple[int, int]:
    """(offset, nbytes) of the pages with a layer's weights in the data section."""
    weights = _weights(layer)
    begin = weights.offset // PAGE * PAGE
    return begin, -(-(weights.offset + weights.nbytes) // PAGE) * PAGE - begin


def _stored(layer: Layer, made: Prepared | Prepare) -> int:
    """The first byte of the data section that blocks of a layer are prepared from."""
    weights = _weights(layer)
    if weights.preparation is None or not any(isinstance(arg, FirstArg) for arg in layer.args):
        raise ValueError(f"the weights of layer {layer.name} are not prepared")
    begin, _ = weights.preparation.range_of(layer.panel.type, made.first, made.count)
    return weights.offset + begin * weights.preparation.block_nbytes


class _Writer:
    """The operations of loads."""

    def __init__(self, rung: Rung, layers: Sequence[Layer]) -> None:
        self._rung, self._layers = rung, layers
        self._cold = {rung.steps[cold.step].layer: cold for cold in rung.cold}
        ahead = (number for number, load in enumerate(rung.loads) if not (load.ahead or load.pinned))
        self._ahead_end = next(ahead, len(rung.loads))  # loads before this one are ahead, or do nothing in a steady inference
        self._turns: list[tuple[Operation, int]] = []  # of the tape that is written
        self._number = 0  # of the load
        self._there: set[object] = set()  # what loads of the tape have read that are over
        self._written: list[Operation] = []

    def tape(self, write: Callable[[Load], None], computes: bool = False) -> tuple[list[tuple[Operation, int]], tuple[int, ...]]:
        """A tape, and what its steps need."""
        self._turns, ends = [], [0]
        self._there = set()
        for number, load in enumerate(self._rung.loads):
            self._number = number
            write(load)
            ends.append(len(self._turns))
        self._written += (operation for operation, _ in self._turns)
        # Of more loads than there are: the reader refuses that.
        need = (ends[step.need] if step.need < len(ends) else ends[-1] + step.need for step in self._rung.steps)
        return self._turns, tuple(need) if computes else ()

    def table(self) -> tuple[tuple[Operation, ...], Callable[..., Tape]]:
        """All operations by their loads, and a function that makes a tape of what `tape` gave."""
        operations = sorted(dict.fromkeys(self._written), key=lambda one: one.load)
        index = {operation: number for number, operation in enumerate(operations)}
        return tuple(operations), lambda tape: Tape(tuple((index[one], after) for one, after in tape[0]), tape[1])

    def first(self, load: Load) -> None:
        """The first inference finds nothing."""
        after = 0 if load.ahead else load.after
        if cold := self._cold_of(load):
            if cold not in self._there:
                source, nbytes = _pages_of(self._layers[cold.layer])
                self._add(0, Read(self._number, source, nbytes, cold.at, True))
                self._there.add(cold)
        elif load.kept:
            self._read_kept(load)
            self._prepare(load, after)
        else:
            self._whole(load, after)

    def fill(self, load: Load) -> None:
        if load.kept:
            self._read_kept(load)
        elif load.pinned:
            self._whole(load, 0)

    def second(self, load: Load) -> None:
        if cold := self._cold_of(load):
            self._settle(load, cold, self._ahead(cold.step + 1) if self._number < self._ahead_end else load.after)
        self.steady(load)

    def settle(self, load: Load) -> None:
        if cold := self._cold_of(load):
            self._settle(load, cold, 0)

    def steady(self, load: Load) -> None:
        after = self._ahead(load.after) if load.ahead else load.after
        if load.kept:
            self._prepare(load, after)
        elif not load.pinned:
            self._whole(load, after)

    def _cold_of(self, load: Load) -> Cold | None:
        """The first inference's step that takes the stored weights of which this load prepares some."""
        return self._cold.get(load.prepared.layer) if load.prepared and load.pinned else None

    def _ahead(self, steps: int) -> int:
        return steps - len(self._rung.steps) - 1

    def _apart(self, load: Load) -> int | None:
        """A place to read to that nothing else uses: the end of the prepared form, which is mostly larger than the stored one.

        So reads of loads that are prepared from the same place need not wait for each other.
        """
        if not (load.pinned and load.prepared):
            return None
        nbytes = load.prepared.count * _weights(self._layers[load.prepared.layer]).block_nbytes
        place = (load.prepared.at + nbytes - load.nbytes) // PAGE * PAGE
        return place if place >= load.prepared.at else None

    def _add(self, after: int, operation: Operation) -> None:
        self._turns.append((operation, after))

    def _read_kept(self, load: Load) -> None:
        """Several loads may keep the same bytes."""
        bytes_ = load.source, load.nbytes, load.target
        if bytes_ not in self._there:
            self._add(0, Read(self._number, *bytes_, True))
            self._there.add(bytes_)

    def _whole(self, load: Load, after: int) -> None:
        apart = self._apart(load)
        to = load.target if apart is None else apart
        early = load.pinned and not load.after and (apart is not None or load.prepared is None)
        self._add(after, Read(self._number, load.source, load.nbytes, to, early))
        self._copy(to, load, after)
        if load.prepared:
            self._prepare(load, after)

    def _copy(self, source: int, load: Load, after: int) -> None:
        if source != load.target:
            self._add(after, Copy(self._number, source, load.nbytes, load.target))

    def _prepare(self, load: Load, after: int) -> None:
        made = load.prepared
        if made is None:
            raise ValueError(f"load {self._number} keeps what it reads, and prepares nothing of it")
        source = load.target + _stored(self._layers[made.layer], made) - load.source
        self._add(after, Prepare(self._number, made.layer, made.first, made.count, source, made.at))

    def _settle(self, load: Load, cold: Cold, after: int) -> None:
        self._copy(cold.at + load.source - _pages_of(self._layers[cold.layer])[0], load, after)
        self._prepare(load, after)


# ---------------------------------------------------------------------------------------------------------- to loads


def loads_of(
    tapes: Tapes, steps: Sequence[Step], layers: Sequence[Layer]
) -> tuple[tuple[Step, ...], tuple[Load, ...], tuple[Cold, ...]]:
    """Steps, loads and differences of the first inference that have these tapes: the inverse of `tapes_of`."""
    table = tapes.operations
    turns = {name: dict(tape.turns) for name, tape in vars(tapes).items() if isinstance(tape, Tape)}
    loads: list[Load] = []
    for number, group in groupby(range(len(table)), key=lambda index: table[index].load):
        if number != len(loads):
            raise ArtifactError("the program is malformed: its loads do not follow each other")
        loads.append(_load_of({index: table[index] for index in group}, loads, turns, layers, len(steps)))
    last = [0] * len(steps)  # of the loads that a step needs
    for tape in (tapes.first, tapes.second):
        for index, need in enumerate(tape.need if tape else ()):
            last[index] = max(last[index], table[tape.turns[need - 1][0]].load + 1 if need else 0)
    cold = []
    for number, step in tapes.first_steps:
        cold.append(Cold(number, step.layer, step.weights_at - _weights(layers[step.layer]).offset % PAGE))
    return tuple(replace(step, need=need) for step, need in zip(steps, last, strict=True)), tuple(loads), tuple(cold)


def _load_of(
    group: dict[int, Operation], before: Sequence[Load], turns: dict[str, dict[int, int]], layers: Sequence[Layer], steps: int
) -> Load:
    """The load with these operations; `turns` are those of each tape, by operation."""
    fill, steady = turns["fill"], turns["steady"]
    reads = {index: one for index, one in group.items() if isinstance(one, Read)}
    made, index = next(((one, index) for index, one in group.items() if isinstance(one, Prepare)), (None, next(reversed(group))))
    prepared = made and Prepared(made.layer, made.first, made.count, made.to)
    if index in steady:
        after = steady[index]
        ahead = after < 0
        after += (steps + 1) * ahead
        read = next((one for index, one in reads.items() if index in steady), None)
        if read is not None:
            return Load(read.source, read.nbytes, read.to, after, False, ahead, prepared)
        if made is None:
            raise ValueError("a load neither reads nor prepares")
        source = _stored(layers[made.layer], made) - made.source
        kept = [(one.source, one.nbytes, one.to) for one in reads.values()]
        kept += [(one.source, one.nbytes, one.target) for one in reversed(before) if one.kept]
        found = next(one for one in kept if one[0] - one[2] == source and one[2] <= made.source < one[2] + one[1])
        return Load(*found, after, False, ahead, prepared, kept=True)
    read_at, read = next((index, one) for index, one in reads.items() if index in fill)
    target = next((one.to for index, one in group.items() if isinstance(one, Copy) and index in fill), read.to)
    after = 0 if read.early else max(turns["first"].get(read_at, turns.get("second", {}).get(index, 0)), 0)
    return Load(read.source, read.nbytes, target, after, True, False, prepared)
