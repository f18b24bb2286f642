"""Tensors without elements: no kernel computes them, and none reads them."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from flexcomp.frontend.operators.node import Node, dtype_of, shape_of
from flexcomp.frontend.operators.parameters import DECIDING

_READS_SHAPES = ("Shape", "Size", "Resize")
_READS_TYPES = {"CastLike": (1,)}  # inputs of which only the type counts
_SCATTERS = ("Scatter", "ScatterElements", "ScatterND")


def without_elements(node: Node, result: relax.Expr) -> relax.Expr:
    """A node's result, as a constant where it has no elements. Raises UnsupportedModelError for one that is made of such."""
    if isinstance(result, relax.Tuple):
        return relax.Tuple([without_elements(node, part) for part in result.fields])
    if not isinstance(result.ty, relax.TensorType):
        return result
    if is_empty(result):
        return result if isinstance(result, GenericConst) else relax.const(np.zeros(shape_of(result), dtype_of(result)))
    unread = (*DECIDING.get(node.kind, ()), *_READS_TYPES.get(node.kind, ()))
    empty = [i for i, given in enumerate(node.inputs) if is_empty(given) and i not in unread]
    if empty and node.kind in _SCATTERS:
        return node.data
    if empty and node.kind not in _READS_SHAPES:
        raise node.refuse(f"it makes {list(shape_of(result))} of a tensor without elements: compute it outside of the network")
    return result


def is_empty(expr: relax.Expr | None) -> bool:
    """Whether this is a tensor without elements."""
    return expr is not None and isinstance(expr.ty, relax.TensorType) and math.prod(shape_of(expr)) == 0
