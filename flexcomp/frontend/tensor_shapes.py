"""The check of shapes after an import: extents are numbers, in sizes that kernels and programs take."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest

import tvm
from tvm import relax, tirx

from flexcomp.errors import UnsupportedModelError
from flexcomp.frontend.node_names import node_of
from flexcomp.passes.ir import bindings

_MOST_AXES = 32  # of a tensor in a program; runtime_ext/src/program/reader.cc has the same number
MOST_ELEMENTS = 2**31  # from which on kernels cannot count them


def is_static(ty: tvm.ir.Type) -> bool:
    """Whether all shapes in a type are numbers."""
    return all(_extents(tensor) is not None for tensor in _tensors(ty))


def require_shapes(mod: tvm.IRModule, inputs: Sequence[str]) -> None:
    """Raise UnsupportedModelError, with the ONNX node where there is one, if main holds control flow, a shape that is not a
    number, or one that no kernel takes. Its first parameters are the network's `inputs`.
    """
    main = mod["main"]
    for param, name in zip_longest(main.params, inputs):
        where = f"input {name!r}" if name is not None else f"weight {param.name!r}"
        if not isinstance(param.ty, relax.TensorType):
            raise UnsupportedModelError(f"{where} is not a tensor: {param.ty}")
        if not is_static(param.ty):
            raise UnsupportedModelError(
                f"{where} has a dynamic shape {param.ty.shape}; bind it first, for example with "
                "tvm.relax.transform.BindSymbolicVars"
            )
        _require_sizes(where, param.ty)
    for binding in bindings(main):
        value = binding.value
        if isinstance(value, relax.If):
            raise UnsupportedModelError("control flow (If) that depends on the input cannot be compiled")
        calls = isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op)
        where = node_of(binding.var.name) or (f"operator {value.op.name}" if calls else f"variable {binding.var.name!r}")
        require_static(where, binding.var.ty)
        _require_sizes(where, binding.var.ty)


def require_static(where: str, ty: tvm.ir.Type) -> None:
    """Raise UnsupportedModelError if a result's shape is not known."""
    if not is_static(ty):
        raise UnsupportedModelError(
            f"{where}: the shape of its result depends on the input's values ({ty}), and shapes must be known; compute it "
            "outside of the network"
        )


def require_inferred(where: str, ty: tvm.ir.Type, shapes: Sequence[tuple[int, ...] | None]) -> None:
    """Raise UnsupportedModelError if results have other shapes than these, where they are known."""
    for tensor, shape in zip(_tensors(ty), shapes, strict=False):
        if shape is not None and _extents(tensor) != shape:
            raise UnsupportedModelError(
                f"{where}: its result would be {list(_extents(tensor))}, and is {list(shape)} by ONNX's definition: its inputs "
                "do not fit each other, correct their shapes"
            )


def _require_sizes(where: str, ty: tvm.ir.Type) -> None:
    for tensor in _tensors(ty):
        extents = _extents(tensor)
        shown = "×".join(map(str, extents))
        if len(extents) > _MOST_AXES:
            raise UnsupportedModelError(f"{where} has a tensor of {len(extents)} axes; at most {_MOST_AXES} can be compiled")
        if min(extents, default=0) < 0:
            raise UnsupportedModelError(
                f"{where} has a tensor of {shown}, an extent below zero: build the network for a larger input"
            )
        if math.prod(extent or 1 for extent in extents) >= MOST_ELEMENTS:
            raise UnsupportedModelError(
                f"{where} has a tensor of {shown} = {math.prod(extents):,} elements; kernels take fewer than "
                f"{MOST_ELEMENTS:,}: build the network for a smaller input"
            )


def _tensors(ty: tvm.ir.Type) -> Iterator[relax.TensorType]:
    if isinstance(ty, relax.TupleType):
        for field in ty.fields:
            yield from _tensors(field)
    elif isinstance(ty, relax.TensorType):
        yield ty


def _extents(tensor: relax.TensorType) -> tuple[int, ...] | None:
    """None if they are not numbers."""
    known = isinstance(tensor.shape, relax.ShapeExpr) and all(isinstance(d, tirx.IntImm) for d in tensor.shape.values)
    return tuple(int(d) for d in tensor.shape.values) if known else None
