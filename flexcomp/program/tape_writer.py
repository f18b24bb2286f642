"""Tapes from loads, each of which a build describes once: what the first inference, filling and later ones do for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .program import PAGE, FirstArg, Layer, Weights
from .tapes import Copy, Operation, Prepare, Read, Step, Tape, Tapes


@dataclass(frozen=True)
class Prepared:
    """The prepared weights of a load: blocks [first, first + count) of a layer."""

    layer: int
    first: int
    count: int
    at: int  # arena address of block `first`; multiple of ALIGN


@dataclass(frozen=True)
class Load:
    """One read from the weights file into the arena. Loads run in order.

    Where weights are prepared, the stored bytes are not needed after the load, unless kept. Such loads may share a place for
    stored bytes: none begins to read before earlier loads with bytes in its place are complete.
    """

    source: int  # bytes from the start of the data section; multiple of PAGE
    nbytes: int  # multiple of PAGE; the last page of the file may be cut short
    target: int  # arena address; multiple of PAGE
    after: int  # starts when this many steps of the inference are computed
    pinned: bool  # stays in the arena: read in the first inference of the rung only
    ahead: bool = False  # `after` counts the steps of the previous inference; the first inference reads at its start
    prepared: Prepared | None = None
    # The stored bytes are read in the first inference, stay, and are prepared in every inference when `after` and `ahead` say.
    kept: bool = False


@dataclass(frozen=True)
class Cold:
    """A step that the first inference of a rung computes by a layer that takes the stored weights.

    Its loads, whose prepared weights stay, are one read then, to `at`, inside the place of the prepared weights. The loads are
    prepared from these bytes after the step, for the second inference, in order: a load's result may overwrite its own stored
    bytes and those of earlier loads, but not those of later ones.
    """

    step: int  # computes a whole layer
    layer: int  # the same by another kernel; the weights of the step's layer are prepared from its weights
    at: int  # arena address; multiple of PAGE


def tapes_of(
    layers: Sequence[Layer], steps: Sequence[Step], loads: Sequence[Load], need: Sequence[int], cold: Sequence[Cold] = ()
) -> Tapes:
    """The tapes of a plan whose steps need so many of the loads each; `cold`: differences of the first inference, in order."""
    writer = _Writer(layers, steps, loads, need, cold)
    first, fill, steady = writer.tape(writer.first, True), writer.tape(writer.fill), writer.tape(writer.steady, True)
    second, settle = (writer.tape(writer.second, True), writer.tape(writer.settle)) if cold else (None, None)
    operations, at = writer.table()
    first_steps = tuple((one.step, _first_step(layers[one.layer], one, steps[one.step])) for one in cold)
    return Tapes(operations, first_steps, *(tape and at(tape) for tape in (first, fill, steady, second, settle)))


def _first_step(layer: Layer, cold: Cold, later: Step) -> Step:
    weights = _weights(layer)
    scratch_at = later.scratch_at if layer.scratch_nbytes else -1
    return Step(cold.layer, 0, weights.blocks, cold.at + weights.offset % PAGE, scratch_at)


def _weights(layer: Layer) -> Weights:
    if layer.weights is None:
        raise ValueError(f"layer {layer.name} has no weights")
    return layer.weights


def _pages_of(layer: Layer) -> tuple[int, int]:
    """(offset, nbytes) of the pages with a layer's weights in the data section."""
    weights = _weights(layer)
    begin = weights.offset // PAGE * PAGE
    return begin, -(-(weights.offset + weights.nbytes) // PAGE) * PAGE - begin


def _stored(layer: Layer, made: Prepared) -> int:
    """The first byte of the data section that blocks of a layer are prepared from."""
    weights = _weights(layer)
    if weights.preparation is None or not any(isinstance(arg, FirstArg) for arg in layer.args):
        raise ValueError(f"the weights of layer {layer.name} are not prepared")
    begin, _ = weights.preparation.range_of(layer.panel.type, made.first, made.count)
    return weights.offset + begin * weights.preparation.block_nbytes


class _Writer:
    """The operations of loads."""

    def __init__(
        self, layers: Sequence[Layer], steps: Sequence[Step], loads: Sequence[Load], need: Sequence[int], cold: Sequence[Cold]
    ) -> None:
        self._layers, self._steps, self._loads, self._need = layers, len(steps), loads, need
        self._cold = {steps[one.step].layer: one for one in cold}
        ahead = (number for number, load in enumerate(loads) if not (load.ahead or load.pinned))
        self._ahead_end = next(ahead, len(loads))  # loads before this one are ahead, or do nothing in a steady inference
        self._turns: list[tuple[Operation, int]] = []  # of the tape that is written
        self._number = 0  # of the load
        self._there: set[object] = set()  # what loads of the tape have read that are over
        self._written: list[Operation] = []

    def tape(self, write: Callable[[Load], None], computes: bool = False) -> tuple[list[tuple[Operation, int]], tuple[int, ...]]:
        """A tape, and what its steps need."""
        self._turns, ends = [], [0]
        self._there = set()
        for number, load in enumerate(self._loads):
            self._number = number
            write(load)
            ends.append(len(self._turns))
        self._written += (operation for operation, _ in self._turns)
        # Of more loads than there are: the reader refuses that.
        need = (ends[need] if need < len(ends) else ends[-1] + need for need in self._need)
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
        return steps - self._steps - 1

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
