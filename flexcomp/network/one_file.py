"""Networks of one model in several shapes over one weights file: equal contents lie there once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from flexcomp.deferred import Array, content_digest
from flexcomp.program import Layer, RowsArg

from .lowered import align
from .variants import Network

Entry = tuple[str, Array, int]  # name, array, offset in the file


@dataclass(frozen=True)
class _Unit:
    """Weights of a network that layers read from one range of bytes."""

    start: int
    nbytes: int
    entries: tuple[Entry, ...]
    identity: tuple  # its contents, and which of several units of the network with the same contents it is


def in_one_file(networks: Sequence[Network]) -> tuple[Network, ...]:
    """The networks with the same weights, and their own places there.

    Contents that all networks have come first, in the order of the first network, so that the neighbours of a shape's steps stay
    neighbours; contents of single shapes, such as rows of positions, follow.
    """
    units = [_units(network) for network in networks]
    known = [{unit.identity for unit in of} for of in units]
    common = [unit for unit in units[0] if all(unit.identity in one for one in known)]
    begin: dict[tuple, int] = {}
    weights: list[Entry] = []
    end = 0
    for number, of in enumerate([common, *units]):
        mark = f"@{number - 1}" if number else ""  # a name of its own where several shapes have other contents
        for unit in of:
            if unit.identity not in begin:
                begin[unit.identity] = end
                weights += [(name + mark, array, end + offset - unit.start) for name, array, offset in unit.entries]
                end += unit.nbytes
    return tuple(_moved(network, of, begin, tuple(weights), end) for network, of in zip(networks, units, strict=True))


def _units(network: Network) -> list[_Unit]:
    """In the order of the file."""
    ranges: list[list[int]] = []  # begin, end
    for begin, end in sorted(found for layer in network.layers for found in _ranges(layer)):
        if ranges and begin < ranges[-1][1]:
            ranges[-1][1] = max(end, ranges[-1][1])
        else:
            ranges.append([begin, end])
    units, seen = [], Counter[tuple]()
    entries = sorted(network.weights, key=lambda entry: entry[2])
    for begin, end in ranges:
        inside = tuple(entry for entry in entries if begin <= entry[2] < end)
        contents = tuple((offset - begin, array.nbytes, content_digest(array)) for _, array, offset in inside)
        units.append(_Unit(begin, align(end - begin), inside, (contents, seen[contents])))
        seen[contents] += 1
    return units


def _ranges(layer: Layer) -> Iterable[tuple[int, int]]:
    if layer.weights:
        yield layer.weights.offset, layer.weights.offset + layer.weights.stored_nbytes
    for arg in layer.args:
        if isinstance(arg, RowsArg):
            yield arg.table, arg.table + arg.table_nbytes


def _moved(
    network: Network, units: Sequence[_Unit], begin: dict[tuple, int], weights: tuple[Entry, ...], nbytes: int
) -> Network:
    def place(offset: int) -> int:
        unit = next(unit for unit in reversed(units) if unit.start <= offset)
        return begin[unit.identity] + offset - unit.start

    layers = [_at(layer, place) for layer in network.base.layers]
    alternatives = tuple(replace(other, layer=_at(other.layer, place)) for other in network.alternatives)
    base = replace(network.base, layers=layers, weights=list(weights), weights_nbytes=nbytes)
    return replace(network, base=base, alternatives=alternatives, weights=weights, weights_nbytes=nbytes)


def _at(layer: Layer, place: Callable[[int], int]) -> Layer:
    weights = replace(layer.weights, offset=place(layer.weights.offset)) if layer.weights else None
    args = (replace(arg, table=place(arg.table)) if isinstance(arg, RowsArg) else arg for arg in layer.args)
    return replace(layer, args=tuple(args), weights=weights)
