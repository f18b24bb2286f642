"""Facts of a program about its weights file: all that the two formats have in common."""

from __future__ import annotations

from dataclasses import dataclass


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

    @property
    def file_nbytes(self) -> int:
        return self.header_nbytes + self.data_nbytes
