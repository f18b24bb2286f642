"""Scores of attention by position: products with a table of positions, of which an index says one for every query and key.

By query, a block of queries is multiplied with the whole table, and scores are gathered out of these products in scratch:
what an index names for neighbouring queries, neighbours in lanes, are mostly neighbouring rows. By key, rows of the products are
keys, which all blocks of a head need: they are computed once for each head.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from ..tiles.emit import Accumulators, in_slots, spread, vector, zero
from ..tiles.tile import VectorUnit, choose, most_rows, pieces, runs, split_evenly
from .attention_block import QueryBlock
from .attention_spec import Access, AttentionSpec, PositionScores


def by_key(spec: AttentionSpec) -> Iterator[tuple[int, PositionScores]]:
    """The terms by key, with their numbers."""
    return ((number, term) for number, term in enumerate(spec.positions) if term.by == "key")


def by_query(spec: AttentionSpec) -> Iterator[PositionScores]:
    """The terms by query."""
    return (term for term in spec.positions if term.by == "query")


def floats_of_head(spec: AttentionSpec) -> int:
    """Products of the keys of one head."""
    return sum(spec.keys * term.positions for _, term in by_key(spec))


def floats_of_block(spec: AttentionSpec, lanes: int) -> int:
    """Products of a block of queries."""
    return max((term.positions for term in by_query(spec)), default=0) * lanes


def of_keys(spec: AttentionSpec, unit: VectorUnit, buffers: dict[str, tirx.Buffer], head, slots: int) -> None:
    """The products of all keys of a head, one term after the other."""
    for number, term in by_key(spec):
        tile = choose(spec.keys, term.positions, replace(unit, by_lane=False))
        for first, size, count in runs(split_evenly(spec.keys, tile.rows)):
            with in_slots(tirx.const(count, "int32"), slots) as (task, _):
                acc = Accumulators(size, pieces(tile.channels, unit.width))
                key = T.bind(first + task * size)
                with T.serial(math.ceil(term.positions / tile.channels)) as block:
                    column = T.bind(tirx.min(block * tile.channels, term.positions - tile.channels))
                    _tile_of_keys(spec, number, buffers, acc, head, key, size, column)


def _tile_of_keys(
    spec: AttentionSpec, number: int, buffers: dict[str, tirx.Buffer], acc: Accumulators, head, key, size: int, column
) -> None:
    """Products of `size` keys and as many positions as the tile has lanes."""
    term, x, table = spec.positions[number], buffers[f"x{number}"], buffers[f"table{number}"]
    row, weights = T.bind(_at(spec, term.x, head, key)), T.bind(_at(spec, term.table, head, 0) + column)
    acc.fill(size, lambda _, lanes: zero(lanes))
    with T.serial(term.depth) as step:
        acc.accumulate(
            list(range(size)),
            lambda r, _, lanes: spread(x[row + r * term.x.row + step], lanes),
            lambda start, lanes: table[vector(weights + step * term.table.row + start, lanes)],
        )
    for r in range(size):
        for start, lanes in acc.pieces:
            value = acc.get(r, start, lanes) * spread(tirx.const(term.scale, "float32"), lanes)
            place = _place(spec, number) + (key + r) * term.positions + column + start
            T.buffer_store(buffers["common"], value, [vector(place, lanes)])


def add_to(block: QueryBlock, number: int) -> None:
    """Scores of a term in the place of the block's scores, added to earlier terms there."""
    spec, term = block.spec, block.spec.positions[number]
    index = block.buffers[f"index{number}"]
    products = block.scores + spec.keys * block.lanes
    if term.by == "query":
        _of_queries(block, number, term, products)
    with T.serial(spec.keys if block.rows is None else block.rows) as key:
        for start, lanes in block.pieces:
            position = block.by_queries(term.index, index, key, start, lanes)
            position = tirx.Cast("int32" if lanes == 1 else f"int32x{lanes}", position)
            if term.by == "query":
                value = block.work[vector(products + start, lanes) + position * spread(tirx.const(block.lanes), lanes)]
            else:
                row = T.bind(_place(spec, number) + key * term.positions)
                value = block.buffers["common"][spread(row, lanes) + position]
            place = vector(block.scores + key * block.lanes + start, lanes)
            T.buffer_store(block.work, block.work[place] + value if number else value, [place])


def _of_queries(block: QueryBlock, number: int, term: PositionScores, products) -> None:
    """The products of a block of queries, [positions][queries]."""
    x, table = block.buffers[f"x{number}"], block.buffers[f"table{number}"]
    block.transpose(x, term.x, term.depth, term.scale)
    rows = min(most_rows(block.blocks.vectors, block.unit, 4 * term.table.row), term.positions)
    acc = Accumulators(rows, block.pieces)
    for first, size, count in runs(split_evenly(term.positions, rows)):
        with T.serial(count) as i:
            row = T.bind(first + i * size)
            block.multiply(acc, size, table, T.bind(block.at(term.table, row)), term.table.row, term.depth)
            for r in range(size):
                for start, lanes in block.pieces:
                    place = vector(products + (row + r) * block.lanes + start, lanes)
                    T.buffer_store(block.work, acc.get(r, start, lanes), [place])


def _place(spec: AttentionSpec, number: int) -> int:
    """Where the products of a term by key begin."""
    return sum(spec.keys * term.positions for other, term in by_key(spec) if other < number)


def _at(spec: AttentionSpec, access: Access, head, row) -> tirx.Expr:
    return access.offset + head // spec.heads * access.batch + head % spec.heads * access.head + row * access.row
