"""Facts of a program about its weights file: all that the two formats have in common."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flexcomp.deferred import DIGEST_NBYTES

DIGESTS = "digests"  # metadata of a program: what weights of layers hold, by which models of a pool find equal ones
LEAST_DIGESTED = 24 << 10  # bytes of weights: digests of smaller ones would be more than a thousandth of the weights
_TEXT = 22  # letters of a digest
_UNKNOWN = bytes(DIGEST_NBYTES)


@dataclass(frozen=True)
class Checksum:
    """The CRC-32 of one tensor in the weights file and of the gap that follows, and of one before the first."""

    offset: int  # bytes from the start of the data section
    nbytes: int
    crc: int


@dataclass(frozen=True)
class WeightsDigest:
    """Facts of a program about its weights file, to recognise and verify the file."""

    header_nbytes: int  # everything before the data section; multiple of PAGE
    header_crc: int
    data_nbytes: int
    checksums: tuple[Checksum, ...]
    # Of tensors from LEAST_DIGESTED bytes on, by their first byte of the data section and their number of bytes.
    digests: Mapping[tuple[int, int], bytes] = field(default_factory=dict, compare=False)

    @property
    def file_nbytes(self) -> int:
        return self.header_nbytes + self.data_nbytes


def to_metadata(ranges: Iterable[tuple[int, int]], digests: Mapping[tuple[int, int], bytes]) -> dict[str, str]:
    """Metadata with the digests of layers' weights, given as (first byte, bytes); none if none is known.

    One after the other in base64, of each range from LEAST_DIGESTED bytes on, ascending; zeros: unknown.
    """
    long = _long(ranges)
    if not any(one in digests for one in long):
        return {}
    return {DIGESTS: "".join(base64.b64encode(digests.get(one, _UNKNOWN)).decode()[:_TEXT] for one in long)}


def from_metadata(ranges: Iterable[tuple[int, int]], text: str) -> dict[tuple[int, int], bytes]:
    """The inverse of `to_metadata`. Raises ValueError for other text."""
    long = _long(ranges)
    if len(text) != _TEXT * len(long):
        raise ValueError(f"{len(text)} letters are not the digests of {len(long)} weights")
    parts = (base64.b64decode(text[at : at + _TEXT] + "==", validate=True) for at in range(0, len(text), _TEXT))
    return {one: digest for one, digest in zip(long, parts, strict=True) if digest != _UNKNOWN}


def _long(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted({one for one in ranges if one[1] >= LEAST_DIGESTED})
