"""An object file that defines one symbol, constant data, for the CPU of a target: no assembler is needed for that."""

from __future__ import annotations

import struct

from flexcomp.device import CompileTarget
from flexcomp.program import ELF_MACHINES

ALIGN = 64  # bytes, of the data
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian
_RELOCATABLE, _CURRENT = 1, 1
_PROGBITS, _SYMTAB, _STRTAB = 1, 2, 3  # kinds of sections
_ALLOCATED = 2
_GLOBAL_OBJECT = 1 << 4 | 1
# The last one says that code beside it needs no executable stack.
_NAMES = ("", ".rodata", ".symtab", ".strtab", ".shstrtab", ".note.GNU-stack")


def data_object(symbol: str, data: bytes, target: CompileTarget) -> bytes:
    """The object file whose `symbol` is `data`."""
    machine = next(number for number, name in ELF_MACHINES.items() if target.triple.startswith(name))
    names = b"\0".join(name.encode() for name in _NAMES) + b"\0"
    at = [names.index(name.encode() + b"\0") for name in _NAMES]
    strings = b"\0" + symbol.encode() + b"\0"
    symbols = _SYMBOL.pack(0, 0, 0, 0, 0, 0) + _SYMBOL.pack(1, _GLOBAL_OBJECT, 0, 1, 0, len(data))
    contents = (b"", data, symbols, strings, names, b"")
    kinds = (0, _PROGBITS, _SYMTAB, _STRTAB, _STRTAB, _PROGBITS)
    body, headers = b"", b""
    for number, (kind, content) in enumerate(zip(kinds, contents, strict=True)):
        align = 0 if kind == 0 else ALIGN if number == 1 else 8 if kind == _SYMTAB else 1
        body += bytes(-(_HEADER.size + len(body)) % (align or 1))
        offset = _HEADER.size + len(body) if number else 0
        # The symbol table names its strings, its first symbol that others see, and the size of one.
        link, first, entry = (3, 1, _SYMBOL.size) if kind == _SYMTAB else (0, 0, 0)
        flags = _ALLOCATED if number == 1 else 0
        headers += _SECTION.pack(at[number], kind, flags, 0, offset, len(content), link, first, align, entry)
        body += content
    body += bytes(-(_HEADER.size + len(body)) % 8)
    sections_at = _HEADER.size + len(body)
    header = _HEADER.pack(
        _MAGIC, _RELOCATABLE, machine, _CURRENT, 0, 0, sections_at, 0, _HEADER.size, 0, 0, _SECTION.size, len(_NAMES), 4
    )  # fmt: skip
    return header + body + headers


def data_in(code: bytes) -> bytes:
    """The data of an object file that `data_object` made."""
    sections_at = _HEADER.unpack_from(code)[6]
    offset, nbytes = _SECTION.unpack_from(code, sections_at + _SECTION.size)[4:6]
    return code[offset : offset + nbytes]
