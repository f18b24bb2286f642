"""Attention without a tensor of queries × keys and without scratch: Q, K and V are read in place.

A block of threads has some queries of one head, and passes over the keys in parts that lie in shared memory:

1. Scores of its queries and the part's keys; four threads have a query.
2. The largest score so far may grow: the sums so far are scaled down to the new one, and the part's exponentials are added.
3. y grows by exponentials times values, in registers, and is divided by the sum at the end.

As in Milakov & Gimelshein, "Online normalizer calculation for softmax" (2018), section 3. Where the mask is causal, parts after
the block's last query are left out.

Where there are few queries, as in decoding, a block has one: each of its teams of threads passes over keys of its own, read in
place, and their sums are joined in the end.
"""

from __future__ import annotations

import math

from tvm import ir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from ..operators.attention_spec import Access, AttentionSpec, place_of_key
from ..tiles import vector_math
from ..tiles.emit import flat
from .architecture import Architecture
from .emit import across_warp, barrier, both, ceil_div, fill, launched, only_if, registers, shared, warp_barrier, within

_TEAM = 4  # threads of a query
_KEYS = 32  # of a part, at most
_QUERIES = 32  # of a block, at most
_FEW = 4  # queries that have a block each
_FEW_THREADS, _FEW_TEAM = 256, 8  # of such a block, of a key
_AHEAD = 512  # numbers of keys and values that a team asks for at once, of up to four keys


def kernel(spec: AttentionSpec, architecture: Architecture) -> tirx.PrimFunc:
    """A PrimFunc (q, k, v, masks…, [lengths,] y), buffers as the accesses say."""
    queries, keys = parts(spec, architecture)
    blocks = ceil_div(spec.queries, queries), spec.heads, spec.batch
    with IRBuilder() as builder, T.prim_func():
        T.func_name("main")
        T.func_attr({"tirx.noalias": True})
        shapes = {name: getattr(spec, name).buffer for name in ("q", "k", "v")}
        shapes.update(spec.mask_parameters)
        if spec.has_lengths:
            shapes["lengths"] = (spec.batch,)
        shapes["y"] = spec.y.buffer
        given = {name: T.arg(name, T.buffer(shape, _dtype(name))) for name, shape in shapes.items()}
        buffers = {name: flat(one, math.prod(shapes[name]), _dtype(name)) for name, one in given.items()}
        if _is_alone(spec, architecture):
            with launched((spec.queries, spec.heads, spec.batch), _FEW_THREADS) as ((query, head, batch), thread):
                _Query(spec, buffers, batch, head, query, thread).emit()
        else:
            with launched(blocks, queries * _TEAM) as ((part, head, batch), thread):
                _Block(spec, queries, keys, buffers, batch, head, part * queries, thread).emit()
    return builder.get()


def _dtype(parameter: str) -> str:
    return "int64" if parameter == "lengths" else "float32"


def parts(spec: AttentionSpec, architecture: Architecture) -> tuple[int, int]:
    """Queries of a block and keys of a part whose operands fit a block's shared memory."""
    queries, keys = _QUERIES, _KEYS
    while _floats(spec, queries, keys) * 4 > architecture.block_shared_nbytes:
        if queries == keys == 8:
            raise ValueError(f"{spec} has too many numbers for the shared memory of a block")
        queries, keys = (queries // 2, keys) if queries >= keys else (queries, keys // 2)
    return queries, keys


def _floats(spec: AttentionSpec, queries: int, keys: int) -> int:
    return (queries + keys) * (spec.depth + 1) + keys * spec.value_depth + queries * (keys + 1)


def _is_alone(spec: AttentionSpec, architecture: Architecture) -> bool:
    """Whether a query has a block."""
    teams = _FEW_THREADS // _FEW_TEAM
    return spec.queries <= _FEW and teams * (spec.value_depth + 2) * 4 <= architecture.block_shared_nbytes


class _Code:
    """The code of a block's threads."""

    def __init__(self, spec: AttentionSpec, buffers, batch, head, thread) -> None:
        self.spec = spec
        self.q, self.k, self.v, self.y = (buffers.get(name) for name in ("q", "k", "v", "y"))
        self.masks = [buffers[name] for name in spec.mask_parameters]
        self.batch, self.head, self.thread = batch, head, thread
        self.valid: ir.Expr | int = spec.keys
        if spec.has_lengths:
            length = tirx.min(buffers["lengths"][batch], tirx.const(spec.keys, "int64"))
            self.valid = T.bind(tirx.Cast("int32", tirx.max(length, tirx.const(0, "int64"))))

    def _begin(self, access: Access, head) -> ir.Expr:
        return access.offset + self.batch * access.batch + head * access.head

    def _seen(self, last) -> ir.Expr | int:
        """How many keys are seen by query `last` and those before."""
        if not self.spec.causal:
            return self.valid
        return tirx.max(tirx.min(last + (1 - self.spec.queries) + self.valid, self.valid), 0)

    def _masked(self, score: ir.Expr, query, key) -> ir.Expr:
        spec = self.spec
        hidden = tirx.const(float("-inf"), "float32")
        if spec.cap is not None:
            score = vector_math.tanh(score) * tirx.const(spec.cap, "float32")
        tensors = iter(self.masks)
        for mask in spec.masks:
            zero, fill = tirx.const(0.0, "float32"), tirx.const(mask.fill, "float32")
            if mask.kind == "causal":
                score = tirx.Select(key <= query + (spec.keys - spec.queries), score, fill)
            else:
                place = place_of_key(mask.shape, self.batch, self.head, tirx.min(key, spec.keys - 1))
                score = mask.applied(score, next(tensors)[place + (query if mask.shape[-1] > 1 else 0)], zero, fill)
        return tirx.Select(key <= query + (self.valid - spec.queries), score, hidden) if spec.causal else score

    def _inverse(self, total: ir.Expr) -> ir.Expr:
        """The factor of a query's sums."""
        zero, inverse = tirx.const(0.0, "float32"), tirx.const(1.0, "float32") / total
        return T.bind(tirx.Select(tirx.EQ(total, zero), zero, inverse) if self.spec.none_is_zero else inverse)

    def _result(self, value: ir.Expr, total: ir.Expr, inverse: ir.Expr) -> ir.Expr:
        value = value * inverse
        if self.spec.nan_is_zero:
            value = tirx.Select(vector_math.is_number(total * inverse), value, tirx.const(0.0, "float32"))
        return value


def _base(largest: ir.Expr) -> ir.Expr:
    """What scores are reduced by. Fully hidden parts add nothing: the difference of two infinities would be NaN."""
    infinity = tirx.const(float("-inf"), "float32")
    return T.bind(tirx.Select(tirx.EQ(largest, infinity), tirx.const(0.0, "float32"), largest))


class _Query(_Code):
    """A block that has one query."""

    def __init__(self, spec: AttentionSpec, buffers, batch, head, query, thread) -> None:
        super().__init__(spec, buffers, batch, head, thread)
        self.query = query
        self.team, self.member = T.bind(thread // _FEW_TEAM), T.bind(thread % _FEW_TEAM)
        self.teams = _FEW_THREADS // _FEW_TEAM
        self.at_once = max(1, min(4, _AHEAD // (spec.depth + spec.value_depth)))
        self.shared_sums = shared(self.teams * spec.value_depth)
        self.shared_largest, self.shared_total = shared(self.teams), shared(self.teams)

    def emit(self) -> None:
        spec, at_once = self.spec, self.at_once
        columns = math.ceil(spec.value_depth / _FEW_TEAM)
        largest, total, sums = registers(1), registers(1), registers(columns)
        best, factor, scores = registers(1), registers(1), registers(at_once)
        fill(largest, 1, float("-inf"))
        fill(total, 1)
        fill(sums, columns)
        q = registers(math.ceil(spec.depth / _FEW_TEAM))
        k, v = registers(at_once * math.ceil(spec.depth / _FEW_TEAM)), registers(at_once * columns)
        self._load(q, 0, self.q, self._begin(spec.q, self.head), spec.q, self.query, spec.depth, True)
        for i in range(math.ceil(spec.depth / _FEW_TEAM)):
            T.buffer_store(q, q[i] * tirx.const(spec.scale, "float32"), [i])
        shared_head = self.head // spec.group
        end = self._seen(self.query)
        end = end if isinstance(end, int) else T.bind(end)
        with T.serial(ceil_div(end, self.teams * at_once)) as turn:
            keys = [T.bind((turn * at_once + j) * self.teams + self.team) for j in range(at_once)]
            for j, key in enumerate(keys):
                self._load(k, j, self.k, self._begin(spec.k, shared_head), spec.k, key, spec.depth, key < end)
            for j, key in enumerate(keys):
                self._load(v, j, self.v, self._begin(spec.v, shared_head), spec.v, key, spec.value_depth, key < end)
            T.buffer_store(best, largest[0], [0])
            for j, key in enumerate(keys):
                score = T.bind(self._product(q, k, j))
                score = self._masked(across_warp(score, lambda a, b: a + b, _FEW_TEAM), self.query, key)
                T.buffer_store(scores, tirx.Select(key < end, score, tirx.const(float("-inf"), "float32")), [j])
                T.buffer_store(best, tirx.max(best[0], scores[j]), [0])
            base = _base(best[0])
            T.buffer_store(factor, vector_math.exp_nonpositive(largest[0] - base), [0])
            T.buffer_store(largest, best[0], [0])
            T.buffer_store(total, total[0] * factor[0], [0])
            with T.unroll(columns) as i:
                T.buffer_store(sums, sums[i] * factor[0], [i])
            for j in range(at_once):
                T.buffer_store(scores, vector_math.exp_nonpositive(scores[j] - base), [j])
                T.buffer_store(total, total[0] + scores[j], [0])
                with T.unroll(columns) as i:
                    T.buffer_store(sums, sums[i] + scores[j] * v[j * columns + i], [i])
        for i in range(columns):
            column = self.member + i * _FEW_TEAM
            with only_if(True if (i + 1) * _FEW_TEAM <= spec.value_depth else column < spec.value_depth):
                T.buffer_store(self.shared_sums, sums[i], [self.team * spec.value_depth + column])
        with only_if(self.member < 1):
            T.buffer_store(self.shared_largest, largest[0], [self.team])
            T.buffer_store(self.shared_total, total[0], [self.team])
        barrier()
        self._join()

    def _load(self, target, number: int, source, begin, access: Access, row, depth: int, inside) -> None:
        """Vector `number` of `target`: the thread's numbers of a row; zeros where there are none."""
        each = math.ceil(depth / _FEW_TEAM)
        for i in range(each):
            column = self.member + i * _FEW_TEAM
            here = both(inside, True if (i + 1) * _FEW_TEAM <= depth else column < depth)
            value = source[begin + row * access.row + column]
            value = value if here is True else tirx.if_then_else(here, value, tirx.const(0.0, "float32"))
            T.buffer_store(target, value, [number * each + i])

    def _product(self, q, k, number: int) -> ir.Expr:
        each = math.ceil(self.spec.depth / _FEW_TEAM)
        total = q[0] * k[number * each]
        for i in range(1, each):
            total = total + q[i] * k[number * each + i]
        return total

    def _join(self) -> None:
        """The sums of all teams, scaled to the largest score of all."""
        spec, access = self.spec, self.spec.y
        largest, total, result = registers(1), registers(1), registers(1)
        fill(largest, 1, float("-inf"))
        with T.serial(self.teams) as team:
            T.buffer_store(largest, tirx.max(largest[0], self.shared_largest[team]), [0])
        base = _base(largest[0])
        with T.serial(ceil_div(spec.value_depth, _FEW_THREADS)) as turn:
            column = T.bind(turn * _FEW_THREADS + self.thread)
            with only_if(within(column, spec.value_depth, _FEW_THREADS)):
                fill(total, 1)
                fill(result, 1)
                with T.serial(self.teams) as team:
                    factor = T.bind(vector_math.exp_nonpositive(self.shared_largest[team] - base))
                    T.buffer_store(total, total[0] + factor * self.shared_total[team], [0])
                    T.buffer_store(result, result[0] + factor * self.shared_sums[team * spec.value_depth + column], [0])
                inverse = self._inverse(total[0])
                place = self._begin(access, self.head) + self.query * access.row + column
                T.buffer_store(self.y, self._result(result[0], total[0], inverse), [place])


class _Block(_Code):
    """A block that has some queries."""

    def __init__(self, spec: AttentionSpec, queries: int, keys: int, buffers, batch, head, first, thread) -> None:
        super().__init__(spec, buffers, batch, head, thread)
        self.queries, self.keys, self.first = queries, keys, first
        self.own, self.member = T.bind(thread // _TEAM), T.bind(thread % _TEAM)
        # Rows padded by one float: threads that read one column of several rows meet in no bank.
        self.stride = spec.depth + 1
        self.shared_q, self.shared_k = shared(queries * self.stride), shared(keys * self.stride)
        self.shared_v, self.weights = shared(keys * spec.value_depth), shared(queries * (keys + 1))
        self.columns = math.ceil(spec.value_depth / _TEAM)

    def emit(self) -> None:
        spec = self.spec
        self.largest, self.total, self.sums = registers(1), registers(1), registers(self.columns)
        fill(self.largest, 1, float("-inf"))
        fill(self.total, 1)
        fill(self.sums, self.columns)
        self._stage(self.shared_q, spec.depth, self.q, spec.q, self.head, self.first, self.queries, spec.queries, spec.scale)
        shared_head = self.head // spec.group
        with T.serial(self._parts()) as part:
            start = T.bind(part * self.keys)
            self._stage(self.shared_k, spec.depth, self.k, spec.k, shared_head, start, self.keys, self.valid)
            self._stage(self.shared_v, spec.value_depth, self.v, spec.v, shared_head, start, self.keys, self.valid)
            barrier()
            self._weigh(start)
            warp_barrier()  # a query's threads are of one warp
            self._mix()
            if spec.keys > self.keys:  # another part may follow
                barrier()
        self._store()

    def _parts(self) -> ir.Expr | int:
        """How many parts of the keys some query of the block sees."""
        spec = self.spec
        if not spec.causal and not spec.has_lengths:
            return ceil_div(spec.keys, self.keys)
        return T.bind((self._seen(self.first + (self.queries - 1)) + (self.keys - 1)) // self.keys)

    def _stage(self, target, depth: int, source, access: Access, head, first, rows: int, end, scale=1.0) -> None:
        """target[row][i] = scale · source[first + row][i], 0 from row `end` of the source on."""
        threads, stride = self.queries * _TEAM, depth if target is self.shared_v else self.stride
        begin = self._begin(access, head)
        with T.serial(math.ceil(rows * depth / threads)) as turn:
            index = T.bind(turn * threads + self.thread)
            with only_if(True if rows * depth % threads == 0 else index < rows * depth):
                row, column = index // depth, index % depth
                value = source[begin + (first + row) * access.row + column]
                value = value if scale == 1.0 else value * tirx.const(scale, "float32")
                value = tirx.if_then_else(first + row < end, value, tirx.const(0.0, "float32"))
                T.buffer_store(target, value, [row * stride + column])

    def _weigh(self, start) -> None:
        """Exponentials of the part's scores, for `_mix`; largest, total and sums are brought up to date."""
        spec, each = self.spec, self.keys // _TEAM
        scores, best, factor, added = registers(each), registers(1), registers(1), registers(1)
        fill(scores, each)
        with T.serial(spec.depth) as i:
            q = T.bind(self.shared_q[self.own * self.stride + i])
            for j in range(each):
                product = q * self.shared_k[(self.member + j * _TEAM) * self.stride + i]
                T.buffer_store(scores, scores[j] + product, [j])
        T.buffer_store(best, self.largest[0], [0])
        for j in range(each):
            T.buffer_store(scores, self._unhidden(scores[j], start + self.member + j * _TEAM), [j])
            T.buffer_store(best, tirx.max(best[0], scores[j]), [0])
        T.buffer_store(best, across_warp(best[0], tirx.max, _TEAM), [0])
        base = _base(best[0])
        T.buffer_store(factor, vector_math.exp_nonpositive(self.largest[0] - base), [0])
        fill(added, 1)
        for j in range(each):
            T.buffer_store(scores, vector_math.exp_nonpositive(scores[j] - base), [j])
            T.buffer_store(added, added[0] + scores[j], [0])
        total = across_warp(added[0], lambda a, b: a + b, _TEAM)
        T.buffer_store(self.total, self.total[0] * factor[0] + total, [0])
        T.buffer_store(self.largest, best[0], [0])
        for j in range(each):
            T.buffer_store(self.weights, scores[j], [self.own * (self.keys + 1) + self.member + j * _TEAM])
        with T.unroll(self.columns) as i:
            T.buffer_store(self.sums, self.sums[i] * factor[0], [i])

    def _unhidden(self, score: ir.Expr, key) -> ir.Expr:
        spec = self.spec
        score = self._masked(score, tirx.min(self.first + self.own, spec.queries - 1), key)
        are_all = spec.keys % self.keys == 0 and not spec.has_lengths
        return score if are_all else tirx.Select(key < self.valid, score, tirx.const(float("-inf"), "float32"))

    def _mix(self) -> None:
        with T.serial(self.keys) as key:
            weight = T.bind(self.weights[self.own * (self.keys + 1) + key])
            for i in range(self.columns):
                column = self.member + i * _TEAM
                with only_if(True if (i + 1) * _TEAM <= self.spec.value_depth else column < self.spec.value_depth):
                    value = self.shared_v[key * self.spec.value_depth + column]
                    T.buffer_store(self.sums, self.sums[i] + weight * value, [i])

    def _store(self) -> None:
        spec, access = self.spec, self.spec.y
        inverse = self._inverse(self.total[0])
        place = T.bind(self._begin(access, self.head) + (self.first + self.own) * access.row)
        with only_if(True if spec.queries % self.queries == 0 else self.first + self.own < spec.queries):
            for i in range(self.columns):
                column = self.member + i * _TEAM
                with only_if(True if (i + 1) * _TEAM <= spec.value_depth else column < spec.value_depth):
                    T.buffer_store(self.y, self._result(self.sums[i], self.total[0], inverse), [place + column])
