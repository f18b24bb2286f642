"""NumPy on the weight side: rules that make some rows of an operator's result, and rules that make the whole.

A rule of rows takes (making, call, first, end): `making.rows` gives rows of operands and `making.whole` whole operands. A rule is
asked for all rows, too, and answers None where rows need all of the operands: then the operator has a rule for the whole,
which takes (attributes, *operands).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np
from tvm import ir, relax

from flexcomp.passes.ir import shape
from flexcomp.schedules.tiles import blocks, narrow_panel

# Rows of a table that are read to take some of them, for each taken one: beyond that the whole table is.
_MOST_READ = 4


class Making(Protocol):
    """Operands, as rules request them."""

    def rows(self, expr: ir.Expr, first: int, end: int) -> np.ndarray: ...

    def whole(self, expr: ir.Expr): ...


def _operand(making: Making, call: relax.Call, arg: ir.Expr, first: int, end: int):
    """An operand that is broadcast to the result: its rows, if there are as many."""
    if isinstance(arg.ty, relax.TensorType):
        extents = shape(arg)
        if len(extents) == len(shape(call)) and extents[0] == shape(call)[0]:
            return making.rows(arg, first, end)
    return making.whole(arg)


def _elementwise(
    function: Callable[..., np.ndarray], making: Making, call: relax.Call, first: int, end: int
) -> np.ndarray:
    return function(*(_operand(making, call, arg, first, end) for arg in call.args))


def _astype(making: Making, call: relax.Call, first: int, end: int) -> np.ndarray:
    return making.rows(call.args[0], first, end).astype(str(call.attrs.dtype))


def _zeros(_: Making, call: relax.Call, first: int, end: int) -> np.ndarray:
    return np.zeros((end - first, *shape(call)[1:]), str(call.attrs.dtype))


def _broadcast_to(making: Making, call: relax.Call, first: int, end: int) -> np.ndarray:
    return np.broadcast_to(_operand(making, call, call.args[0], first, end), (end - first, *shape(call)[1:]))


def _reshape(making: Making, call: relax.Call, first: int, end: int) -> np.ndarray:
    """The operand's rows in which the elements lie, and of these the elements."""
    given, wanted = shape(call.args[0]), shape(call)
    result = (end - first, *wanted[1:])
    of_given, of_wanted = math.prod(given[1:]), math.prod(wanted[1:])
    if not given or not of_given or not of_wanted:
        return np.reshape(making.whole(call.args[0]), wanted)[first:end]
    start, stop = first * of_wanted, end * of_wanted
    begin = start // of_given
    rows = making.rows(call.args[0], begin, -(-stop // of_given))
    if rows.size == stop - start:
        return rows.reshape(result)
    return rows.reshape(-1)[start - begin * of_given : stop - begin * of_given].reshape(result)


def _permute_dims(making: Making, call: relax.Call, first: int, end: int) -> np.ndarray | None:
    axes = _axes(call.attrs.axes)
    if axes is None or axes[0] != 0:
        return None
    return np.transpose(making.rows(call.args[0], first, end), axes)


def _take(making: Making, call: relax.Call, first: int, end: int) -> np.ndarray | None:
    data, indices = call.args
    if call.attrs.axis is None or int(call.attrs.axis) != 0 or len(shape(indices)) != 1:
        return None
    taken = making.whole(indices)[first:end]
    if not len(taken):
        return None
    low, high = int(taken.min()), int(taken.max()) + 1
    if low < 0 or high - low > _MOST_READ * len(taken):
        return None
    return np.take(making.rows(data, low, high), taken - low, axis=0)


def _concat(making: Making, call: relax.Call, first: int, end: int) -> np.ndarray | None:
    axis = int(call.attrs.axis) % len(shape(call))
    if not isinstance(call.args[0], relax.Tuple):
        return None
    parts = call.args[0].fields
    if axis:
        return np.concatenate([making.rows(part, first, end) for part in parts], axis=axis)
    found, start = [], 0
    for part in parts:
        low, high = max(first - start, 0), min(end - start, shape(part)[0])
        if low < high:
            found.append(making.rows(part, low, high))
        start += shape(part)[0]
    return found[0] if len(found) == 1 else np.concatenate(found) if found else None


def _cut(attrs, data: np.ndarray, axes, begin, end, strides=None) -> np.ndarray:
    return data[_slices(data.ndim, axes, begin, end, strides)]


def _slices(rank: int, axes, begin, end, strides) -> tuple[slice, ...]:
    slices = [slice(None)] * rank
    for axis, *bounds in zip(axes, begin, end, strides or [1] * len(axes), strict=True):
        slices[axis] = slice(*map(int, bounds))
    return tuple(slices)


def _strided_slice(making: Making, call: relax.Call, first: int, end: int) -> np.ndarray | None:
    data, *numbers = call.args
    extents = shape(data)
    own, *others = _slices(len(extents), *map(making.whole, numbers), *[None] * (4 - len(numbers)))
    taken = range(extents[0])[own][first:end]
    if not len(taken) or taken.step < 1:
        return None
    return making.rows(data, taken[0], taken[-1] + 1)[(slice(None, None, taken.step), *others)]


def _matmul(making: Making, call: relax.Call, first: int, end: int) -> np.ndarray | None:
    """Rows of a batch."""
    left, right = call.args
    if len(shape(left)) > 2 or len(shape(right)) != 3:
        return None
    factors, rows = making.whole(left), making.rows(right, first, end)
    return signed_sums(factors, rows) if np.all(np.abs(factors) <= 1) and not np.any(factors % 1) else np.matmul(factors, rows)


def signed_sums(signs: np.ndarray, operands: np.ndarray) -> np.ndarray:
    """`signs` [sums, terms], which are -1, 0 and 1, times `operands` [count, terms, n]: as np.matmul, in half the time or less.

    BLAS multiplies by zeros, and starts its threads for work that is bound by memory.
    """
    result = np.zeros((len(operands), len(signs), operands.shape[2]), operands.dtype)
    for i, row in enumerate(signs):
        for k in np.flatnonzero(row):
            (np.add if row[k] > 0 else np.subtract)(result[:, i], operands[:, k], out=result[:, i])
    return result


_OF_ROWS = {
    "round": lambda weights, kept: (blocks if blocks.blocks_of(kept) else narrow_panel).rounded(weights, kept),
    "rows": narrow_panel.pack_rows,
    "integers": narrow_panel.integers,
    "scales": narrow_panel.scales,
    "integers_in_blocks": blocks.integers_of,
    "scales_of_blocks": blocks.scales_of,
}


def _narrowed(making: Making, call: relax.Call, first: int, end: int) -> np.ndarray:
    """Functions that passes call: flexcomp.(pack|round|rows|integers|scales).KEPT, flexcomp.pack_together.KEPT.4.OFFSET, and
    flexcomp.lacking, a mark; flexcomp.in_blocks.SIZE flexcomp.(pack|rows_of|scales_of)_blocks.KEPT and
    flexcomp.integers_in_blocks.KEPT of schedules/tiles/blocks.py."""
    function, *operands = call.args
    _, what, *names = function.global_symbol.split(".")
    if what == "lacking":
        return making.rows(operands[0], first, end)
    if what == "in_blocks":
        integers, scales, *zeros = (making.rows(operand, first, end) for operand in operands)
        return blocks.dequantised(integers, scales, zeros[0] if zeros else None, int(names[0]))
    name, *numbers = names
    given = [making.rows(operand, first, end) for operand in operands]
    if what == "pack_together":
        return narrow_panel.pack_together(*given, name, shape(call)[1], *map(int, numbers))
    if what == "rows_of_blocks":
        integers, scales, *zeros = given
        return blocks.pack_rows(integers, scales, zeros[0] if zeros else None, name)
    if what == "pack_blocks":
        head, integers, scales, *zeros = given
        return blocks.pack(head, integers, scales, zeros[0] if zeros else None, name, shape(call)[1])
    if what == "pack":
        return narrow_panel.pack(*given, name, shape(call)[1])
    return _OF_ROWS[what](*given, name)


def _axes(value) -> tuple[int, ...] | None:
    return None if value is None else tuple(int(axis) for axis in value)


def _taken(attrs, data, indices):
    return np.take(data, indices, axis=None if attrs.axis is None else int(attrs.axis))


def _argument(function, attrs, data):
    return function(data, axis=None if attrs.axis is None else int(attrs.axis), keepdims=bool(attrs.keepdims))


# Of operators that are the same for each element.
_ELEMENTWISE: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "negative": np.negative,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "sqrt": np.sqrt,
    "rsqrt": lambda a: np.float32(1) / np.sqrt(a),
}

BY_ROWS: dict[str, Callable[..., np.ndarray | None]] = {
    "reshape": _reshape,
    "expand_dims": _reshape,
    "squeeze": _reshape,
    "permute_dims": _permute_dims,
    "broadcast_to": _broadcast_to,
    "concat": _concat,
    "strided_slice": _strided_slice,
    "take": _take,
    "zeros": _zeros,
    "matmul": _matmul,
    "astype": _astype,
    "call_pure_packed": _narrowed,
    **{name: partial(_elementwise, function) for name, function in _ELEMENTWISE.items()},
}

WHOLE: dict[str, Callable[..., np.ndarray]] = {
    "reshape": lambda _, x, shape: x.reshape(shape),
    "expand_dims": lambda attrs, x: np.expand_dims(x, _axes(attrs.axis)),
    "squeeze": lambda attrs, x: np.squeeze(x, _axes(attrs.axis)),
    "permute_dims": lambda attrs, x: np.transpose(x, _axes(attrs.axes)),
    "broadcast_to": lambda _, x, shape: np.broadcast_to(x, shape),
    "concat": lambda attrs, parts: np.concatenate(parts, axis=int(attrs.axis)),
    "strided_slice": _cut,
    "take": _taken,
    "shape_of": lambda _, x: tuple(x.shape),
    "shape_to_tensor": lambda _, shape: np.array(shape, np.int64),
    "zeros": lambda attrs, shape: np.zeros(shape, str(attrs.dtype)),
    "matmul": lambda _, a, b: np.matmul(a, b),
    "max": lambda attrs, a: np.max(a, axis=_axes(attrs.axis), keepdims=bool(attrs.keepdims)),
    "min": lambda attrs, a: np.min(a, axis=_axes(attrs.axis), keepdims=bool(attrs.keepdims)),
    "argmax": lambda attrs, a: _argument(np.argmax, attrs, a),
    "argmin": lambda attrs, a: _argument(np.argmin, attrs, a),
    "astype": lambda attrs, a: a.astype(str(attrs.dtype)),
    **{name: lambda _, *operands, function=function: function(*operands) for name, function in _ELEMENTWISE.items()},
}
