"""JSON whose arrays of numbers go straight into tensors, through `runtime_ext/json`: a list of them takes ten times as much.

Arrays under a key "data" are read once their shape and type are known; all else becomes Python objects.
"""

from __future__ import annotations

import ctypes
import json
import math
import re
from ctypes import byref, c_int32, c_int64, c_void_p
from functools import cache
from typing import Any

import numpy as np

from flexcomp import runtime_ext
from flexcomp.errors import InputError

# Most memory of the objects made of an outline: bytes for each of these characters, for each array that is cut out, and
# for each byte as text that is decoded, of which other alphabets take more.
_COMMA_NBYTES, _BRACKET_NBYTES, _BRACE_NBYTES, _QUOTE_NBYTES, _ARRAY_NBYTES = 64, 96, 200, 40, 400
_TEXT_NBYTES, _WIDE_TEXT_NBYTES = 2, 10
_KINDS = {"b": 0, "i": 1, "u": 2, "f": 3}  # of arrays, as runtime_ext/json/json.cc calls them
_ALLOWED = {"b": "bool", "i": "int", "u": "int", "f": "int or float"}
_FINE, _NOT_JSON, _NOT_NESTED, _WRONG_KIND, _BEYOND = range(5)
_NESTED = re.compile(rb"\[[ \t\r\n]*\[")
_WORD = re.compile(rb"[A-Za-z]+")

Text = bytes | bytearray | memoryview


class _Outline(ctypes.Structure):
    _fields_ = tuple(
        (name, c_int64)
        for name in ("nbytes", "arrays", "commas", "brackets", "braces", "quotes", "not_ascii", "word")
    )


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(runtime_ext.json_reader()))
    library.FlexcompJsonOutline.restype = None
    library.FlexcompJsonOutline.argtypes = (c_void_p, c_int64, c_void_p, c_void_p, c_void_p)
    library.FlexcompJsonNumbers.restype = c_int32
    library.FlexcompJsonNumbers.argtypes = (c_void_p, c_int64, c_int32, c_int32, c_void_p, c_int64, c_void_p)
    return library


class Numbers:
    """An array in a text that nobody has read yet."""

    __slots__ = ("_text",)

    def __init__(self, text: memoryview) -> None:
        self._text = text

    @classmethod
    def of(cls, listed: list) -> Numbers:
        """One that was read as something else, since its key is written with escapes, or holds strings."""
        return cls(memoryview(json.dumps(listed).encode()))

    def read(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """The numbers, in a row or nested as the shape says. Raises InputError, which names the fault."""
        array = np.empty(shape, dtype)
        nested = shape and _NESTED.match(self._text)
        extents = np.array(shape if nested else [math.prod(shape)], "i8")
        status = _library().FlexcompJsonNumbers(
            _address(self._text), len(self._text), _KINDS[dtype.kind], dtype.itemsize,
            extents.ctypes.data, len(extents), array.ctypes.data,
        )  # fmt: skip
        if status == _NOT_JSON:
            raise InputError("its data are not JSON")
        if status == _NOT_NESTED:
            raise InputError("its data are not nested like that")
        if status == _WRONG_KIND:
            raise InputError(f"its data are not all {_ALLOWED[dtype.kind]}")
        if status == _BEYOND:
            raise InputError("it has numbers beyond that type")
        return array


def reading_nbytes(text: Text) -> int:
    """The most memory that `parsed` takes besides the text."""
    outline = _measured(text)
    decoded = _WIDE_TEXT_NBYTES if outline.not_ascii else _TEXT_NBYTES
    return (
        outline.nbytes * (1 + decoded)
        + outline.commas * _COMMA_NBYTES
        + outline.brackets * _BRACKET_NBYTES
        + outline.braces * _BRACE_NBYTES
        + outline.quotes * _QUOTE_NBYTES
        + outline.arrays * _ARRAY_NBYTES
    )


def parsed(text: Text) -> Any:
    """The value, with Numbers for arrays under "data". Raises InputError where the text is not JSON."""
    outline = _measured(text)
    if outline.word >= 0:
        raise _no_number(bytes(_WORD.match(text, outline.word).group()).decode())
    rest, ranges = bytearray(outline.nbytes), np.empty((outline.arrays, 2), "i8")
    _library().FlexcompJsonOutline(_address(text), len(text), byref(outline), _address(rest), ranges.ctypes.data)
    whole = memoryview(text)
    cut = (Numbers(whole[begin:end]) for begin, end in ranges)
    try:
        return json.loads(rest, parse_constant=lambda _: next(cut), parse_float=_finite)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"the request is not JSON: {error}") from None


def _measured(text: Text) -> _Outline:
    outline = _Outline()
    _library().FlexcompJsonOutline(_address(text), len(text), byref(outline), None, None)
    return outline


def _address(text: Text) -> int:
    return np.frombuffer(text, "u1").ctypes.data if len(text) else 0


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _no_number(text[:80])
    return value


def _no_number(word: str) -> InputError:
    return InputError(f"the request is not JSON: there is no number {word}")
