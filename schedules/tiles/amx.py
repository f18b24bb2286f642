"""Instructions of AMX for products of bfloat16: eight tiles of 16 rows × 64 bytes, whose numbers are constants of the code.

    configure   ldtilecfg: the rows and bytes of every tile; all become zero
    load        tileloadd: rows of memory that lie a stride apart
    multiply    tdpbf16ps: sums[m][n] += Σ over pairs p of left[m][2p] · right[p][2n] + left[m][2p + 1] · right[p][2n + 1]
    store       tilestored
    release     tilerelease: none is in use any more, so that the system has none to save

Sums are rounded to the nearest in float32; subnormal factors and sums become 0. A row of `right` holds pairs of input channels
side by side, as panels do where two taps of a channel lie together (`panel.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from tvm import tirx
from tvm.script.ir_builder import tirx as T

ROWS = 16  # of a tile at most, and 32-bit words of each
CONFIG_WORDS = 16  # of a description of all tiles, int32
_PALETTE = 1
_BYTES_AT, _ROWS_AT = 16, 48  # of each tile, in the description


def configuration(shapes: Mapping[int, tuple[int, int]]) -> list[int]:
    """The description of tiles with so many rows, and words of each, by their numbers."""
    described = bytearray(4 * CONFIG_WORDS)
    described[0] = _PALETTE
    for number, (rows, words) in shapes.items():
        assert 1 <= rows <= ROWS and 1 <= words <= ROWS, f"tile {number} is {rows} rows × {words} words"
        described[_BYTES_AT + 2 * number] = 4 * words
        described[_ROWS_AT + number] = rows
    return [int.from_bytes(described[at : at + 4], "little") for at in range(0, len(described), 4)]


def configure(described: tirx.Buffer, at) -> None:
    _emit("ldtilecfg", tirx.address_of(described[at]))


def clear(tile: int) -> None:
    _emit("tilezero", _number(tile))


def load(tile: int, buffer: tirx.Buffer, at, stride_nbytes: int) -> None:
    _emit("tileloadd64", _number(tile), tirx.address_of(buffer[at]), tirx.const(stride_nbytes, "int64"))


def multiply(sums: int, left: int, right: int) -> None:
    _emit("tdpbf16ps", *map(_number, (sums, left, right)))


def store(tile: int, buffer: tirx.Buffer, at, stride_nbytes: int) -> None:
    _emit("tilestored64", _number(tile), tirx.address_of(buffer[at]), tirx.const(stride_nbytes, "int64"))


def release() -> None:
    _emit("tilerelease")


def _number(tile: int) -> tirx.Expr:
    return tirx.const(tile, "int8")


def _emit(name: str, *arguments: tirx.Expr) -> None:
    T.evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *arguments))
