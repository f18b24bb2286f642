"""The kernel of attention of few queries. Of each task (`attention_rows.py`):

1. P[keys][rows] = K Q, a register tile of keys × rows, each a vector of partial sums over the depth. Lanes are added up for a
   whole vector of scores at once (`lane_sums.py`). Masks are applied, and the largest scores found, in registers.
2. P = exp(P - largest), with its sum: the rows of several keys fill a vector.
3. y = P V / sum, a register tile of rows × depth; where that has few vectors, several tiles take keys in turn.

Q, K and V are read in place, K and V once; scratch holds P. Of keys that are not valid, those in the last tile of scores are
hidden, and no others are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tvm import ir, tirx
from tvm.script.ir_builder import tirx as T

from ..tiles import vector_math
from ..tiles.emit import Accumulators, converted, in_slots, spread, strided, vector, zero
from ..tiles.lane_sums import added_up, shuffled
from ..tiles.tile import pieces, split_evenly
from .attention_block import HeadReader
from .attention_rows import Rows
from .attention_spec import place_of_key


def emit(cut: Rows, buffers: dict[str, tirx.Buffer], each: int, rows) -> None:
    """All tasks, slots of which have `each` floats of scratch; of queries and keys the first `rows` are valid, all if None."""
    with in_slots(tirx.const(cut.tasks, "int32"), cut.slots) as (task, slot):
        _Task(cut, buffers, slot * each, rows).emit(task)


class _Task(HeadReader):
    """The work of one task."""

    def __init__(self, cut: Rows, buffers: dict[str, tirx.Buffer], work_at, rows) -> None:
        super().__init__(cut.spec, cut.unit, buffers, rows)
        self.cut, self.scores = cut, work_at
        width = cut.unit.width
        # Scores of a tile as vectors; of a key, or of several.
        self.width, self.vectors = width, cut.keys * cut.padded // width
        self.each = max(1, cut.padded // width)  # vectors of the numbers of all rows

    def emit(self, task) -> None:
        spec, cut = self.spec, self.cut
        first = T.bind(task * cut.heads)
        self.batch, self.head = T.bind(first // spec.heads), T.bind(first % spec.heads)
        self.bind_bounds()
        end = tirx.min(self.valid, self.rows) if self.rows is not None else self.valid
        self.end = end if isinstance(end, int) else T.bind(end)
        largest = Accumulators(1, pieces(self.each * self.width, self.width))
        # Less than any score, and finite where there may be none: hidden scores are then as far below.
        least = float(np.finfo("float32").min) if spec.none_is_zero else float("-inf")
        largest.fill(1, lambda _, lanes: spread(tirx.const(least, "float32"), lanes))
        self._products(largest)
        inverse = self._exponentials(largest)
        self._mix(inverse)

    def lane(self, vector_: int, number: Callable[[int, int], int]) -> ir.Expr:
        """A vector of int32, `number(key, row)` of each score of a vector of a tile."""
        found = [number(*divmod(vector_ * self.width + i, self.cut.padded)) for i in range(self.width)]
        if len(set(found)) == 1:
            return spread(tirx.const(found[0], "int32"), self.width)
        return tirx.Shuffle([tirx.const(one, "int32") for one in found], list(range(self.width)))

    def row(self, row: int) -> tuple[int, int]:
        """(head, query) of a row, the head counted from the task's first one. Rows beyond the last one are as that."""
        return divmod(min(row, self.cut.rows - 1), self.spec.queries)

    def _products(self, largest: Accumulators) -> None:
        """Scores of all tiles with visible keys, and the largest of every row and lane."""
        spec, size = self.spec, self.cut.keys
        whole, rest = divmod(spec.keys, size)
        count: ir.Expr | int = whole if isinstance(self.end, int) else tirx.min((self.end + (size - 1)) // size, whole)
        acc = Accumulators(size * self.cut.rows, [(0, self.width)])
        with T.serial(self.begin // size, count) as i:
            self._tile(acc, T.bind(i * size), size, largest)
        if rest:
            with T.serial(tirx.min(tirx.max(self.end - whole * size, 0), 1)):
                self._tile(acc, whole * size, rest, largest)

    def _tile(self, acc: Accumulators, first, size: int, largest: Accumulators) -> None:
        """Scores of `size` keys from `first` on."""
        spec, cut, width = self.spec, self.cut, self.width
        begin = T.bind(self.at(spec.k, first, spec.group))
        queries = []
        for row in range(cut.rows):
            head, query = self.row(row)
            queries.append(T.bind(self.at(spec.q, query) + head * spec.q.head))
        acc.fill(size * cut.rows, lambda _, lanes: zero(lanes))

        def add(step, lanes: int) -> None:
            keys = [
                T.bind(converted(self.k[vector(begin + key * spec.k.row + step, lanes)], lanes, spec.k.dtype, "float32"))
                for key in range(size)
            ]
            for row in range(cut.rows):
                query = T.bind(self.q[vector(queries[row] + step, lanes)])
                for key in range(size):
                    product = keys[key] * query
                    if lanes < width:
                        product = tirx.Shuffle([product, zero(width - lanes)], list(range(width)))
                    acc.add_to(key * cut.rows + row, 0, width, product)

        whole = spec.depth // width
        if whole:
            with T.serial(whole) as step:
                add(T.bind(step * width), width)
        for start, lanes in pieces(spec.depth % width, width):
            add(whole * width + start, lanes)

        def sums(at: int) -> ir.Expr | None:
            key, row = divmod(at, cut.padded)
            return acc.get(key * cut.rows + row, 0, width) if key < size and row < cut.rows else None

        for number in range(self.vectors):
            own = [sums(number * width + i) for i in range(width)]
            score = added_up(own, self.unit)
            if score is None:
                score = zero(width)
            else:
                score = score * spread(tirx.const(spec.scale, "float32"), width)
                scales = self._scales("k", first, number, size)
                score = score if scales is None else score * scales
                score = T.bind(self._masked(score, first, number, size))
            if size < cut.keys:
                inside = self.lane(number, lambda key, _: key) < spread(tirx.const(size, "int32"), width)
                score = tirx.Select(inside, score, spread(tirx.const(float("-inf"), "float32"), width))
            score = T.bind(score)
            T.buffer_store(self.work, score, [vector(self.scores + first * cut.padded + number * width, width)])
            largest.update(number % self.each * width, width, lambda old, score=score: tirx.max(old, score))

    def _spread_keys(self, load: Callable[[int, int], ir.Expr], number: int, size: int) -> ir.Expr:
        """Numbers of keys, `load(first, count)`, in the lanes of a vector of a tile."""
        first, count = number * self.width // self.cut.padded, max(1, self.width // self.cut.padded)
        there = min(count, size - first)
        if there <= 0:
            return zero(self.width)
        if there == self.width:
            return load(first, count)
        if count == 1:
            return spread(load(first, 1), self.width)
        return shuffled([load(first, there)], [min(i // self.cut.padded, there - 1) for i in range(self.width)])

    def _scales(self, name: str, first, number: int, size: int) -> ir.Expr | None:
        """Scales of keys in 8 bits."""
        access = getattr(self.spec, name)
        begin = self.at(access, first, self.spec.group)
        if access.dtype != "int8":
            return None
        return self._spread_keys(lambda key, count: self.scale(name, begin, key * access.row, count), number, size)

    def _masked(self, score, first, number: int, size: int) -> ir.Expr:
        spec, width = self.spec, self.width
        if spec.cap is not None:
            score = vector_math.tanh(score) * spread(tirx.const(spec.cap, "float32"), width)
        key = T.bind(spread(first, width) + self.lane(number, lambda key, _: key)) if self._looks_at_keys else None
        query = self.lane(number, lambda _, row: self.row(row)[1])
        tensors = iter(self.masks)
        for mask in spec.masks:
            fill = spread(tirx.const(mask.fill, "float32"), width)
            if mask.kind == "causal":
                if spec.queries > 1:
                    score = tirx.Select(query + spread(spec.keys - spec.queries, width) >= key, score, fill)
            else:
                value = self._mask_values(mask.shape, next(tensors), first, number, size)
                score = mask.applied(score, value, zero(width), fill)
        visible = []
        if spec.causal and spec.queries > 1:
            visible.append(query + spread(self.valid - spec.queries, width) >= key)
        elif spec.has_lengths or (self.rows is not None and not spec.causal):
            visible.append(key < spread(self.end, width))
        if spec.has_begins:
            visible.append(key >= spread(self.begin, width))
        hidden = spread(tirx.const(float("-inf"), "float32"), width)
        for condition in visible:
            score = tirx.Select(condition, score, hidden)
        return score

    @property
    def _looks_at_keys(self) -> bool:
        """Whether a key's number says whether it is visible."""
        spec = self.spec
        by_place = spec.causal or any(mask.kind == "causal" for mask in spec.masks)
        return spec.has_lengths or spec.has_begins or self.rows is not None or (by_place and spec.queries > 1)

    def _mask_values(self, shape: tuple[int, int, int, int], tensor: tirx.Buffer, first, number: int, size: int) -> ir.Expr:
        """Elements of a tensor [batch or 1, heads or 1, keys, queries or 1] for a vector of scores."""
        cut = self.cut

        def load(row: int) -> Callable[[int, int], ir.Expr]:
            head, query = self.row(row)
            place = place_of_key(shape, self.batch, self.head + head, first) + (query if shape[-1] > 1 else 0)
            return lambda key, count: tensor[strided(place + key * shape[-1], shape[-1], count)]

        rows = range(number * self.width % cut.padded, min(number * self.width % cut.padded + self.width, cut.padded))
        places = {row: (self.row(row)[0] if shape[1] > 1 else 0, self.row(row)[1] if shape[3] > 1 else 0) for row in rows}
        if len(set(places.values())) == 1:
            return self._spread_keys(load(rows[0]), number, size)
        firsts = {place: row for row, place in reversed(places.items())}
        key, count = number * self.width // cut.padded, max(1, self.width // cut.padded)
        there = min(count, size - key)
        if there <= 0:
            return zero(self.width)
        loaded = {place: T.bind(load(row)(key, there)) for place, row in firsts.items()}
        at = {place: i * there for i, place in enumerate(loaded)}
        order = [divmod(number * self.width + i, cut.padded) for i in range(self.width)]
        return shuffled([*loaded.values()], [at[places[row]] + min(one - key, there - 1) for one, row in order])

    def _exponentials(self, largest: Accumulators) -> tirx.Buffer:
        """Exponentials of the scores in their place; returns one over their sum, for every row."""
        spec, cut, width = self.spec, self.cut, self.width
        parts = range(self.each)
        most = [T.bind(self._over_keys(largest.get(0, i * width, width), tirx.max)) for i in parts]
        sums = Accumulators(1, pieces(self.each * width, width))
        sums.fill(1, lambda _, lanes: zero(lanes))
        size, step = max(1, width // cut.padded), self.each * width
        tile = self.begin // cut.keys * (cut.keys // size)
        with T.serial(tile, (self.end + (size - 1)) // size) as i:
            scales = self._scales_of_all(i * size)
            for part in parts:
                place = [vector(self.scores + i * step + part * width, width)]
                value = T.bind(vector_math.exp_nonpositive(self.work[place[0]] - most[part]))
                T.buffer_store(self.work, value if scales is None else value * scales, place)
                sums.update(part * width, width, lambda old, value=value: old + value)
        inverse = T.alloc_buffer((step,), "float32", scope="global")
        for part in parts:
            total = T.bind(self._over_keys(sums.get(0, part * width, width), lambda a, b: a + b))
            value = spread(tirx.const(1.0, "float32"), width) / total
            value = tirx.Select(total == zero(width), zero(width), value) if spec.none_is_zero else value
            T.buffer_store(inverse, value, [vector(part * width, width)])
        if spec.nan_is_zero:
            self._clear_nan(tile, size, inverse)
        return inverse

    def _scales_of_all(self, key) -> ir.Expr | None:
        """Scales of values for the scores of `key` and those after it that a vector holds."""
        access = self.spec.v
        begin = self.at(access, 0, self.spec.group)
        if access.dtype != "int8":
            return None
        count = max(1, self.width // self.cut.padded)
        if self.spec.keys % count:  # the last vector has lanes of keys that are not there
            places = [begin + tirx.min(key + i, self.spec.keys - 1) * access.row for i in range(count)]
            found = tirx.Shuffle([self.scale("v", place) for place in places], list(range(count)))
        else:
            found = self.scale("v", begin + key * access.row, count=count)
        if count == self.width:
            return found
        return spread(found, self.width) if count == 1 else shuffled([found], [i // self.cut.padded for i in range(self.width)])

    def _over_keys(self, value: ir.Expr, combine: Callable[[ir.Expr, ir.Expr], ir.Expr]) -> ir.Expr:
        """All lanes of a row combined, in each of them."""
        value, distance = T.bind(value), self.cut.padded
        while distance < self.width:
            value = T.bind(combine(value, tirx.Shuffle([value], [(i + distance) % self.width for i in range(self.width)])))
            distance *= 2
        return value

    def _clear_nan(self, tile, size: int, inverse: tirx.Buffer) -> None:
        """Where `inverse` is NaN, 0 instead, and for every key of that row."""
        total = T.alloc_buffer((1,), "float32", scope="global")
        T.buffer_store(total, tirx.const(0.0, "float32"), [0])
        for row in range(self.cut.rows):
            T.buffer_store(total, total[0] + inverse[row], [0])
        step, width = self.each * self.width, self.width
        with T.If(tirx.Not(vector_math.is_number(total[0]))), T.Then():
            with T.serial(tile, (self.end + (size - 1)) // size) as i:
                for part in range(self.each):
                    place = vector(self.scores + i * step + part * width, width)
                    known = vector_math.is_number(inverse[vector(part * width, width)])
                    T.buffer_store(self.work, tirx.Select(known, self.work[place], zero(width)), [place])
            for part in range(self.each):
                value = inverse[vector(part * width, width)]
                value = tirx.Select(vector_math.is_number(value), value, zero(width))
                T.buffer_store(inverse, value, [vector(part * width, width)])

    def _mix(self, inverse: tirx.Buffer) -> None:
        spec, cut, unit = self.spec, self.cut, self.unit
        cuts = pieces(spec.value_depth, unit.width)
        most = max(1, (unit.registers - 1) // cut.rows - 1)
        for start, count in split_evenly(len(cuts), most):
            own = cuts[start : start + count]
            column = own[0][0]
            sets = max(1, min(math.ceil(unit.independent_fmas / (count * cut.rows)), most // count))
            self._mix_columns(inverse, column, [(at - column, lanes) for at, lanes in own], sets)

    def _mix_columns(self, inverse: tirx.Buffer, column: int, own: list[tuple[int, int]], sets: int) -> None:
        """Columns of all rows, in `sets` of sums that take keys in turn."""
        spec, cut = self.spec, self.cut
        acc = Accumulators(sets * cut.rows, own)
        acc.fill(sets * cut.rows, lambda _, lanes: zero(lanes))
        value = T.bind(self.at(spec.v, 0, spec.group) + column)
        whole = max(1, self.width // cut.padded) if self.unit.by_lane else 1  # keys whose factors fill a vector
        together = math.ceil(sets / whole) * whole

        def add(key, step: int, factor: Callable[[int, int], ir.Expr]) -> None:
            for start, lanes in own:
                place = value + key * spec.v.row + step * spec.v.row + start
                numbers = T.bind(converted(self.v[vector(place, lanes)], lanes, spec.v.dtype, "float32"))
                for row in range(cut.rows):
                    acc.add_product(step % sets * cut.rows + row, start, lanes, factor(row, lanes), numbers)

        def scalar(key, step: int) -> Callable[[int, int], ir.Expr]:
            at = T.bind(self.scores + key * cut.padded + step * cut.padded)
            return lambda row, lanes: spread(self.work[at + row], lanes)

        def of_lanes(vectors: list[ir.Expr], step: int) -> Callable[[int, int], ir.Expr]:
            def factor(row: int, lanes: int) -> ir.Expr:
                which, lane = divmod(step * cut.padded + row, self.width)
                return shuffled([vectors[which]], [lane] * lanes)

            return factor

        number = self.end - self.begin
        with T.serial(number // together) as i:
            key = T.bind(self.begin + i * together)
            if self.unit.by_lane:
                at = T.bind(self.scores + key * cut.padded)
                starts = range(0, together * cut.padded, self.width)
                parts = [T.bind(self.work[vector(at + start, self.width)]) for start in starts]
            for step in range(together):
                add(key, step, of_lanes(parts, step) if self.unit.by_lane else scalar(key, step))
        if together > 1 and (not isinstance(number, int) or number % together):
            with T.serial(number // together * together, number) as i:
                key = T.bind(self.begin + i)
                add(key, 0, scalar(key, 0))
        for row in range(cut.rows):
            head, query = self.row(row)
            place = self.at(spec.y, query) + head * spec.y.head + column
            for start, lanes in own:
                total = acc.get(row, start, lanes)
                for other in range(1, sets):
                    total = total + acc.get(other * cut.rows + row, start, lanes)
                T.buffer_store(self.y, total * spread(inverse[row], lanes), [vector(place + start, lanes)])
