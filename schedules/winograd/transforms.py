"""The matrices of Winograd convolution F(m × m, r × r), and their products as straight-line vector code.

    Y = Aᵀ [ (G w Gᵀ) ∘ (Bᵀ x B) ] A          x: a × a inputs, w: r × r weights, Y: m × m outputs, a = m + r - 1

For a kernel of one row or one column that is done along one axis only: a inputs, r weights, m outputs.

Source: Lavin & Gray, Fast Algorithms for Convolutional Neural Networks (2015), section 4; the matrices by the
Toom-Cook construction on the points below and infinity. Points come as pairs ±p, for even a after 0, so that rows
of Bᵀ and columns of Aᵀ come in pairs whose even and odd parts are equal or opposite, and computed once.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache

from tvm import tirx

from ..tiles.emit import spread

KERNEL = 3
# By a. F(4): ±5/8, ±3/2 instead of ±1, ±2 leave a quarter of the error; F(5): the best multiples of 1/8, with and
# without 0; for F(6) no better ones were found.
_POINTS = {
    4: "0 1 -1",
    6: "0 5/8 -5/8 3/2 -3/2",
    7: "3/8 -3/8 7/8 -7/8 15/8 -15/8",
    8: "0 1 -1 2 -2 1/2 -1/2",
}
EXTENTS = tuple(_POINTS)  # a, for which there are points
KINDS = (2, 4, 5, 6)  # m for 3 × 3 weights

Matrix = tuple[tuple[Fraction, ...], ...]
Term = tirx.Expr | None  # a vector; None is zero


@cache
def matrices(m: int, r: int = KERNEL) -> tuple[Matrix, Matrix, Matrix]:
    """Aᵀ (m × a), Bᵀ (a × a) and G (a × r)."""
    points = [Fraction(text) for text in _POINTS[m + r - 1].split()]
    others = [[q for q in points if q != p] for p in points]
    at = [[*(p**i for p in points), Fraction(i == m - 1)] for i in range(m)]
    bt = [[*_polynomial(roots), Fraction(0)] for roots in others] + [_polynomial(points)]
    g = [[p**i / _product(p - q for q in rest) for i in range(r)] for p, rest in zip(points, others, strict=True)]
    g.append([Fraction(i == r - 1) for i in range(r)])
    return _frozen(at), _frozen(bt), _frozen(g)


def _frozen(rows) -> Matrix:
    return tuple(tuple(row) for row in rows)


def _product(factors) -> Fraction:
    result = Fraction(1)
    for factor in factors:
        result *= factor
    return result


def _polynomial(roots: list[Fraction]) -> list[Fraction]:
    """Coefficients, lowest first, of the product of (x - root)."""
    result = [Fraction(1)]
    for root in roots:
        result = [high - root * low for high, low in zip([Fraction(0), *result], [*result, Fraction(0)], strict=True)]
    return result


def input_line(values: list[Term], lanes: int, bind) -> list[Term]:
    """Bᵀ d for one row or column d of a vectors; `bind` names a shared value. A single one stays as it is."""
    a = len(values)
    if a == 1:
        return values
    bt, pairs = matrices(a - KERNEL + 1)[1], _pairs(a)  # the same for every r
    result = [_dot(bt[i], values, lanes) for i in range(pairs.start)]
    for i in pairs:
        equal, opposite = (_bound(_dot(bt[i][start::2], values[start::2], lanes), bind) for start in (a % 2, 1 - a % 2))
        result += [_sum(equal, opposite), _difference(equal, opposite, lanes)]
    result.append(_dot(bt[-1], values, lanes))
    return [_bound(value, bind) for value in result]


def output_line(m: int, values: list[tirx.Expr], lanes: int, bind) -> list[Term]:
    """Aᵀ x for one row or column x of a vectors: even rows need the sums of the pairs, odd ones the differences."""
    a = len(values)
    if a == 1:
        return list(values)
    at, pairs = matrices(m, a - m + 1)[0], _pairs(a)
    alone = [*range(pairs.start), a - 1]  # zero, infinity
    both = [bind(values[i] + values[i + 1]) for i in pairs], [bind(values[i] - values[i + 1]) for i in pairs]
    return [
        bind(_dot([row[i] for i in (*alone, *pairs)], [*(values[i] for i in alone), *both[k % 2]], lanes))
        for k, row in enumerate(at)
    ]


def weight_line(m: int, values: list[Term], lanes: int, bind) -> list[Term]:
    """G w for one row or column w of weights, r vectors: a of them."""
    g = matrices(m, len(values))[2]
    return [_bound(_dot(row, values, lanes), bind) for row in g]


def _pairs(a: int) -> range:
    """The first of every two rows that belong to points ±p."""
    return range(1 - a % 2, a - 1, 2)


def _dot(factors, values, lanes: int) -> Term:
    result: Term = None
    for factor, value in zip(factors, values, strict=True):
        if factor == 0 or value is None:
            continue
        size = abs(factor)
        term = value if size == 1 else value * spread(tirx.const(float(size), "float32"), lanes)
        result = _sum(result, term) if factor > 0 else _difference(result, term, lanes)
    return result


def _sum(left: Term, right: Term) -> Term:
    if left is None or right is None:
        return right if left is None else left
    return left + right


def _difference(left: Term, right: Term, lanes: int) -> Term:
    if right is None:
        return left
    return (spread(tirx.const(0.0, "float32"), lanes) if left is None else left) - right


def _bound(value: Term, bind) -> Term:
    return None if value is None else bind(value)
