"""The byte format of MODEL.weights, of which this module is the authority.

The reader on the device is `runtime_ext/src/storage/weights_file.cc`.

Weights file, format 1: a safetensors file (u64 length, JSON header, data section) with three promises more:
the header is padded with spaces so that the data section starts at a multiple of PAGE; every tensor starts
at a multiple of ALIGN of the data section, the gaps being tensors named "~pad.N"; and `__metadata__` holds
"format": "flexcomp.weights.1", "model", and "content", a digest of all tensor checksums. The program
stores the CRC-32 of everything before the data section, so the weights of another model, or of another
training of the same model, are refused without reading the data.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from flexcomp.deferred import Array, new_digest, pieces
from flexcomp.files import replacing

from .digest import LEAST_DIGESTED, Checksum, WeightsDigest
from .program import ALIGN, PAGE

WEIGHTS_FORMAT = "flexcomp.weights.1"

# dtype name → name in safetensors
_SAFETENSORS = {
    "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
    "float16": "F16", "float32": "F32", "float64": "F64", "bool": "BOOL",
    "bfloat16": "BF16",
}  # fmt: skip


def write_weights(
    path: str | os.PathLike[str],
    entries: Sequence[tuple[str, Array] | tuple[str, Array, int]],
    *,
    model: str = "",
    data_nbytes: int | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> WeightsDigest:
    """Write the weights file and return its digest.

    `entries` are (name, array) or (name, array, offset) in ascending order of offset; without an offset a
    tensor starts at the next multiple of ALIGN. `data_nbytes` pads the data section at its end. `path` appears
    only when it is complete. Arrays that are deferred are made here, a piece at a time and on all cores.
    `report(done, total)` is called as tensors are written.
    """
    if not isinstance(entries, Sequence):
        raise TypeError("the weights must be a sequence: they are gone through twice")
    if not entries and data_nbytes:
        raise ValueError(f"{data_nbytes} bytes of no weights")
    path = Path(path)
    tensors, offsets, end = _place_weights(entries, data_nbytes)
    metadata = {"format": WEIGHTS_FORMAT, "model": model, "content": hashlib.sha256().hexdigest()}
    header_nbytes = len(_weights_header(tensors, metadata))  # the same with any digest
    edges = [0, *offsets[1:], end]
    checksums: list[Checksum] = []
    digests: dict[tuple[int, int], bytes] = {}
    report(0, len(entries))
    with replacing(path) as partial, open(partial, "wb") as out:
        out.truncate(header_nbytes + end)  # gaps are holes, which read as zeros

        def write(position: int) -> Checksum:
            array, offset = entries[position][1], offsets[position]
            begin, behind = edges[position : position + 2]
            crc = zlib.crc32(bytes(offset - begin))
            at, digest = offset, new_digest() if array.nbytes >= LEAST_DIGESTED else None
            for piece in pieces(array):
                raw = memoryview(np.ascontiguousarray(piece).reshape(-1).view("u1"))
                _write_all(out.fileno(), raw, header_nbytes + at)
                crc, at = zlib.crc32(raw, crc), at + raw.nbytes
                if digest:
                    digest.update(raw)
            assert at == offset + array.nbytes, "the pieces of an array are all of it"
            if digest:
                digests[offset, array.nbytes] = digest.digest()
            return Checksum(begin, behind - begin, zlib.crc32(bytes(behind - at), crc))

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:  # NumPy and writing leave Python to others
            for checksum in threads.map(write, range(len(entries))):
                checksums.append(checksum)
                report(len(checksums), len(entries))
        content = b"".join(struct.pack("<QQI", c.offset, c.nbytes, c.crc) for c in checksums)
        header = _weights_header(tensors, metadata | {"content": hashlib.sha256(content).hexdigest()})
        out.write(header)
    return WeightsDigest(len(header), zlib.crc32(header), end, tuple(checksums), digests)


def _write_all(file: int, raw: memoryview, offset: int) -> None:
    while raw.nbytes:
        written = os.pwrite(file, raw, offset)
        raw, offset = raw[written:], offset + written


def _place_weights(entries: Sequence[tuple], data_nbytes: int | None) -> tuple[dict[str, dict], list[int], int]:
    """The header's tensors, with the gaps between them, the offset of each entry, and the bytes of the data section."""
    tensors: dict[str, dict] = {}
    offsets: list[int] = []
    end = pads = 0

    def pad(to: int) -> None:
        nonlocal end, pads
        if to > end:
            tensors[f"~pad.{pads}"] = {"dtype": "U8", "shape": [to - end], "data_offsets": [end, to]}
            pads += 1
            end = to

    for name, array, *rest in entries:
        offset = rest[0] if rest else -(-end // ALIGN) * ALIGN
        if name in tensors or name == "__metadata__" or name.startswith("~pad."):
            raise ValueError(f'the weight name "{name}" is used twice or reserved')
        if offset % ALIGN or offset < end:
            raise ValueError(f'weight "{name}" is placed at {offset}: not a multiple of {ALIGN} at or behind {end}')
        if array.dtype.name not in _SAFETENSORS or array.nbytes == 0:
            raise ValueError(f'weight "{name}" cannot be stored: {array.dtype.name}{list(array.shape)}')
        pad(offset)
        end = offset + array.nbytes
        tensors[name] = {"dtype": _SAFETENSORS[array.dtype.name], "shape": list(array.shape), "data_offsets": [offset, end]}
        offsets.append(offset)
    pad(end if data_nbytes is None else data_nbytes)
    return tensors, offsets, end


def _weights_header(tensors: dict[str, dict], metadata: dict[str, str]) -> bytes:
    text = json.dumps({"__metadata__": metadata, **tensors}, separators=(",", ":"), ensure_ascii=False).encode()
    padded = -(-(8 + len(text)) // PAGE) * PAGE - 8
    return struct.pack("<Q", padded) + text.ljust(padded)
