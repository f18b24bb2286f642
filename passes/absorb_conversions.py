"""Let kernels in float32 read and write float16 or bfloat16 themselves."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import ir, relax

from ..schedules.operators.half_storage import with_half_storage
from ..schedules.registry import Machine
from ..schedules.tiles.tile import VectorUnit
from . import attributes as names
from .ir import bindings, dtype, operator, shape, uses
from .module_pass import module_pass
from .rebuild import MainRewriter

_FLOAT = "float32"
# Kernels that are made again for other rows, by other threads, or in a place of an operand: all of them know their types.
_FIXED = (names.ROWS, names.IN_PLACE, names.EXCHANGE, names.FETCH, names.BOUNDS, names.C_SOURCE)


@module_pass(opt_level=0)
class AbsorbConversions:
    """Give kernels that compute in float32 the tensors of 16 bits around them, on a machine that computes in these, too.

    x = astype(h, "float32")
    y = call_tir(softmax, (x,))     →     g = call_tir(softmax', (h,))      softmax' converts what it loads and stores
    g = astype(y, "float16")

    So nothing wide lies in memory. A result is narrow where its conversion is the only reader. TVM fuses other operators with
    their conversions.
    """

    def __init__(self, unit: Machine) -> None:
        self.unit = unit

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        if not isinstance(self.unit, VectorUnit) or not self.unit.half:
            return mod
        return _Rewriter(mod, self.unit.half).rewrite()


class _Rewriter(MainRewriter):
    def __init__(self, mod: tvm.IRModule, half: str) -> None:
        super().__init__(mod)
        self.half = half
        self.readers = uses(self.main)
        self.old = {binding.var: binding.value for binding in bindings(self.main)}
        self.kernels: dict[tuple, ir.GlobalVar | None] = {}  # by kernel and its narrow parameters

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        if operator(value) == "call_tir":
            absorbed = self._absorbed(var, value)
            return self.substitute(value) if absorbed is None else absorbed
        new = self.substitute(value)
        is_done = operator(value) == "astype" and dtype(new.args[0]) == dtype(var)
        return new.args[0] if is_done else new

    def _absorbed(self, var: relax.Var, call: relax.Call) -> ir.Expr | None:
        """The call with narrow operands, and maybe a narrow result; None if that is not possible, or there are none."""
        operands = list(call.args[1].fields)
        sources = (self._converted(operand, _FLOAT, self.half) for operand in operands)
        given = {i: source for i, source in enumerate(sources) if source is not None}
        made = call.ty_args[0]
        is_narrow = isinstance(made, relax.TensorType) and self._is_narrowed(var)
        kernel = self._kernel(call.args[0], [*given, *([len(operands)] if is_narrow else [])])
        if kernel is None:
            return None
        new = [self.substitute(given.get(i, operand)) for i, operand in enumerate(operands)]
        if is_narrow:
            return relax.call_tir(kernel, new, relax.TensorType(shape(var), self.half))
        return relax.call_tir(kernel, new, list(made.fields) if isinstance(made, relax.TupleType) else made)

    def _converted(self, expr: ir.Expr, kind: str, source: str) -> ir.Expr | None:
        """The tensor of a type that was converted to `expr`."""
        value = self.old.get(expr) if isinstance(expr, relax.Var) else None
        if operator(value) != "astype" or dtype(expr) != kind or dtype(value.args[0]) != source:
            return None
        return value.args[0]

    def _is_narrowed(self, var: relax.Var) -> bool:
        readers = set(self.readers.get(var, []))
        return len(readers) == 1 and self._converted(next(iter(readers)), self.half, _FLOAT) is not None

    def _kernel(self, gv: ir.GlobalVar, positions: Sequence[int]) -> ir.GlobalVar | None:
        func = self.mod[gv]
        attrs = func.attrs or {}
        if not positions or names.OPERATOR not in attrs or any(name in attrs for name in _FIXED):
            return None
        key = (gv, *positions)
        if key not in self.kernels:
            self.kernels[key] = None
            narrow = with_half_storage(func, positions, self.half)
            if narrow is not None:
                name = f"{gv.name_hint}_half_{len(self.kernels)}"
                described = {names.DESCRIPTION: f"{attrs[names.DESCRIPTION]}, on {self.half}", "global_symbol": name}
                if names.TOLD in attrs:
                    described[names.TOLD] = with_half_storage(attrs[names.TOLD], positions, self.half)
                self.kernels[key] = self.builder.add_func(narrow.with_attrs(described), name)
        return self.kernels[key]
