"""Attention in blocks of queries: no tensor of queries × keys exists, Q, K and V are read in place.

For a block of queries of one head, with R = queries rounded up to whole vectors:

1. Qᵀ[depth][R], scaled, goes into scratch.
2. Pᵀ[keys][R] = K Qᵀ, a register tile of keys × queries: vectors run over queries, so that K is read as scalars in
   place, however far its rows lie apart. The mask is applied, and the largest score of every query found, in registers.
3. Pᵀ = exp(Pᵀ - largest), with its sum. One query is one lane: nothing is added up across lanes. Where all scores of a
   query are -inf, or one is NaN, the sum and the result are NaN; or Pᵀ becomes 0, on request.
4. y = P V / sum, a register tile of queries × depth, V read in place.

Keys and values in 16 or 8 bits are widened in registers. Scores are multiplied by the scales of keys in 8 bits, and Pᵀ, after its
sum, by those of values.

Scores by position are added up in Pᵀ before step 2 (`position_scores.py`). Those by key need a product of all keys of a head
with the table, which all blocks read: heads follow one another then, and blocks of one head run in parallel.

Where the mask is causal, keys after the block's last query are left out. Where the number of valid keys of a batch is known only
at run time, keys after these are left out as well, and keys before a window: the time goes with those that are left. A kernel
that is told how many rows of padded queries and keys are valid leaves out blocks of queries, too. The last block overlaps the
previous one; a single block of too few queries repeats the last one. Blocks run in parallel in `slots`, each with scratch of
its own.

Of few queries most lanes would be empty: `attention_rows.py` has another kernel for these.

Scores of a whole block are kept, as in Rabe & Staats, "Self-attention does not need O(n²) memory" (2021), section 2,
with one chunk of keys: scratch grows with the keys, not with their square.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..tiles import vector_math
from ..tiles.emit import Accumulators, converted, flat, in_slots, spread, vector, zero
from ..tiles.tile import Tile, VectorUnit, choose, most_rows, pieces, runs, split_evenly
from . import attention_rows, attention_rows_kernel, position_scores
from .attention_block import Blocks, QueryBlock, most_slots, transposed_rows
from .attention_spec import AttentionSpec

# Vectors of queries in a block. Causal blocks are smaller: more keys can be left out.
_MOST_VECTORS = 4
_MOST_VECTORS_CAUSAL = 2
# Cost of a score besides its products, in operations of theirs: masking, the exponential, loads and stores.
_SOFTMAX_FLOPS = 60.0
_GATHER_FLOPS = 30.0  # the same of a score by position
_LINE = 16  # floats of a cache line


def blocks_of(spec: AttentionSpec, unit: VectorUnit) -> list[Blocks]:
    """The blocks of one head, equal ones together."""
    most = _MOST_VECTORS_CAUSAL if spec.causal else _MOST_VECTORS
    cut = split_evenly(math.ceil(spec.queries / unit.width), most)
    return [Blocks(start * unit.width, count, vectors) for start, vectors, count in runs(cut)]


def work(spec: AttentionSpec, unit: VectorUnit) -> float:
    """Operations at the speed of a convolution."""
    if attention_rows.takes(spec, unit):
        return attention_rows.Rows(spec, unit).work
    scores = spec.batch * spec.heads * spec.queries * spec.mean_keys
    return spec.flops * (spec.mean_keys / spec.keys) + (_SOFTMAX_FLOPS + _GATHER_FLOPS * len(spec.positions)) * scores


def slots(spec: AttentionSpec, unit: VectorUnit) -> int:
    """How many blocks may be computed at the same time."""
    heads = 1 if position_scores.floats_of_head(spec) else spec.batch * spec.heads
    return min(most_slots(spec), heads * max(blocks.count for blocks in blocks_of(spec, unit)))


def name(spec: AttentionSpec, unit: VectorUnit) -> str:
    """What the kernel computes at a time."""
    if attention_rows.takes(spec, unit):
        return f"{attention_rows.Rows(spec, unit).rows} rows"
    return f"{min(max(blocks.vectors for blocks in blocks_of(spec, unit)) * unit.width, spec.queries)} queries"


def scratch(spec: AttentionSpec, unit: VectorUnit) -> tuple[tuple[int, int], ...]:
    """Shapes of the kernel's last parameters: for every slot Qᵀ, Pᵀ and products of a block; products of a head, if needed."""
    if attention_rows.takes(spec, unit):
        cut = attention_rows.Rows(spec, unit)
        return ((cut.slots, math.ceil(cut.scores / _LINE) * _LINE),)
    lanes = max(blocks.vectors for blocks in blocks_of(spec, unit)) * unit.width
    floats = (transposed_rows(spec) + spec.keys) * lanes + position_scores.floats_of_block(spec, lanes)
    own = (slots(spec, unit), math.ceil(floats / _LINE) * _LINE)
    common = position_scores.floats_of_head(spec)
    return (own, (1, common)) if common else (own,)


def kernel(spec: AttentionSpec, unit: VectorUnit, told: bool = False) -> tirx.PrimFunc:
    """A PrimFunc (q, k, v, masks…, [x, table, index]…, [lengths,] [begins,] y, scratch…), as the spec and `scratch` say.

    After y comes int64, if `told`: how many rows of q, k and v are valid. Other rows of y then hold anything.
    """
    assert not told or spec.follows_keys, "rows of queries and keys are told together"
    (count, each), *common = scratch(spec, unit)
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})

        wanted = {name: (place.buffer, place.dtype) for name, place in (("q", spec.q), ("k", spec.k), ("v", spec.v))}
        wanted.update({name: (shape, "float32") for name, shape in spec.mask_parameters.items()})
        wanted.update(spec.position_parameters)
        if spec.has_lengths:
            wanted["lengths"] = ((spec.batch,), "int64")
        if spec.has_begins:
            wanted["begins"] = ((spec.batch,), "int64")
        wanted.update(y=(spec.y.buffer, "float32"), work=((count, each), "float32"))
        if common:
            wanted["common"] = (common[0], "float32")
        given, rows = {}, None
        for name, one in wanted.items():
            given[name] = T.arg(name, T.buffer(*one))
            if name == "y" and told:
                valid = T.arg("valid", T.int64())
        buffers = {name: flat(one, math.prod(wanted[name][0]), wanted[name][1]) for name, one in given.items()}
        for name, place in (("k", spec.k), ("v", spec.v)):
            if place.dtype == "int8":
                buffers[f"{name}_scales"] = flat(given[name], place.elements // 4)
        if told:
            within = tirx.max(tirx.min(valid, tirx.const(spec.queries, "int64")), tirx.const(0, "int64"))
            rows = T.bind(tirx.Cast("int32", within))
        heads = spec.batch * spec.heads
        if attention_rows.takes(spec, unit):
            attention_rows_kernel.emit(attention_rows.Rows(spec, unit), buffers, each, rows)
        elif not common:
            _blocks(spec, unit, buffers, (count, each), heads, 0, rows)
        else:
            with T.serial(heads) as head:
                position_scores.of_keys(spec, unit, buffers, head, count)
                _blocks(spec, unit, buffers, (count, each), 1, head, rows)
    return builder.get()


def _blocks(spec: AttentionSpec, unit: VectorUnit, buffers, slots: tuple[int, int], heads: int, first, rows) -> None:
    """All blocks of `heads` heads from `first` on, or those that have some of the first `rows` queries."""
    count, each = slots
    for blocks in blocks_of(spec, unit):
        number: ir.Expr | int = blocks.count
        if rows is not None:
            lanes = blocks.vectors * unit.width
            begun = (rows - blocks.start + (lanes - 1)) // lanes
            number = T.bind(tirx.max(tirx.min(begun, blocks.count), 0))
        with in_slots(tirx.const(heads, "int32") * number, count) as (task, slot):
            block = _Block(spec, unit, blocks, buffers, slot * each, rows)
            block.emit(first + task // number, task % number)


class _Block(QueryBlock):
    """The work for one block of queries."""

    def emit(self, head, number) -> None:
        spec, blocks = self.spec, self.blocks
        head = T.bind(head)
        self.batch, self.head = T.bind(head // spec.heads), T.bind(head % spec.heads)
        self.bind_bounds()
        start = blocks.start + number * self.lanes
        self.start = T.bind(tirx.max(tirx.min(start, spec.queries - self.lanes), 0))
        for term in range(len(spec.positions)):
            position_scores.add_to(self, term)
        self.transpose(self.q, spec.q, spec.depth, spec.scale)
        largest = Accumulators(1, self.pieces)
        # Less than any score, and finite where there may be none: hidden scores are then as far below.
        least = float(np.finfo("float32").min) if spec.none_is_zero else float("-inf")
        largest.fill(1, lambda _, lanes: spread(tirx.const(least, "float32"), lanes))
        keys = self._products(largest)
        inverse = self._exponentials(keys, largest)
        self._mix(keys, inverse)

    def _products(self, largest: Accumulators) -> ir.Expr | int:
        """Scores, and the largest of every query; returns how many keys were taken."""
        spec = self.spec
        rows = most_rows(self.blocks.vectors, self.unit, 4 * spec.k.row)
        acc = Accumulators(min(rows, spec.keys), self.pieces)
        taken: ir.Expr | int = 0
        for start, size, count in runs(split_evenly(spec.keys, rows)):
            if spec.causal or self.ends_at_run_time:
                count = tirx.max(tirx.min((self._seen() - start + (size - 1)) // size, count), 0)
            skipped = tirx.max(tirx.min((self.begin - start) // size, count), 0) if spec.has_begins else 0
            with T.serial(skipped, count) as i:
                self._tile(acc, start + i * size, size, largest)
            taken = taken + count * size
        if self.ends_at_run_time:  # the last tile may have keys that are not valid, of which there is nothing to be read
            taken = tirx.min(taken, self.rows if spec.causal and self.rows is not None else self.valid)
        return taken if isinstance(taken, int) else T.bind(taken)

    @property
    def ends_at_run_time(self) -> bool:
        """Whether the number of keys is known only then."""
        return self.spec.has_lengths or self.rows is not None

    def _seen(self) -> ir.Expr:
        """Keys that some query of the block sees."""
        if not self.spec.causal:
            return self.valid
        seen = self.start + (self.lanes + self.valid - self.spec.queries)
        if self.rows is not None:
            return tirx.min(seen, self.rows)
        return tirx.min(seen, self.valid) if self.spec.has_lengths else seen

    def _tile(self, acc: Accumulators, first, size: int, largest: Accumulators) -> None:
        spec = self.spec
        key = T.bind(self.at(spec.k, first, spec.group))
        self.multiply(acc, size, self.k, key, spec.k.row, spec.depth, spec.k.dtype)
        for row in range(size):
            scale = self.scale("k", key, row * spec.k.row)
            for start, lanes in self.pieces:
                product = acc.get(row, start, lanes)
                product = product if scale is None else product * spread(scale, lanes)
                score = T.bind(self._masked(product, first + row, start, lanes))
                T.buffer_store(self.work, score, [vector(self.scores + (first + row) * self.lanes + start, lanes)])
                largest.update(start, lanes, lambda old, score=score: tirx.max(old, score))

    def _masked(self, score, key, start: int, lanes: int) -> ir.Expr:
        spec = self.spec
        if spec.cap is not None:
            score = vector_math.tanh(score) * spread(tirx.const(spec.cap, "float32"), lanes)
        tensors = iter(self.masks)
        for mask in spec.masks:
            fill = spread(tirx.const(mask.fill, "float32"), lanes)
            if mask.kind == "causal":
                last = vector(self.start + (start + spec.keys - spec.queries), lanes)
                score = tirx.Select(last >= spread(key, lanes), score, fill)
            elif mask.kind == "positions":
                value = self.work[vector(self.scores + key * self.lanes + start, lanes)]
                score = mask.applied(score, value, zero(lanes), fill)
            else:
                value = self.by_queries(mask.shape, next(tensors), key, start, lanes)
                score = mask.applied(score, value, zero(lanes), fill)
        visible = None
        if spec.causal:
            last = vector(self.start + (start + self.valid - spec.queries), lanes)
            visible = last >= spread(key, lanes)
        if spec.has_lengths or (self.ends_at_run_time and not spec.causal):
            # A lane after the last query may see more keys than there are.
            inside = spread(key, lanes) < spread(self.valid, lanes)
            visible = tirx.bitwise_and(visible, inside) if spec.causal else inside
        hidden = spread(tirx.const(float("-inf"), "float32"), lanes)
        return score if visible is None else tirx.Select(visible, score, hidden)

    def _exponentials(self, keys, largest: Accumulators) -> tirx.Buffer:
        """Exponentials of the scores in their place; returns one over their sum, for every query."""
        sums = Accumulators(1, self.pieces)
        sums.fill(1, lambda _, lanes: zero(lanes))
        with T.serial(self.begin, keys) as key:
            scale = self.scale("v", self.at(self.spec.v, key, self.spec.group))
            for start, lanes in self.pieces:
                place = [vector(self.scores + key * self.lanes + start, lanes)]
                value = T.bind(vector_math.exp_nonpositive(self.work[place[0]] - largest.get(0, start, lanes)))
                T.buffer_store(self.work, value if scale is None else value * spread(scale, lanes), place)
                sums.update(start, lanes, lambda old, value=value: old + value)
        inverse = T.alloc_buffer((self.lanes,), "float32", scope="global")
        for start, lanes in self.pieces:
            one, total = spread(tirx.const(1.0, "float32"), lanes), sums.get(0, start, lanes)
            value = tirx.Select(total == zero(lanes), zero(lanes), one / total) if self.spec.none_is_zero else one / total
            T.buffer_store(inverse, value, [vector(start, lanes)])
        if self.spec.nan_is_zero:
            self._clear_nan(keys, inverse)
        return inverse

    def _clear_nan(self, keys, inverse: tirx.Buffer) -> None:
        """Where `inverse` is NaN, 0 instead, and for every key of that query."""
        total = T.alloc_buffer((1,), "float32", scope="global")
        T.buffer_store(total, tirx.const(0.0, "float32"), [0])
        for lane_ in range(self.lanes):
            T.buffer_store(total, total[0] + inverse[lane_], [0])
        with T.If(tirx.Not(vector_math.is_number(total[0]))), T.Then():
            with T.serial(self.begin, keys) as key:
                for start, lanes in self.pieces:
                    place = vector(self.scores + key * self.lanes + start, lanes)
                    known = vector_math.is_number(inverse[vector(start, lanes)])
                    T.buffer_store(self.work, tirx.Select(known, self.work[place], zero(lanes)), [place])
            for start, lanes in self.pieces:
                value = inverse[vector(start, lanes)]
                T.buffer_store(inverse, tirx.Select(vector_math.is_number(value), value, zero(lanes)), [vector(start, lanes)])

    def _mix(self, keys, inverse: tirx.Buffer) -> None:
        spec = self.spec
        queries = min(self.lanes, spec.queries)
        tile = choose(queries, spec.value_depth, replace(self.unit, by_lane=False))
        acc = Accumulators(tile.rows, pieces(tile.channels, self.unit.width))
        for column in _columns(spec.value_depth, tile):
            for first, size, count in runs(split_evenly(queries, tile.rows)):
                if self.rows is not None:
                    here = self.rows - self.start - first
                    count = tirx.max(tirx.min((here + (size - 1)) // size, count), 0)
                with T.serial(count) as i:
                    self._mix_tile(acc, first + i * size, size, column, keys, inverse)

    def _mix_tile(self, acc: Accumulators, first, size: int, column: int, keys, inverse: tirx.Buffer) -> None:
        spec = self.spec
        value = self.at(spec.v, 0, spec.group) + column
        acc.fill(size, lambda _, lanes: zero(lanes))
        with T.serial(self.begin, keys) as key:
            acc.accumulate(
                list(range(size)),
                lambda row, _, lanes: spread(self.work[self.scores + key * self.lanes + first + row], lanes),
                lambda start, lanes: converted(
                    self.v[vector(value + key * spec.v.row + start, lanes)], lanes, spec.v.dtype, "float32"
                ),
            )
        for row in range(size):
            place = self.at(spec.y, self.start + first + row) + column
            for start, lanes in acc.pieces:
                result = acc.get(row, start, lanes) * spread(inverse[first + row], lanes)
                T.buffer_store(self.y, result, [vector(place + start, lanes)])


def _columns(depth: int, tile: Tile) -> Iterator[int]:
    for block in range(math.ceil(depth / tile.channels)):
        yield min(block * tile.channels, depth - tile.channels)
