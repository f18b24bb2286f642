"""Attention in blocks of queries: no tensor of queries × keys exists, Q, K and V are read in place.

For a block of queries of one head, with R = queries rounded up to whole vectors:

1. Qᵀ[depth][R], scaled, goes into scratch.
2. Pᵀ[keys][R] = K Qᵀ, a register tile of keys × queries: vectors run over queries, so that K is read as scalars in
   place, however far its rows lie apart. The mask is applied, and the largest score of every query found, in registers.
3. Pᵀ = exp(Pᵀ - largest), with its sum. One query is one lane: nothing is added up across lanes. Where all scores of a
   query are -inf, or one is NaN, the sum and the result are NaN; or Pᵀ becomes 0, on request.
4. y = P V / sum, a register tile of queries × depth, V read in place.

Where the mask is causal, keys after the block's last query are left out. Where the number of valid keys of a batch is known only
at run time, keys after these are left out as well: the time goes with the valid keys. The last block overlaps the
previous one; a single block of too few queries repeats the last one. Blocks run in parallel in `slots`, each with scratch of
its own.

Scores of a whole block are kept, as in Rabe & Staats, "Self-attention does not need O(n²) memory" (2021), section 2,
with one chunk of keys: scratch grows with the keys, not with their square.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..tiles import lane, vector_math
from ..tiles.emit import PARALLEL_FLOPS, Accumulators, flat, spread, vector, zero
from ..tiles.tile import Tile, VectorUnit, choose, most_rows, pieces, runs, split_evenly

# Vectors of queries in a block. Causal blocks are smaller: more keys can be left out.
_MOST_VECTORS = 4
_MOST_VECTORS_CAUSAL = 2
# Blocks that may be computed at the same time.
_SLOTS = 4
# Cost of a score besides its products, in operations of theirs: masking, the exponential, loads and stores.
_SOFTMAX_FLOPS = 60.0
_LINE = 16  # floats of a cache line
KINDS = ("add", "where", "blend", "causal")


@dataclass(frozen=True)
class ScoreMask:
    """An operation on scores: by a tensor float32 [batch or 1, heads or 1, keys, queries or 1], transposed, or by their places.

    "add" adds the tensor, "where" takes scores where it is not 0, and "blend", of 0 and 1, multiplies and adds
    `fill` to hidden scores: an infinite score is NaN there, and not hidden. "causal" takes the scores of query i up to key
    i + keys - queries.
    """

    kind: str  # one of KINDS
    shape: tuple[int, int, int, int] | None = None
    fill: float = 0.0  # the value of hidden scores

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"mask {self.kind!r} is none of {KINDS}")
        if (self.kind == "causal") != (self.shape is None):
            raise ValueError("a causal mask has no tensor, others have one")

    def place(self, batch, head, key) -> ir.Expr:
        """The element for query 0."""
        assert self.shape is not None
        batches, heads, keys, queries = self.shape
        at = batch * (heads * keys) if batches > 1 else 0
        return ((at + head * keys if heads > 1 else at) + key) * queries

    def applied(self, score: ir.Expr, value: ir.Expr, zero: ir.Expr, fill: ir.Expr) -> ir.Expr:
        """The masked score, `value` being the tensor's element."""
        if self.kind == "add":
            return score + value
        if self.kind == "blend":
            return score * value + tirx.Select(value != zero, zero, fill)
        return tirx.Select(value != zero, score, fill)


@dataclass(frozen=True)
class Access:
    """float32[batch, heads, rows, depth] somewhere in a buffer; neighbours in depth are neighbours in memory."""

    buffer: tuple[int, ...]  # shape of the buffer
    offset: int  # of the first element, in elements as are the strides
    batch: int
    head: int
    row: int

    @classmethod
    def dense(cls, batch: int, heads: int, rows: int, depth: int) -> Access:
        """A tensor of that shape, in that order."""
        return cls((batch, heads, rows, depth), 0, heads * rows * depth, rows * depth, depth)

    @property
    def elements(self) -> int:
        return math.prod(self.buffer)


@dataclass(frozen=True)
class AttentionSpec:
    """softmax(scale · Q Kᵀ, masked) V, for every batch and head."""

    batch: int
    heads: int
    queries: int
    keys: int
    depth: int  # of queries and keys
    value_depth: int
    q: Access
    k: Access
    v: Access
    y: Access
    scale: float = 1.0
    masks: tuple[ScoreMask, ...] = ()  # applied in this order
    # After the masks, scores that a causal mask hides are -inf, of valid keys if their number is given, without work for these.
    causal: bool = False
    has_lengths: bool = False  # int64[batch] says how many keys are valid; a query that sees none gets 0
    group: int = 1  # heads of queries that have one head of keys and values in common
    cap: float | None = None  # scores are cap · tanh(scale · Q Kᵀ), before masking
    nan_is_zero: bool = False  # of a query whose probabilities are NaN, as where all scores are -inf, probabilities are 0

    def __post_init__(self) -> None:
        if self.has_lengths and self.masks:
            raise ValueError("a mask that is given says which keys are valid")
        if self.heads % self.group:
            raise ValueError(f"{self.heads} heads are no groups of {self.group}")
        if self.nan_is_zero and self.has_lengths:
            raise ValueError("queries that see no valid key get 0 as it is")
        if self.causal and self.keys < self.queries and not self.has_lengths:
            raise ValueError(f"with a causal mask {self.queries} queries need as many keys, not {self.keys}")

    @property
    def flops(self) -> int:
        """Of both products, as if nothing were hidden."""
        return 2 * self.batch * self.heads * self.queries * self.keys * (self.depth + self.value_depth)

    def __str__(self) -> str:
        sizes = f"{self.batch * self.heads}×[{self.queries}×{self.keys}] depth {self.depth}"
        kinds = [mask.kind for mask in self.masks] + ["causal"] * self.causal
        masks = f" {' and '.join(kinds)} mask{'s' * (len(kinds) > 1)}" if kinds else ""
        return f"{sizes}{masks}{' of a cache' if self.has_lengths else ''}"

    @property
    def mask_parameters(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters of a kernel that are masks, in order, by name."""
        shapes = [mask.shape for mask in self.masks if mask.shape]
        return {f"mask{number or ''}": shape for number, shape in enumerate(shapes)}


@dataclass(frozen=True)
class Blocks:
    """How queries are cut: `count` blocks of `vectors` vectors, the first of which is block `first`."""

    start: int  # first query of the first block
    count: int
    vectors: int


def blocks_of(spec: AttentionSpec, unit: VectorUnit) -> list[Blocks]:
    """The blocks of one head, equal ones together."""
    most = _MOST_VECTORS_CAUSAL if spec.causal else _MOST_VECTORS
    cut = split_evenly(math.ceil(spec.queries / unit.width), most)
    return [Blocks(start * unit.width, count, vectors) for start, vectors, count in runs(cut)]


def work(spec: AttentionSpec) -> float:
    """Operations at the speed of a convolution."""
    scores = spec.batch * spec.heads * spec.queries * spec.keys
    return spec.flops + _SOFTMAX_FLOPS * scores


def slots(spec: AttentionSpec, unit: VectorUnit) -> int:
    """How many blocks may be computed at the same time."""
    if spec.flops < PARALLEL_FLOPS:
        return 1
    return min(_SLOTS, spec.batch * spec.heads * max(blocks.count for blocks in blocks_of(spec, unit)))


def scratch(spec: AttentionSpec, unit: VectorUnit) -> tuple[tuple[int, int], ...]:
    """Shapes of the kernel's last parameter: for every slot Qᵀ and Pᵀ of a block."""
    lanes = max(blocks.vectors for blocks in blocks_of(spec, unit)) * unit.width
    floats = (spec.depth + spec.keys) * lanes
    return ((slots(spec, unit), math.ceil(floats / _LINE) * _LINE),)


def kernel(spec: AttentionSpec, unit: VectorUnit) -> tirx.PrimFunc:
    """A PrimFunc (q, k, v, masks…, [lengths,] y, scratch), buffers as the accesses and `scratch` say."""
    ((count, each),) = scratch(spec, unit)
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})

        shapes = {name: getattr(spec, name).buffer for name in ("q", "k", "v")}
        shapes.update(spec.mask_parameters)
        if spec.has_lengths:
            shapes["lengths"] = (spec.batch,)
        shapes.update(y=spec.y.buffer, work=(count, each))
        given = {name: T.arg(name, T.buffer(shape, _dtype(name))) for name, shape in shapes.items()}
        buffers = {name: flat(one, math.prod(shapes[name]), _dtype(name)) for name, one in given.items()}
        for blocks in blocks_of(spec, unit):
            tasks = spec.batch * spec.heads * blocks.count
            share = math.ceil(tasks / count)
            with T.parallel(count) if count > 1 else T.serial(count) as slot:
                with T.serial(tirx.min(slot * share, tasks), tirx.min(slot * share + share, tasks)) as task:
                    _Block(spec, unit, blocks, buffers, slot * each).emit(task)
    return builder.get()


def _dtype(parameter: str) -> str:
    return "int64" if parameter == "lengths" else "float32"


class _Block:
    """The work for one block of queries."""

    def __init__(
        self, spec: AttentionSpec, unit: VectorUnit, blocks: Blocks, buffers: dict[str, tirx.Buffer], work_at
    ) -> None:
        self.spec, self.unit, self.blocks = spec, unit, blocks
        self.q, self.k, self.v, self.lengths = (buffers.get(name) for name in ("q", "k", "v", "lengths"))
        self.masks = [buffers[name] for name in spec.mask_parameters]
        self.valid: ir.Expr | int = spec.keys
        self.y, self.work, self.transposed = buffers["y"], buffers["work"], work_at
        self.lanes = blocks.vectors * unit.width
        self.scores = work_at + spec.depth * self.lanes
        self.pieces = pieces(self.lanes, unit.width)

    def emit(self, task) -> None:
        spec, blocks = self.spec, self.blocks
        head = T.bind(task // blocks.count)
        self.batch, self.head = T.bind(head // spec.heads), T.bind(head % spec.heads)
        if self.lengths is not None:
            length = tirx.min(self.lengths[self.batch], tirx.const(spec.keys, "int64"))
            self.valid = T.bind(tirx.Cast("int32", tirx.max(length, tirx.const(0, "int64"))))
        start = blocks.start + task % blocks.count * self.lanes
        self.start = T.bind(tirx.max(tirx.min(start, spec.queries - self.lanes), 0))
        self._transpose()
        largest = Accumulators(1, self.pieces)
        # Less than any score, and finite where there may be none: hidden scores are then as far below.
        least = float(np.finfo("float32").min) if spec.has_lengths else float("-inf")
        largest.fill(1, lambda _, lanes: spread(tirx.const(least, "float32"), lanes))
        keys = self._products(largest)
        inverse = self._exponentials(keys, largest)
        self._mix(keys, inverse)

    def _at(self, access: Access, row, group: int = 1) -> ir.Expr:
        return access.offset + self.batch * access.batch + self.head // group * access.head + row * access.row

    def _transpose(self) -> None:
        spec = self.spec
        scale = tirx.const(spec.scale, "float32")
        with T.serial(self.lanes) as query:
            row = T.bind(self._at(spec.q, tirx.min(self.start + query, spec.queries - 1)))
            with T.serial(spec.depth) as i:
                T.buffer_store(self.work, self.q[row + i] * scale, [self.transposed + i * self.lanes + query])

    def _products(self, largest: Accumulators) -> ir.Expr | int:
        """Scores, and the largest of every query; returns how many keys were taken."""
        spec = self.spec
        rows = most_rows(self.blocks.vectors, self.unit, 4 * spec.k.row)
        acc = Accumulators(min(rows, spec.keys), self.pieces)
        taken: ir.Expr | int = 0
        for start, size, count in runs(split_evenly(spec.keys, rows)):
            if spec.causal or spec.has_lengths:
                count = tirx.max(tirx.min((self._seen() - start + (size - 1)) // size, count), 0)
            with T.serial(count) as i:
                self._tile(acc, start + i * size, size, largest)
            taken = taken + count * size
        if spec.has_lengths:  # the last tile may have keys that are not valid, of which there is nothing to be read
            taken = tirx.min(taken, self.valid)
        return taken if isinstance(taken, int) else T.bind(taken)

    def _seen(self) -> ir.Expr:
        """Keys that some query of the block sees."""
        if not self.spec.causal:
            return self.valid
        seen = self.start + (self.lanes + self.valid - self.spec.queries)
        return tirx.min(seen, self.valid) if self.spec.has_lengths else seen

    def _tile(self, acc: Accumulators, first, size: int, largest: Accumulators) -> None:
        spec = self.spec
        key = T.bind(self._at(spec.k, first, spec.group))
        acc.fill(size, lambda _, lanes: zero(lanes))
        lane.reduce(
            acc,
            list(range(size)),
            spec.depth,
            lambda row, step, lanes: self.k[vector(key + row * spec.k.row + step, lanes)],
            lambda step, start, lanes: self.work[vector(self.transposed + step * self.lanes + start, lanes)],
            self.unit.width if self.unit.by_lane else 1,
        )
        for row in range(size):
            for start, lanes in self.pieces:
                score = T.bind(self._masked(acc.get(row, start, lanes), first + row, start, lanes))
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
            else:
                value = self._mask_value(mask, next(tensors), key, start, lanes)
                score = mask.applied(score, value, zero(lanes), fill)
        visible = None
        if spec.causal:
            last = vector(self.start + (start + self.valid - spec.queries), lanes)
            visible = last >= spread(key, lanes)
        if spec.has_lengths:  # a lane after the last query may see more keys than there are
            inside = spread(key, lanes) < spread(self.valid, lanes)
            visible = tirx.bitwise_and(visible, inside) if spec.causal else inside
        hidden = spread(tirx.const(float("-inf"), "float32"), lanes)
        return score if visible is None else tirx.Select(visible, score, hidden)

    def _mask_value(self, mask: ScoreMask, tensor: tirx.Buffer, key, start: int, lanes: int) -> ir.Expr:
        place = mask.place(self.batch, self.head, key)
        if mask.shape[-1] == 1:
            return spread(tensor[place], lanes)
        if self.spec.queries < self.lanes:  # lanes past the last query repeat that query
            last = self.spec.queries - 1
            index = [place + min(start + i, last) for i in range(lanes)]
            return tirx.Shuffle([tensor[i] for i in index], list(range(lanes))) if lanes > 1 else tensor[index[0]]
        return tensor[vector(place + self.start + start, lanes)]

    def _exponentials(self, keys, largest: Accumulators) -> tirx.Buffer:
        """Exponentials of the scores in their place; returns one over their sum, for every query."""
        sums = Accumulators(1, self.pieces)
        sums.fill(1, lambda _, lanes: zero(lanes))
        with T.serial(keys) as key:
            for start, lanes in self.pieces:
                place = [vector(self.scores + key * self.lanes + start, lanes)]
                value = T.bind(vector_math.exp_nonpositive(self.work[place[0]] - largest.get(0, start, lanes)))
                T.buffer_store(self.work, value, place)
                sums.update(start, lanes, lambda old, value=value: old + value)
        inverse = T.alloc_buffer((self.lanes,), "float32", scope="global")
        for start, lanes in self.pieces:
            one, total = spread(tirx.const(1.0, "float32"), lanes), sums.get(0, start, lanes)
            value = tirx.Select(total == zero(lanes), zero(lanes), one / total) if self.spec.has_lengths else one / total
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
            with T.serial(keys) as key:
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
                with T.serial(count) as i:
                    self._mix_tile(acc, first + i * size, size, column, keys, inverse)

    def _mix_tile(self, acc: Accumulators, first, size: int, column: int, keys, inverse: tirx.Buffer) -> None:
        spec = self.spec
        value = self._at(spec.v, 0, spec.group) + column
        acc.fill(size, lambda _, lanes: zero(lanes))
        with T.serial(keys) as key:
            acc.accumulate(
                list(range(size)),
                lambda row, _, lanes: spread(self.work[self.scores + key * self.lanes + first + row], lanes),
                lambda start, lanes: self.v[vector(value + key * spec.v.row + start, lanes)],
            )
        for row in range(size):
            place = self._at(spec.y, self.start + first + row) + column
            for start, lanes in acc.pieces:
                result = acc.get(row, start, lanes) * spread(inverse[first + row], lanes)
                T.buffer_store(self.y, result, [vector(place + start, lanes)])


def _columns(depth: int, tile: Tile) -> Iterator[int]:
    for block in range(math.ceil(depth / tile.channels)):
        yield min(block * tile.channels, depth - tile.channels)
