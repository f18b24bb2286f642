"""Values of main in two versions: as main has them, and with their channels last.

A missing version is made by one permutation of the other, at its first use, and kept. So two
permutations never meet, and a permutation that moves nothing in memory is a reshape.

"Channels last" is meant for any rank: (N, C, H, W) becomes (N, H, W, C), (N, G, C, H, W), as in a
channel shuffle, (N, H, W, G, C), and (N, C, L), an image without its second axis, (N, L, C).
"""

from __future__ import annotations

import math

import tvm
from tvm import ir, relax

from .ir import operator, shape
from .rebuild import MainRewriter, permuted_axes, permutes_nothing
from .weights import weight_vars


def to_last(rank: int) -> list[int]:
    """Axes that move the channels after the image: two image axes, or one in a tensor of rank 3."""
    image = 1 if rank == 3 else 2
    return [0, *range(rank - image, rank), *range(1, rank - image)] if rank >= 3 else list(range(rank))


def from_last(rank: int) -> list[int]:
    """Axes of the inverse permutation."""
    there = to_last(rank)
    return [there.index(axis) for axis in range(rank)]


class BothLayouts(MainRewriter):
    """Rewrites main; its values may exist with their channels last next to main's own layout."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.weights = weight_vars(self.main)
        # Old variable → its channels-last version in the new main; `replaced` has the version in main's layout.
        self.last: dict[relax.Var, ir.Expr] = {}

    def in_main_layout(self, value: ir.Expr) -> ir.Expr:
        """A call of the old main over variables of the new one, in main's layout."""
        value = self.substitute(value)
        match operator(value):
            case "reshape":
                return self.reshape(value.args[0], tuple(int(d) for d in value.args[1].values))
            case "permute_dims":
                return self.permute(value.args[0], permuted_axes(value))
            case _:
                return value

    def substitute(self, expr: ir.Expr) -> ir.Expr:
        """`expr` over variables of the new main, in main's layout."""
        if isinstance(expr, relax.Var) and expr not in self.replaced and expr in self.last:
            rank = len(shape(expr))
            self.replaced[expr] = self.emit(self.permute(self.last[expr], from_last(rank)), expr.name)
        return super().substitute(expr)

    def channels_last(self, expr: ir.Expr) -> ir.Expr:
        """The channels-last version of a value of the old main."""
        if expr not in self.last:
            self.last[expr] = self.emit(self.permute(self.substitute(expr), to_last(len(shape(expr)))))
        return self.last[expr]

    def prefers_channels_last(self, operands: list[ir.Expr]) -> bool:
        """Whether an operator that can run in both layouts moves less data channels-last."""
        to = back = 0
        exists = False
        for expr in operands:
            if not isinstance(expr, relax.Var) or expr in self.weights:
                continue
            exists |= expr in self.last
            extents = shape(expr)
            if permutes_nothing(extents, to_last(len(extents))):
                continue
            if expr not in self.last:
                to += math.prod(extents)
            elif expr not in self.replaced:
                back += math.prod(extents)
        return exists and to <= back

    def broadcast_last(self, expr: ir.Expr, rank: int, one_value: bool) -> ir.Expr | None:
        """An operand of an elementwise operator of `rank` axes, channels-last; None if that is not possible.

        One element becomes a scalar, unless the result is `one_value` and has its rank from this operand.
        """
        if not isinstance(expr.ty, relax.TensorType):
            return expr
        extents = shape(expr)
        gives_rank = one_value and len(extents) == rank
        if math.prod(extents) == 1 and len(extents) <= rank and not gives_rank:
            return self.emit(self.reshape(self.substitute(expr), ()))
        if len(extents) == rank and isinstance(expr, relax.Var):
            return self.channels_last(expr)
        if len(extents) > rank or not isinstance(expr, relax.Var):
            return None
        full = (1,) * (rank - len(extents)) + extents
        return self.emit(self.permute(self.emit(self.reshape(self.substitute(expr), full)), to_last(rank)))
