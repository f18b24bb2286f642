"""The reduction of a register tile: broadcast factors, or factors taken from the lanes of a vector.

    broadcast   each step loads one scalar per row, spreads it, and multiplies the step's right vectors
    by lane     four steps at a time: one vector per row holds the left factors of all four, and the multiply-add
                takes its factor from a lane (AArch64: fmla v0.4s, v1.4s, v2.s[3])

Of eight steps at a time, in float16, four that are left over are taken together, too.

Wide vectors broadcast while loading and need no register for the factor. With 128 bits a load per row and step would keep
the load ports as busy as the multiply-adds; by lane there are a quarter as many. The steps of a right vector come
one after the other, so that one right vector is live, with the accumulators and one left vector per row.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .emit import Accumulators, spread

Left = Callable[[int, tirx.Expr | int, int], tirx.Expr]
Right = Callable[[tirx.Expr | int, int, int], tirx.Expr]
_FEWEST = 4  # steps by lane


def reduce(
    acc: Accumulators,
    rows: list[int],
    count,
    left: Left,
    right: Right,
    depth: int,
    rest: int | None = None,
    fetch: Callable[[tirx.Expr], None] | None = None,
) -> None:
    """Add the products of `count` steps to `rows` of a tile.

    `left(row, step, lanes)` loads the left factors of `lanes` steps from `step` on, `right(step, start, lanes)` a
    vector of right factors. `depth` steps are taken at a time, one being the broadcasting form; those left over are
    broadcast. Where `count` is an expression, `rest` is 0 if none can be left over. The broadcasting form asks for
    right factors ahead with `fetch(step)`.
    """
    rest = count % depth if isinstance(count, int) else rest
    if depth == 1 or (isinstance(count, int) and count < depth):
        _broadcast(acc, rows, (0, count), left, right, fetch)
        return
    with T.serial(count // depth) as group:
        acc.begin_steps()
        _by_lane(acc, rows, group * depth, left, right, depth)
    done = count // depth * depth
    if isinstance(count, int) and rest >= _FEWEST:
        _by_lane(acc, rows, done, left, right, _FEWEST)
        done, rest = done + _FEWEST, rest - _FEWEST
    if rest != 0:
        _broadcast(acc, rows, (done, count), left, right)


def _by_lane(acc: Accumulators, rows: list[int], step, left: Left, right: Right, depth: int) -> None:
    factors = {row: T.bind(left(row, step, depth)) for row in rows}
    for lane in range(depth):
        for start, lanes in acc.pieces:
            vector = T.bind(right(step + lane, start, lanes))
            for row in rows:  # a shuffle has no more lanes than its operands have
                factor = tirx.Shuffle([factors[row]] * -(-lanes // depth), [lane] * lanes)
                acc.add_product(row, start, lanes, factor, vector)


def _broadcast(acc: Accumulators, rows: list[int], bounds: tuple, left: Left, right: Right, fetch=None) -> None:
    with T.serial(*bounds) as step:
        if fetch is not None:
            fetch(step)
        acc.accumulate(
            rows,
            lambda row, start, lanes: spread(left(row, step, 1), lanes),
            lambda start, lanes: right(step, start, lanes),
        )
