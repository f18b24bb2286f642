"""Strided views: where the elements of a tensor lie in the buffer that it was cut, reshaped and permuted from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tvm import ir, relax

from ..schedules.operators.attention import Access
from .ir import dtype, operator, shape, static_tensor
from .rebuild import permuted_axes


@dataclass(frozen=True)
class View:
    """Element (i, j, …) is element offset + i·strides[0] + j·strides[1] + … of `source`, times `scale`."""

    source: ir.Expr  # a tensor in memory
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    scale: float = 1.0

    @classmethod
    def whole(cls, source: ir.Expr) -> View:
        """A tensor as it lies in memory."""
        return cls(source, 0, shape(source), dense_strides(shape(source)))


def dense_strides(extents: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a row-major tensor, in elements."""
    strides, step = [], 1
    for extent in reversed(extents):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def view_of(expr: ir.Expr, values: Mapping[relax.Var, ir.Expr], scalar) -> View:
    """`expr` as a view of the earliest tensor from which only reshapes, permutations, slices and factors lead to it.

    Taking one place of an axis is a slice, too.
    `values` holds what variables are bound to, `scalar(expr)` is the value of a scalar constant or None.
    """
    call = values.get(expr) if isinstance(expr, relax.Var) else None
    view = _through(call, values, scalar) if isinstance(call, relax.Call) else None
    return view or View.whole(expr)


def _through(call: relax.Call, values, scalar) -> View | None:
    name = operator(call)
    if name not in ("reshape", "permute_dims", "strided_slice", "take", "multiply", "divide"):
        return None
    if not static_tensor(call) or not static_tensor(call.args[0]) or dtype(call.args[0]) != "float32":
        return None
    if name in ("multiply", "divide"):
        factor = scalar(call.args[1])
        if factor is None or shape(call) != shape(call.args[0]) or (name == "divide" and not factor):
            return None
        inner = view_of(call.args[0], values, scalar)
        return replace(inner, scale=inner.scale * (factor if name == "multiply" else 1.0 / factor))
    inner = view_of(call.args[0], values, scalar)
    if name == "reshape":
        strides = reshaped_strides(inner.shape, inner.strides, shape(call))
        return None if strides is None else replace(inner, shape=shape(call), strides=strides)
    if name == "permute_dims":
        axes = permuted_axes(call)
        extents, strides = (tuple(of[axis] for axis in axes) for of in (inner.shape, inner.strides))
        return replace(inner, shape=extents, strides=strides)
    return _taken(call, inner, scalar) if name == "take" else _sliced(call, inner)


def _taken(call: relax.Call, inner: View, scalar) -> View | None:
    """One place of an axis, which goes."""
    index, axis = scalar(call.args[1]), call.attrs.axis
    if index is None or axis is None or len(shape(call)) != len(inner.shape) - 1:
        return None
    axis, place = int(axis) % len(inner.shape), int(index)
    if not 0 <= place < inner.shape[axis]:
        return None
    offset = inner.offset + place * inner.strides[axis]
    return replace(inner, offset=offset, shape=shape(call), strides=inner.strides[:axis] + inner.strides[axis + 1 :])


def _sliced(call: relax.Call, inner: View) -> View | None:
    axes, begins, *_ = (_numbers(arg) for arg in call.args[1:4])
    steps = _numbers(call.args[4]) if len(call.args) > 4 else [1] * len(axes)
    if any(step != 1 for step in steps):
        return None
    offset = inner.offset
    for axis, begin in zip(axes, begins, strict=True):
        extent = inner.shape[axis]
        offset += max(0, min(begin + extent if begin < 0 else begin, extent)) * inner.strides[axis]
    return replace(inner, offset=offset, shape=shape(call))


def _numbers(expr: ir.Expr) -> list[int]:
    return [int(value) for value in (expr.fields if isinstance(expr, relax.Tuple) else expr.values)]


def reshaped_strides(old: tuple[int, ...], strides: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...] | None:
    """The strides of a strided tensor in another shape; None if its elements would have to move."""
    long = [axis for axis, extent in enumerate(old) if extent != 1]
    old, strides = tuple(old[axis] for axis in long), tuple(strides[axis] for axis in long)
    result: list[int] = []
    position = 0
    i = 0
    while i < len(new):
        if new[i] == 1:
            result.append(0)
            i += 1
            continue
        if position == len(old):
            return None
        # The smallest groups of old and of new axes with as many elements.
        first, last = position, position + 1
        start, stop = i, i + 1
        have, want = old[first], new[i]
        while have != want:
            if have < want:
                if last == len(old):
                    return None
                have *= old[last]
                last += 1
            else:
                if stop == len(new):
                    return None
                want *= new[stop]
                stop += 1
        if any(strides[axis] != old[axis + 1] * strides[axis + 1] for axis in range(first, last - 1)):
            return None
        step = strides[last - 1]
        group: list[int] = []
        for extent in reversed(new[start:stop]):
            group.append(step)
            step *= extent
        result += reversed(group)
        position, i = last, stop
    return tuple(result)


def readable(view: View, lead: tuple[int, int]) -> bool:
    """Whether neighbours in depth are neighbours in memory, and batch and heads have strides."""
    dense = view.strides[-1] == 1 or view.shape[-1] == 1
    return dense and _strides(view, lead) is not None


def _strides(view: View, lead: tuple[int, int]) -> tuple[int, ...] | None:
    return reshaped_strides(view.shape, view.strides, (*lead, *view.shape[-2:]))


def access_of(view: View, lead: tuple[int, int]) -> Access:
    """A view [… rows, depth] by batch and head, which `lead` has the extents of."""
    strides = _strides(view, lead)
    assert strides is not None, "dense tensors have strides in any shape"
    return Access(shape(view.source), view.offset, *strides[:3])
