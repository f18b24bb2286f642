"""Strided views: the elements of a slice, reshape, permutation or repetition of a buffer, as places in this buffer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tvm import ir, relax

from ..schedules.operators.attention_spec import Access
from .ir import dtype, operator, shape, static_tensor
from .rebuild import permuted_axes

# An axis of a view, as digits of its index, the most significant first: each (extent, stride), none of extent 1.
Axis = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class View:
    """Element (i, j, …) is element offset + place of i along axes[0] + place of j along axes[1] + … of `source`, times `scale`.

    An axis may have several strides: that of heads after batches, where both lie among rows, has two.
    """

    source: ir.Expr  # a tensor in memory
    offset: int
    axes: tuple[Axis, ...]
    scale: float = 1.0

    @classmethod
    def whole(cls, source: ir.Expr) -> View:
        """A tensor in memory order."""
        return cls.dense(source, shape(source))

    @classmethod
    def dense(cls, source: ir.Expr, extents: Sequence[int]) -> View:
        """The elements of a tensor, in their order, in a shape."""
        axes, step = [], 1
        for extent in reversed(extents):
            axes.append(_axis([(extent, step)]))
            step *= extent
        return cls(source, 0, tuple(reversed(axes)))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(_extent(axis) for axis in self.axes)

    def permuted(self, order: Sequence[int]) -> View:
        return replace(self, axes=tuple(self.axes[axis] for axis in order))

    def reshaped(self, extents: Sequence[int]) -> View | None:
        """The same elements in another shape; None if an axis would end within two digits of another."""
        left = [digit for axis in self.axes for digit in axis][::-1]
        axes = []
        for wanted in extents:
            digits: list[tuple[int, int]] = []
            while wanted > 1:
                extent, stride = left.pop()
                taken = math.gcd(extent, wanted)
                if taken != extent and taken != wanted:
                    return None
                digits.append((taken, stride * (extent // taken)))
                if taken < extent:
                    left.append((extent // taken, stride))
                wanted //= taken
            axes.append(_axis(digits))
        return replace(self, axes=tuple(axes))

    def repeated(self, extents: Sequence[int]) -> View | None:
        """Broadcast to a shape; None if impossible."""
        if len(extents) < len(self.axes):
            return None
        axes = ((),) * (len(extents) - len(self.axes)) + self.axes
        if any(_extent(axis) not in (1, extent) for axis, extent in zip(axes, extents, strict=True)):
            return None
        return replace(
            self, axes=tuple(axis if axis else _axis([(extent, 0)]) for axis, extent in zip(axes, extents, strict=True))
        )

    def sliced(self, axis: int, begin: int, end: int) -> View | None:
        """Places [begin, end) of an axis; None if that has several strides and not all are taken."""
        digits = self.axes[axis]
        if end - begin == _extent(digits):
            return self
        if len(digits) != 1:
            return None
        ((_, stride),) = digits
        axes = (*self.axes[:axis], _axis([(end - begin, stride)]), *self.axes[axis + 1 :])
        return replace(self, offset=self.offset + begin * stride, axes=axes)

    def at(self, axis: int, place: int) -> View:
        """One place of an axis, which goes."""
        offset = self.offset
        for extent, stride in reversed(self.axes[axis]):
            offset += place % extent * stride
            place //= extent
        return replace(self, offset=offset, axes=(*self.axes[:axis], *self.axes[axis + 1 :]))


def _axis(digits: Sequence[tuple[int, int]]) -> Axis:
    """Digits without those that say nothing, and with neighbours as one where one stride leads through both."""
    result: list[tuple[int, int]] = []
    for extent, stride in digits:
        if extent == 1:
            continue
        if result and result[-1][1] == extent * stride:
            extent *= result.pop()[0]
        result.append((extent, stride))
    return tuple(result)


def _extent(axis: Axis) -> int:
    return math.prod(extent for extent, _ in axis)


def view_of(expr: ir.Expr, values: Mapping[relax.Var, ir.Expr], scalar) -> View:
    """`expr` as a view of the earliest tensor that differs only by reshapes, permutations, slices, repetitions and factors.

    Taking one place of an axis is a slice, too.
    `values` holds the expressions of variables, `scalar(expr)` is the value of a scalar constant or None.
    """
    call = values.get(expr) if isinstance(expr, relax.Var) else None
    view = _through(call, values, scalar) if isinstance(call, relax.Call) else None
    return view or View.whole(expr)


def _through(call: relax.Call, values, scalar) -> View | None:
    name = operator(call)
    if name in ("multiply", "divide"):
        return _scaled(call, values, scalar)
    if name not in ("reshape", "permute_dims", "broadcast_to", "strided_slice", "take"):
        return None
    data = call.args[0]
    if not static_tensor(call) or not static_tensor(data) or dtype(data) != "float32" or 0 in shape(data):
        return None
    inner = view_of(data, values, scalar)
    if name == "reshape":
        return inner.reshaped(shape(call))
    if name == "permute_dims":
        return inner.permuted(permuted_axes(call))
    if name == "broadcast_to":
        return inner.repeated(shape(call))
    return _taken(call, inner, scalar) if name == "take" else _sliced(call, inner)


def _scaled(call: relax.Call, values, scalar) -> View | None:
    """A tensor times a number, or divided by one."""
    found = factor_of(call, scalar)
    if found is None:
        return None
    data, factor = found
    if not static_tensor(data) or dtype(data) != "float32" or shape(call) != shape(data) or 0 in shape(data):
        return None
    inner = view_of(data, values, scalar)
    return replace(inner, scale=inner.scale * factor)


def factor_of(call: ir.Expr, scalar) -> tuple[ir.Expr, float] | None:
    """Of a product or quotient of a tensor and a number, none of which is 0, the tensor and the factor."""
    name = operator(call)
    if name not in ("multiply", "divide"):
        return None
    for data, number in (call.args, reversed(call.args)) if name == "multiply" else (call.args,):
        factor = scalar(number)
        if factor and scalar(data) is None:
            return data, factor if name == "multiply" else 1.0 / factor
    return None


def _taken(call: relax.Call, inner: View, scalar) -> View | None:
    index, axis = scalar(call.args[1]), call.attrs.axis
    if index is None or axis is None or len(shape(call)) != len(inner.axes) - 1:
        return None
    axis, place = int(axis) % len(inner.axes), int(index)
    return inner.at(axis, place) if 0 <= place < inner.shape[axis] else None


def _sliced(call: relax.Call, inner: View) -> View | None:
    axes, begins, *_ = (_numbers(arg) for arg in call.args[1:4])
    steps = _numbers(call.args[4]) if len(call.args) > 4 else [1] * len(axes)
    if any(step != 1 for step in steps):
        return None
    view: View | None = inner
    for axis, begin in zip(axes, begins, strict=True):
        if view is None:
            return None
        extent, axis = inner.shape[axis], axis % len(inner.axes)
        begin = max(0, min(begin + extent if begin < 0 else begin, extent))
        view = view.sliced(axis, begin, begin + shape(call)[axis])
    return view


def _numbers(expr: ir.Expr) -> list[int]:
    return [int(value) for value in (expr.fields if isinstance(expr, relax.Tuple) else expr.values)]


def access_of(view: View, lead: tuple[int, int]) -> tuple[Access, int] | None:
    """A view [… rows, depth] by batch and head, which `lead` has the extents of, and how many heads have one in common.

    None if neighbours in depth are no neighbours in memory, or batch, heads and rows have no strides.
    """
    found = view.reshaped((*lead, *view.shape[-2:]))
    if found is None or found.axes[3] not in ((), ((view.shape[-1], 1),)):
        return None
    batch, heads, rows, _ = found.axes
    group = 1
    if len(heads) == 2 and heads[1][1] == 0:
        heads, group = heads[:1], heads[1][0]
    if any(len(axis) > 1 for axis in (batch, heads, rows)):
        return None
    strides = [axis[0][1] if axis else 0 for axis in (batch, heads, rows)]
    return Access(shape(view.source), view.offset, *strides), group


def place_of(view: View, buffer: tuple[int, ...], extents: tuple[int, int, int, int]) -> Access | None:
    """Where batch, heads, rows and depth of a tensor lie in `buffer`, which `view`, reshaped and permuted, is copied to."""
    digits, step = [], 1
    for extent, stride in [digit for axis in reversed(view.axes) for digit in reversed(axis)]:
        digits.append((stride, extent, step))
        step *= extent
    # Those of the tensor itself, in its own order, have falling strides.
    back = View(view.source, 0, tuple(((extent, place),) for _, extent, place in sorted(digits, reverse=True)))
    found = back.reshaped(extents)
    if found is None or found.axes[3] not in ((), ((extents[3], 1),)) or any(len(axis) > 1 for axis in found.axes):
        return None
    _, heads, rows, depth = extents
    joined = (heads * rows * depth, depth, heads * depth)  # the usual strides, for axes of one element
    strides = [axis[0][1] if axis else one for axis, one in zip(found.axes[:3], joined, strict=True)]
    return Access(buffer, 0, *strides)
