"""Reads an ONNX file without protobuf's copies: the model without its large weights, which are read when they are needed.

Protobuf's parser has the whole file in memory and copies every weight, and its Python objects copy weights again. Here the parser
sees only the rest of the model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import onnx

from flexcomp.deferred import Array
from flexcomp.frontend.file_bytes import FileBytes

# Numbers of fields in onnx.proto.
_GRAPH_OF_MODEL = 7
_INITIALIZER_OF_GRAPH = 5
_RAW_DATA_OF_TENSOR = 9
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # protobuf's wire types


class _NotTaken(Exception):
    """This reader does not understand the file; protobuf's parser may, or reports the error."""


@dataclass(frozen=True)
class _Field:
    number: int
    wire: int
    start: int  # of the field in the file, its key included
    begin: int  # of its value
    end: int


def parse(path: Path, least: int) -> tuple[onnx.ModelProto, dict[int, Array]]:
    """The model in a file without raw data of `least` bytes or more, and these data by the positions of initialisers.

    Raises DecodeError or OSError.
    """
    with open(path, "rb") as file:
        kept = FileBytes(os.dup(file.fileno()), str(path))
        try:
            text, places = _without_large(file, least)
        except _NotTaken:
            file.seek(0)
            return onnx.load_model_from_string(file.read()), {}
    model = onnx.load_model_from_string(text)
    return model, {position: kept.bytes(field.begin, field.end - field.begin) for position, field in places.items()}


def _without_large(file: BinaryIO, least: int) -> tuple[bytes, dict[int, _Field]]:
    places: dict[int, _Field] = {}
    parts: list[bytes] = []
    graphs = 0
    for field in _fields(file, 0, file.seek(0, 2)):
        if field.number != _GRAPH_OF_MODEL or field.wire != _BYTES:
            parts.append(_bytes(file, field))
            continue
        graphs += 1
        if graphs > 1:  # protobuf merges them
            raise _NotTaken
        parts.append(_value(_GRAPH_OF_MODEL, _graph(file, field, least, places)))
    return b"".join(parts), places


def _graph(file: BinaryIO, graph: _Field, least: int, places: dict[int, _Field]) -> bytes:
    parts: list[bytes] = []
    position = 0
    for field in _fields(file, graph.begin, graph.end):
        if field.number != _INITIALIZER_OF_GRAPH or field.wire != _BYTES:
            parts.append(_bytes(file, field))
            continue
        if field.end - field.begin < least:
            parts.append(_bytes(file, field))
        else:
            tensor, raw = _tensor(file, field, least)
            parts.append(_value(_INITIALIZER_OF_GRAPH, tensor))
            if raw is not None:
                places[position] = raw
        position += 1
    return b"".join(parts)


def _tensor(file: BinaryIO, tensor: _Field, least: int) -> tuple[bytes, _Field | None]:
    parts: list[bytes] = []
    raw = None
    for field in _fields(file, tensor.begin, tensor.end):
        if field.number != _RAW_DATA_OF_TENSOR or field.wire != _BYTES or field.end - field.begin < least:
            parts.append(_bytes(file, field))
        elif raw is not None:
            raise _NotTaken
        else:
            raw = field
    return b"".join(parts), raw


def _fields(file: BinaryIO, begin: int, end: int) -> Iterator[_Field]:
    """The fields of a message; the caller may read elsewhere in the file in between."""
    start = begin
    while start < end:
        file.seek(start)
        key = _varint(file)
        if key & 7 == _BYTES:
            nbytes = _varint(file)
        elif key & 7 == _VARINT:
            nbytes = 0
            _varint(file)
        elif key & 7 in (_FIXED32, _FIXED64):
            nbytes = 4 if key & 7 == _FIXED32 else 8
        else:
            raise _NotTaken
        value = file.tell()
        if value + nbytes > end:
            raise _NotTaken
        yield _Field(key >> 3, key & 7, start, value, value + nbytes)
        start = value + nbytes


def _bytes(file: BinaryIO, field: _Field) -> bytes:
    file.seek(field.start)
    return file.read(field.end - field.start)


def _varint(file: BinaryIO) -> int:
    result = shift = 0
    while True:
        byte = file.read(1)
        if not byte or shift > 63:
            raise _NotTaken
        result |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return result
        shift += 7


def _value(number: int, value: bytes) -> bytes:
    """The value of a field of bytes."""
    return _encoded(number << 3 | _BYTES) + _encoded(len(value)) + value


def _encoded(number: int) -> bytes:
    result = bytearray()
    while number > 127:
        result.append(number & 127 | 128)
        number >>= 7
    result.append(number)
    return bytes(result)
