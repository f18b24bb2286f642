"""Weights of 4 and 8 bits with a scale, and maybe a zero point, for each block of neighbouring inputs of an output channel.

    w[channel, k] = (q[channel, k] - zero[channel, k // size]) · scale[channel, k // size]

q and zero are signed integers of `bits` bits, scales float16 or float32; the last block may have fewer weights. A panel
(`panel.py`) holds them as they are:

    panel[block]    bias, channel vectors of the epilogue           float32[block] each
                    scales, one row for each block of inputs        float16[block] or float32[block] each
                    zero points, if any                             as the weights
                    weights                                         8 bits: int8[taps, block]; 4 bits: int8[taps / 2, block],
                                                                    an even tap in the low half and the next in the high half
                    zero padding

Where a kernel multiplies `together` taps of a channel at once, as integers, these are neighbours in a word of as many bytes:

    weights             8 bits: int8[taps / together, block, together]
                        4 bits: uint8[taps / together / 2, block, together], the first taps in the low halves and the next in the
                        high halves, each 8 more than its integer
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

import numpy as np

# A type of weights that a build may be asked for: 4 bits in blocks of 32, symmetric, with float16 scales where these fit.
INT4 = "int4"
_SIZE = 32
_MOST = 7  # of 4 bits, symmetric
_FORM = re.compile(r"int(4|8) in blocks of (\d+), (float16|float32) scales(, zero points)?(?:, (4|8) together)?")
_SCALE_NBYTES = {"float16": 2, "float32": 4}
_HALF = 4  # bits, of a byte
BIAS = 8  # by which integers of 4 bits are stored larger where taps are together


@dataclass(frozen=True)
class Blocks:
    """How weights in blocks are kept. As text it is a type of kept weights."""

    bits: int  # 4 or 8
    size: int  # weights of a block; even
    scales: str  # float16 or float32
    has_zeros: bool
    together: int = 1  # taps of a channel that are neighbours

    def __str__(self) -> str:
        text = f"int{self.bits} in blocks of {self.size}, {self.scales} scales" + (", zero points" if self.has_zeros else "")
        return text + (f", {self.together} together" if self.together > 1 else "")

    @property
    def scale_nbytes(self) -> int:
        return _SCALE_NBYTES[self.scales]

    @property
    def nbytes(self) -> float:
        """Bytes of a weight, with its part of scale and zero point."""
        return self.bits / 8 + (self.scale_nbytes + self.has_zeros * self.bits / 8) / self.size

    def count(self, taps: int) -> int:
        """Blocks of an output channel."""
        return math.ceil(taps / self.size)

    def scale_rows(self, taps: int) -> int:
        """Rows of bytes that scales take."""
        return self.count(taps) * self.scale_nbytes

    def zero_rows(self, taps: int) -> int:
        """Rows of bytes that zero points take."""
        return self.rows(self.count(taps)) if self.has_zeros else 0

    @property
    def word_taps(self) -> int:
        """Taps of a channel in a word: the least that its bytes hold."""
        return self.together * 8 // self.bits

    def tap_rows(self, taps: int) -> int:
        """Rows of bytes that weights take."""
        return math.ceil(taps / self.word_taps) * self.together

    def row_nbytes(self, taps: int) -> int:
        """Bytes of a channel: scales, zero points and weights."""
        return self.scale_rows(taps) + self.zero_rows(taps) + self.tap_rows(taps)

    def rows(self, integers: int) -> int:
        """Rows of bytes that so many integers of a channel take."""
        return math.ceil(integers * self.bits / 8)


# What INT4 is where float16 has all scales.
INT4_FORM = str(Blocks(4, _SIZE, "float16", has_zeros=False))


def blocks_of(kept: str) -> Blocks | None:
    """The blocks of a type of kept weights; None if it has none."""
    found = _FORM.fullmatch(kept)
    if not found:
        return None
    bits, size, scales, zeros, together = found.groups()
    return Blocks(int(bits), int(size), scales, zeros is not None, int(together or 1))


def apart(kept: str) -> str:
    """The type of kept weights without taps together: that of the same values."""
    form = blocks_of(kept)
    return str(replace(form, together=1)) if form else kept


def exact(q: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, size: int, *, float16: bool = True) -> Blocks | None:
    """The blocks with the fewest bytes that lose nothing of integers [channels, taps] with float32 scales [channels, blocks].

    `zeros` are of the scales' shape. float16 scales only if allowed. None if size is odd, or integers have more than 8 bits.
    """
    offset = next((one for bits in (4, 8) if (one := _offset(q, zeros, bits)) is not None), None)
    if offset is None or size % 2:
        return None
    bits, less = offset
    with np.errstate(over="ignore"):
        narrow = float16 and np.array_equal(scales.astype(np.float16).astype(np.float32), scales)
    has_zeros = bool(np.any(zeros != less)) if zeros is not None else less != 0
    return Blocks(bits, size, "float16" if narrow else "float32", has_zeros)


def _offset(q: np.ndarray, zeros: np.ndarray | None, bits: int) -> tuple[int, int] | None:
    """(bits, offset) with which integers and zero points less the offset have so many bits; None if they have more."""
    zero = np.zeros(1, q.dtype) if zeros is None else zeros
    low = min(int(some.min(initial=0)) for some in (q, zero))
    high = max(int(some.max(initial=0)) for some in (q, zero))
    half = 1 << (bits - 1)
    return next(((bits, less) for less in (0, half) if less - half <= low and high < less + half), None)


def rounding(weights: np.ndarray, *, float16: bool = True) -> Blocks:
    """The blocks that INT4 means for float32 weights; float16 scales only if allowed."""
    largest = float(np.max(np.abs(weights), initial=0)) / _MOST
    fits = float16 and largest <= float(np.finfo(np.float16).max)
    return Blocks(4, _SIZE, "float16" if fits else "float32", False)


def scales_of(weights: np.ndarray, kept: str) -> np.ndarray:
    """float32[channels, blocks]: the scales to whose multiples, of -7 to 7, weights [channels, taps] are rounded."""
    form = blocks_of(kept)
    assert form is not None, f"{kept} has no blocks"
    count = form.count(weights.shape[1])
    padded = np.pad(np.abs(weights), ((0, 0), (0, count * form.size - weights.shape[1])))
    largest = padded.reshape(len(weights), count, form.size).max(axis=2)
    scales = (largest / np.float32(_MOST)).astype(form.scales).astype(np.float32)
    return np.where(scales > 0, scales, np.float32(1))


def integers_of(weights: np.ndarray, kept: str) -> np.ndarray:
    """int8[channels, taps]: the nearest multiples of the scales."""
    form = blocks_of(kept)
    assert form is not None, f"{kept} has no blocks"
    scales = np.repeat(scales_of(weights, kept), form.size, axis=1)[:, : weights.shape[1]]
    return np.clip(np.rint(weights / scales), -_MOST, _MOST).astype(np.int8)


def rounded(weights: np.ndarray, kept: str) -> np.ndarray:
    """float32 weights [channels, taps] rounded to these multiples."""
    form = blocks_of(kept)
    assert form is not None, f"{kept} has no blocks"
    return dequantised(integers_of(weights, kept), scales_of(weights, kept), None, form.size)


def dequantised(q: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, size: int) -> np.ndarray:
    """float32[channels, taps]: the weights of integers with scales, and zero points, [channels, blocks]."""
    taps = q.shape[1]
    wide = q.astype(np.float32)
    if zeros is not None:
        wide -= np.repeat(zeros.astype(np.float32), size, axis=1)[:, :taps]
    return wide * np.repeat(scales, size, axis=1)[:, :taps]


def pack(
    head: np.ndarray, q: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, kept: str, rows: int
) -> np.ndarray:
    """A panel, int8[blocks, rows, block], of float32 rows [blocks, head, block], integers [blocks, taps, block], and scales and
    zero points [blocks, blocks of inputs, block]."""
    form = blocks_of(kept)
    assert form is not None, f"{kept} has no blocks"
    unsigned = q.dtype == np.uint8
    less = 1 << (form.bits - 1) if unsigned else 0
    if zeros is None:
        zeros = np.zeros(scales.shape, q.dtype)
    panel = np.zeros((len(q), rows, q.shape[2]), np.int8)
    parts = [_bytes(head.astype(np.float32)), _bytes(scales.astype(form.scales))]
    parts += [_integers(zeros, less, form.bits)] if form.has_zeros else []
    parts.append(_integers(q, less, form.bits) if form.together == 1 else _words(q, less, form))
    packed = np.concatenate(parts, axis=1)
    panel[:, : packed.shape[1]] = packed
    return panel


def pack_rows(q: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, kept: str) -> np.ndarray:
    """int8[rows, bytes]: for each row of integers [rows, width], with scales and zero points [rows, blocks], the scales, the
    zero points, and the integers."""
    form = blocks_of(kept)
    assert form is not None, f"{kept} has no blocks"
    nbytes, alone = form.row_nbytes(q.shape[1]), np.zeros((len(q), 0, 1), np.float32)
    lanes = [None if one is None else one[..., None] for one in (q, scales, zeros)]
    return pack(alone, *lanes, kept, nbytes).reshape(len(q), nbytes)


def _bytes(values: np.ndarray) -> np.ndarray:
    """Rows of wider elements [blocks, rows, block] as rows of bytes."""
    blocks, _, block = values.shape
    return np.ascontiguousarray(values).view(np.int8).reshape(blocks, -1, block)


def _words(values: np.ndarray, less: int, form: Blocks) -> np.ndarray:
    """Integers [blocks, taps, block] less an offset, those of a word together, as rows of bytes."""
    signed = (values.astype(np.int16) - less).astype(np.int8)
    blocks, taps, block = signed.shape
    signed = np.pad(signed, ((0, 0), (0, -taps % form.word_taps), (0, 0)))
    if form.bits == 4:
        halves = (signed + BIAS).view(np.uint8).reshape(blocks, -1, 2, form.together, block)
        signed = (halves[:, :, 0] | (halves[:, :, 1] << _HALF)).view(np.int8)
    words = signed.reshape(blocks, -1, form.together, block).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(words).reshape(blocks, -1, block)


def _integers(values: np.ndarray, less: int, bits: int) -> np.ndarray:
    """Integers [blocks, count, block] less an offset; of 4 bits two in a byte."""
    signed = (values.astype(np.int16) - less).astype(np.int8)
    if bits == 8:
        return signed
    if signed.shape[1] % 2:
        signed = np.pad(signed, ((0, 0), (0, 1), (0, 0)))
    low, high = signed[:, ::2].view(np.uint8), signed[:, 1::2].view(np.uint8)
    return ((low & 15) | (high << _HALF)).view(np.int8)
