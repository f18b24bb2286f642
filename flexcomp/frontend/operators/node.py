"""What a converter is given: one ONNX node, its inputs in Relax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm
from tvm import relax

from flexcomp.errors import UnsupportedModelError


@dataclass(frozen=True)
class Node:
    """One node during the import."""

    kind: str  # the operator's name
    name: str
    inputs: list[relax.Expr | None]  # None where one is left out
    attrs: dict
    opset: int
    outputs: int  # how many of its results have names, those left out in between included
    bb: relax.BlockBuilder
    value_of: Callable[[relax.Expr], np.ndarray | None]  # the value of a constant or a weight
    declared: tuple[int | None, ...] = ()  # the extents that the graph declares for the first result, where it does

    @property
    def data(self) -> relax.Expr:
        """The first input."""
        return self.inputs[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """The first input's shape."""
        return shape_of(self.data)

    @property
    def dtype(self) -> str:
        """The first input's element type."""
        return dtype_of(self.data)

    def input(self, i: int) -> relax.Expr | None:
        """Input `i`, or None if it is left out."""
        return self.inputs[i] if i < len(self.inputs) else None

    def value(self, i: int) -> np.ndarray | None:
        """The value of input `i` if it is known; None if it is left out or computed."""
        given = self.input(i)
        if isinstance(given, relax.ShapeExpr):
            return np.array([int(d) for d in given.values], "int64")
        return None if given is None else self.value_of(given)

    def text(self, attribute: str, default: str) -> str:
        """An attribute that is a word."""
        return self.attrs[attribute].decode() if attribute in self.attrs else default

    def emit(self, expr: relax.Expr) -> relax.Expr:
        """A variable that holds `expr`."""
        return self.bb.emit(expr)

    def refuse(self, reason: str) -> UnsupportedModelError:
        """The error for what cannot be compiled; `reason` ends with the way out."""
        return UnsupportedModelError(f"node {self.name!r} ({self.kind}): {reason}")


Converter = Callable[[Node], "relax.Expr | None"]


def shape_of(expr: relax.Expr) -> tuple[int, ...]:
    return tuple(int(d) for d in expr.ty.shape.values)


def spreads(expr: relax.Expr, shape: tuple[int, ...]) -> bool:
    """Whether a tensor broadcasts to this shape, without making it larger."""
    own = shape_of(expr)
    return len(own) <= len(shape) and all(n in (1, m) for n, m in zip(own[::-1], shape[::-1], strict=False))


def require_spread(node: Node, i: int, shape: tuple[int, ...]) -> None:
    """Refuse a node whose input `i` does not broadcast to `shape`, or makes it larger."""
    given = node.input(i)
    if given is not None and not spreads(given, shape):
        raise node.refuse(f"its input {i} of {list(shape_of(given))} does not broadcast to {list(shape)}: correct its shape")


def dtype_of(expr: relax.Expr) -> str:
    return str(expr.ty.dtype)


def is_float(expr: relax.Expr) -> bool:
    return dtype_of(expr).startswith(("float", "bfloat"))


def scalar(expr: relax.Expr | None) -> float | None:
    """The value of a constant of one element."""
    if isinstance(expr, tvm.ir.GenericConst) and expr.value.numpy().size == 1:
        return expr.value.numpy().item()
    return None
