"""Compute 16-bit floats of a module in float32."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.relax import op

from .ir import dtype, operator
from .module_pass import module_pass
from .rebuild import MainRewriter

_NARROW = ("float16", "bfloat16")


@module_pass(opt_level=0)
class Widen:
    """Convert 16-bit floats to float32 at the inputs of `main`, and back at its outputs.

    y = matmul(x, w)     float16     →   y = astype(matmul(astype(x), astype(w)))      float32 inside

    Values that the module itself converts to 16 bits are still rounded. Calls of functions with fixed types compute as before,
    between conversions.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        return _Widener(mod).rewrite() if _is_narrow_anywhere(mod["main"]) else mod


def _is_narrow(expr: ir.Expr) -> bool:
    return isinstance(getattr(expr, "ty", None), relax.TensorType) and dtype(expr) in _NARROW


def _is_narrow_anywhere(main: relax.Function) -> bool:
    found = []
    relax.analysis.post_order_visit(main, lambda node: found.append(_is_narrow(node)) if isinstance(node, relax.Expr) else None)
    return any(found) or any(map(_is_narrow, main.params))


class _Widener(MainRewriter):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.rounded: dict[ir.Expr, ir.Expr] = {}  # float32 variable → the 16-bit one before conversion

    def substitute(self, expr: ir.Expr) -> ir.Expr:
        """Over variables of the new main, and in float32."""
        if isinstance(expr, relax.Var) and expr not in self.replaced and _is_narrow(expr):  # a parameter
            self.replaced[expr] = self._wide(expr)
        if isinstance(expr, ir.GenericConst) and _is_narrow(expr):
            return relax.const(expr.value.numpy().astype("float32"), "float32")
        return super().substitute(expr)

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        if not isinstance(value, relax.Call):
            return self.substitute(value)
        if operator(value) == "astype" and _is_narrow(value):
            return self._wide(self.emit(op.astype(self.substitute(value.args[0]), dtype(value))))
        if operator(value) == "call_tir" or not isinstance(value.op, ir.Op):
            return self._as_it_was(value)
        if operator(value) == "astype" and dtype(value) == "float32" and _is_narrow(value.args[0]):
            return self.substitute(value.args[0])
        new = self.emit(self._without_dtype(self.substitute(value)))
        return self._wide(new) if _is_narrow(new) else new

    def result(self, old: ir.Expr) -> ir.Expr:
        new = self.substitute(old)
        if not _is_narrow(old):
            return new
        rounded = self.rounded.get(new)
        return rounded if rounded is not None and dtype(rounded) == dtype(old) else op.astype(new, dtype(old))

    def _wide(self, narrow: ir.Expr) -> ir.Expr:
        wide = self.emit(op.astype(narrow, "float32"))
        self.rounded[wide] = narrow
        return wide

    def _as_it_was(self, call: relax.Call) -> ir.Expr:
        """A call of a function, with operands of the function's own types."""

        def restored(old: ir.Expr) -> ir.Expr:
            if isinstance(old, relax.Tuple):
                return relax.Tuple([restored(field) for field in old.fields])
            return self.emit(self.result(old)) if _is_narrow(old) else self.substitute(old)

        new = self.emit(relax.Call(call.op, [restored(arg) for arg in call.args], call.attrs, call.ty_args))
        return self._wide(new) if _is_narrow(new) else new

    def _without_dtype(self, call: relax.Call) -> relax.Call:
        """Without the wish for a result of 16 bits."""
        attrs = call.attrs
        if attrs is None or not hasattr(attrs, "out_dtype") or str(attrs.out_dtype) not in _NARROW:
            return call
        info = type(attrs).__tvm_ffi_type_info__
        fields = {field.name: getattr(attrs, field.name) for field in info.fields} | {"out_dtype": tvm_ffi.dtype("float32")}
        return relax.Call(call.op, call.args, ir.make_node(info.type_key, **fields), call.ty_args)
