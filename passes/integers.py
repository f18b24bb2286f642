"""Which float32 variables hold integers, and between which these lie."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tvm import ir, relax

from .ir import bindings, dtype, operator, static_tensor

EXACT = 1 << 16  # numbers that a sum of integers of 16 bits stays exact with
Range = tuple[float, float]  # with both ends, which are integers or infinite

_EIGHT_BITS: dict[str, Range] = {"int8": (-128.0, 127.0), "uint8": (0.0, 255.0)}
# Operators that move elements of their first operand, or choose among them.
MOVING = frozenset({
    "broadcast_to", "concat", "expand_dims", "flatten", "max_pool1d", "max_pool2d", "max_pool3d", "permute_dims", "repeat",
    "reshape", "squeeze", "strided_slice", "take", "tile",
})  # fmt: skip


def integer_ranges(main: relax.Function) -> dict[relax.Var, Range]:
    """The ranges of all variables of `main` that are known to hold integers."""
    ranges: dict[relax.Var, Range] = {}
    for binding in bindings(main):
        value = binding.value
        if isinstance(value, relax.Call) and isinstance(value.op, ir.Op) and static_tensor(binding.var):
            known = range_of(value, ranges) if dtype(binding.var) == "float32" else None
            if known is not None:
                ranges[binding.var] = known
    return ranges


def counts_in_floats(main: relax.Function) -> bool:
    """Whether some activations are rounded to integers of 8 bits, as in quantised networks."""
    ranges = integer_ranges(main)
    return any(operator(b.value) == "clip" and b.var in ranges for b in bindings(main))


def range_of(call: relax.Call, ranges: Mapping[relax.Var, Range]) -> Range | None:
    """The integers between which the result of `call` lies, if known to be integers; `ranges` are those of operands."""
    name, data = operator(call), call.args[0]
    if name == "round":
        return -math.inf, math.inf
    if name == "astype" and dtype(data) in _EIGHT_BITS:
        return _EIGHT_BITS[dtype(data)]
    if name == "clip" and data in ranges:
        low, high = (float(end.value) for end in call.args[1:])
        return (low, high) if low.is_integer() and high.is_integer() and low <= high else None
    if name in ("add", "subtract") and data in ranges:
        number = number_of(call.args[1])
        if number is None or not number.is_integer() or abs(number) > EXACT:
            return None
        return tuple(end + (number if name == "add" else -number) for end in ranges[data])
    if name in MOVING:
        parts = list(data.fields) if isinstance(data, relax.Tuple) else [data]
        return union([ranges[part] for part in parts]) if all(part in ranges for part in parts) else None
    return None


def union(parts: Sequence[Range]) -> Range:
    """The range of values that lie in one of several."""
    lows, highs = zip(*parts, strict=True)
    return min(lows), max(highs)


def number_of(expr: ir.Expr) -> float | None:
    """The value of a constant of one element."""
    if isinstance(expr, ir.GenericConst) and math.prod(expr.value.shape) == 1:
        return float(expr.value.numpy().reshape(-1)[0])
    return None
