"""The copy stage of a GEMM: vectors of an operand go to shared memory through registers, or by asynchronous copies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import spread, vector
from .emit import LANES, copy, registers
from .instructions import fetch, kept_pointer


@dataclass(frozen=True)
class Source:
    """Numbers in a GPU's memory, in units of one copy, `lanes` numbers, so that copies are known to be aligned."""

    buffer: tirx.Buffer
    begin: ir.Expr  # where unit 0 lies, in units
    lanes: int
    pointer: ir.Expr | None = None  # of unit 0, if kept


@dataclass(frozen=True)
class SharedVector:
    """The place of a vector of LANES numbers in shared memory."""

    buffer: tirx.Buffer
    at: ir.Expr


class CopyStage(Protocol):
    """The copy of a float32 operand."""

    sizes: tuple[int, ...]  # numbers that may be copied at once

    def source(self, buffer: tirx.Buffer, begin, lanes: int) -> Source:
        """The source for `issue`: a buffer from unit `begin` on."""

    def issue(self, i: int, lane: int, source: Source, far, beyond: int, inside: ir.Expr | bool, to: SharedVector) -> None:
        """Ask for unit `far + beyond` of a source as numbers of vector i from `lane` on; zeros if not `inside`."""

    def store_shared(self, i: int, to: SharedVector) -> None:
        """Write vector i to shared memory, unless an asynchronous copy does."""


class RegisterCopy:
    """Through registers: threads ask for numbers before computing, and write the numbers to shared memory afterwards."""

    sizes = (LANES, 1)

    def __init__(self, vectors: int) -> None:
        self._ahead = registers(vectors * LANES)

    def source(self, buffer: tirx.Buffer, begin, lanes: int) -> Source:
        return Source(buffer, begin, lanes)

    def issue(self, i: int, lane: int, source: Source, far, beyond: int, inside: ir.Expr | bool, to: SharedVector) -> None:
        lanes = source.lanes
        with or_zeros(self._ahead, i * LANES + lane, lanes, inside):
            copy(self._ahead, i * LANES + lane, source.buffer, (source.begin + (far + beyond)) * lanes, lanes)

    def store_shared(self, i: int, to: SharedVector) -> None:
        copy(to.buffer, to.at, self._ahead, i * LANES)


class AsyncCopy:
    """By copies that run while the threads compute."""

    sizes = (LANES, 2, 1)

    def source(self, buffer: tirx.Buffer, begin, lanes: int) -> Source:
        return Source(buffer, begin, lanes, kept_pointer(buffer, begin * lanes))

    def issue(self, i: int, lane: int, source: Source, far, beyond: int, inside: ir.Expr | bool, to: SharedVector) -> None:
        fetch(to.buffer, to.at + lane, source.pointer, far, beyond, source.lanes, inside)

    def store_shared(self, i: int, to: SharedVector) -> None:
        pass


def copy_width(stage: CopyStage, *extents: int) -> int:
    """Numbers that are copied at once, where vectors begin at multiples of all these."""
    return next(size for size in stage.sizes if all(extent % size == 0 for extent in extents))


@contextmanager
def or_zeros(target: tirx.Buffer, at: int, lanes: int, inside: ir.Expr | bool) -> Iterator[None]:
    """The statements where `inside` holds; elsewhere target[at : at + lanes] becomes zero."""
    if inside is True:
        yield
        return
    with T.If(inside):
        with T.Then():
            yield
        with T.Else():
            T.buffer_store(target, spread(tirx.const(0, target.dtype), lanes), [vector(at, lanes)])
