"""Keep integers in float32 between operators that compute with them."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import ir, relax
from tvm.relax import op

from .integers import EXACT, MOVING, Range, number_of, range_of, union
from .ir import dtype, operator, static_tensor
from .module_pass import module_pass
from .rebuild import MainRewriter


@module_pass(opt_level=0)
class KeepIntegers:
    """Leave out conversions to integers and back, of floats that are integers already.

    c = clip(round(x), -3, 252)
    q = astype(add(c, 3), uint8)
    p = max_pool2d(q)                 →     c = clip(round(x), -3, 252)
    y = subtract(astype(p, float32), 3)     y = max_pool2d(c)

    Where q is read elsewhere, or returned, q stays. Rounding of integers, and clipping of values in between, go as well.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        names = {operator(node) for node in _calls(mod["main"])}
        return _Keeper(mod).rewrite() if "round" in names else mod


class _Keeper(MainRewriter):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.ranges: dict[relax.Var, Range] = {}  # float32 variables that hold integers
        self.floats: dict[relax.Var, relax.Var] = {}  # integer variable → float32 one that holds the same

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        value = self.substitute(value)
        if not isinstance(value, relax.Call) or not isinstance(value.op, ir.Op):
            return value
        value = self._simplified(value)
        if not isinstance(value, relax.Call):
            return value
        new = self.emit(value)
        known = range_of(value, self.ranges) if static_tensor(new) and dtype(new) == "float32" else None
        if known is not None:
            self.ranges[new] = known
        return new

    def _simplified(self, call: relax.Call) -> ir.Expr:
        name, data = operator(call), call.args[0]
        if name == "astype" and str(call.attrs.dtype) == "float32":
            found = self._float(data)
            return call if found is None else found
        if name == "round" and data in self.ranges:
            return data
        if name == "clip" and data in self.ranges:
            low, high = (float(end.value) for end in call.args[1:])
            return data if low <= self.ranges[data][0] and self.ranges[data][1] <= high else call
        if name == "subtract":
            earlier = self.producer(data, "add")
            if earlier is not None and self._is_short(earlier.args[0]) and number_of(call.args[1]) == number_of(earlier.args[1]):
                return earlier.args[0] if number_of(call.args[1]) is not None else call
        return call

    def _float(self, integers: ir.Expr) -> relax.Var | None:
        """The float32 variable that holds the same integers, emitted if there was none."""
        if integers in self.floats:
            return self.floats[integers]
        call = self.values.get(integers) if isinstance(integers, relax.Var) else None
        name = operator(call)
        if name == "astype":
            data = call.args[0]
            found = data if data in self.ranges and _within(self.ranges[data], dtype(call)) else None
        else:
            found = self._moved(call) if name in MOVING else None
        if found is not None:
            self.floats[integers] = found
        return found

    def _moved(self, call: relax.Call) -> relax.Var | None:
        """Operators that only move integers, on floats instead: from before an offset, if any, which is added afterwards."""
        parts = call.args[0].fields if isinstance(call.args[0], relax.Tuple) else call.args[:1]
        floats = [self._float(part) for part in parts]
        if any(found is None for found in floats):
            return None
        offsets = {self._offset(found) for found in floats}
        (offset,) = offsets if len(offsets) == 1 else (None,)
        if offset is not None:
            floats = [self.values[found].args[0] for found in floats]
        first = relax.Tuple(floats) if isinstance(call.args[0], relax.Tuple) else floats[0]
        moved = self.emit(relax.Call(call.op, [first, *call.args[1:]], call.attrs, call.ty_args))
        self.ranges[moved] = union([self.ranges[one] for one in floats])
        if offset is None:
            return moved
        total = self.emit(op.add(moved, relax.const(offset, "float32")))
        self.ranges[total] = tuple(end + offset for end in self.ranges[moved])
        return total

    def _is_short(self, var: ir.Expr) -> bool:
        """Whether `var` holds integers to which others can be added exactly."""
        return var in self.ranges and max(map(abs, self.ranges[var])) <= EXACT

    def _offset(self, found: relax.Var) -> float | None:
        call = self.producer(found, "add")
        return number_of(call.args[1]) if call is not None and self._is_short(call.args[0]) else None


def _within(known: Range, kind: str) -> bool:
    if not kind.startswith(("int", "uint")):
        return False
    most = np.iinfo(kind)
    return most.min <= known[0] and known[1] <= most.max


def _calls(main: relax.Function) -> list[relax.Call]:
    found: list[relax.Call] = []
    relax.analysis.post_order_visit(main, lambda node: found.append(node) if isinstance(node, relax.Call) else None)
    return found
