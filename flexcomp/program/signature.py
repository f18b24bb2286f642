"""The signature of a kernel as text, and the symbol of its code, which depends on it.

A program is data and a kernel is code: nothing at run time sees whether an argument fits the kernel's code.
So the symbol of a kernel in the library ends in a hash of its signature. The compiler derives that from the kernel's
code (`flexcomp.compiler.machine_code`), the runtime from the program's layer (`runtime_ext/src/program/signature.cc`): a
layer that would call a kernel with other arguments, or that names anything else in the library, finds no symbol.

    signature = argument { ";" argument }
    argument  = "r " type [ bounds ]   read: an activation, weights, or rows that are fetched
              | "o " type    read, and the result may be written over it
              | "w " type    written
              | "x " type    exchanged: read and written
              | "s " type    scratch
              | "p " type    the panel of all blocks, of which a step has some: always before "first"
              | "first" | "count"
              | "valid"      how many rows are valid
              | "channels " number " of " number "," number      of a kernel that prepares weights
    type      = dtype "[" elements "]"     of a panel dtype "[" blocks "," elements of a block "]"; a bool is an int8
              channels: of the layer, of a stored block, of a prepared one. Such a kernel takes the panel of all stored
              blocks, first, count, and writes to the panel of all prepared blocks, as many as the count
    bounds    = "{" low ":" high { "," low ":" high } "}"      of its integers, checked before the kernel runs

Tensors are compact, and kernels see them as so many elements: their extents may be grouped in other ways.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from .program import CountArg, FirstArg, Layer, RowsArg, ScratchArg, TensorType, ValidArg, ValueArg

_MASK = 2**64 - 1


def of_layer(layer: Layer) -> str:
    """The signature of the kernel that a layer calls."""
    return joined(map(_argument, layer.args, (*layer.args[1:], None)))


def of_preparation(layer: Layer) -> str:
    """The signature of the kernel that prepares a layer's weights."""
    made, panel = layer.weights.preparation, layer.panel.type
    widths = channels(made.channels, made.stored.shape[-1], panel.shape[-1])
    return joined((argument("p", made.stored), "first", "count", argument("p", panel), widths))


def channels(count: int, stored: int, prepared: int) -> str:
    """Of how many output channels a kernel prepares weights, in blocks of how many: at the end of its signature."""
    return f"channels {count} of {stored},{prepared}"


def joined(arguments: Iterable[str]) -> str:
    """The signature with these arguments."""
    return ";".join(arguments)


def argument(kind: str, type_: TensorType, bounds: Iterable[tuple[int, int]] = ()) -> str:
    """A tensor as an argument; `bounds` as those of a ValueArg."""
    dtype = "int8" if type_.dtype == "bool" else type_.dtype
    extents = (type_.shape[0], math.prod(type_.shape[1:])) if kind == "p" else (math.prod(type_.shape),)
    limits = ",".join(f"{low}:{high}" for low, high in bounds)
    return f"{kind} {dtype}[{','.join(map(str, extents))}]" + (f"{{{limits}}}" if limits else "")


def symbol(kernel: str, signature: str) -> str:
    """The symbol of a kernel's code: its name and the signature's 64-bit FNV-1a hash."""
    digest = 0xCBF29CE484222325
    for byte in signature.encode():
        digest = (digest ^ byte) * 0x100000001B3 & _MASK
    return f"{kernel}_{digest:016x}"


def _argument(arg: object, following: object) -> str:
    if isinstance(arg, FirstArg):
        return "first"
    if isinstance(arg, CountArg):
        return "count"
    if isinstance(arg, ValidArg):
        return "valid"
    if isinstance(arg, RowsArg):
        return argument("r", arg.type)
    if isinstance(arg, ScratchArg):
        return argument("s", arg.type)
    if isinstance(arg, ValueArg):
        kind = "x" if arg.exchanged else "w" if arg.written else "o" if arg.over else "r"
        return argument(kind, arg.type, arg.bounds)
    return argument("p" if isinstance(following, FirstArg) else "r", arg.type)
