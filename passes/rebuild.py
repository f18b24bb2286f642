"""Rewriting `main` binding by binding, forwards, into one dataflow block."""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import ir, relax

from .ir import bindings


class MainRewriter:
    """Rebuilds `main` of a module; a subclass says by `rewrite_binding` what a binding becomes.

    The result is in A-normal form: every value has a variable, main's body is one dataflow block, and
    it returns a variable or a tuple of variables. Bindings that nothing reads are gone, and so are
    functions that nothing calls. Parameters stay as they are, read or not.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self.mod = mod
        self.main = mod["main"]
        self.builder = relax.BlockBuilder()
        self.replaced: dict[relax.Var, ir.Expr] = {}  # variable of the old main → value in the new one

    def rewrite(self) -> tvm.IRModule:
        """The rewritten module; the given one is left alone."""
        main, builder = self.main, self.builder
        attrs = dict(main.attrs.items()) if main.attrs else None
        with builder.function("main", list(main.params), attrs=attrs):
            with builder.dataflow():
                for binding in bindings(main):
                    value = self.rewrite_binding(binding.var, binding.value)
                    self.replaced[binding.var] = self.emit(value, binding.var.name)
                results = [self.result(var) for var in _returned(main)]
                outputs = [builder.emit_output(var) for var in results]
            builder.emit_func_output(outputs[0] if len(outputs) == 1 and not _is_tuple(main) else outputs)
        mod = self.mod.clone()
        mod.update_func(mod.get_global_var("main"), builder.get()["main"])
        mod = relax.transform.CanonicalizeBindings()(mod)
        return relax.transform.DeadCodeElimination(["main"])(mod)

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        """What is bound in place of `value`, over variables of the new main."""
        return self.substitute(value)

    def result(self, var: ir.Expr) -> ir.Expr:
        """What main returns in place of `var`."""
        return self.substitute(var)

    def emit(self, value: ir.Expr, name: str = "") -> ir.Expr:
        """A variable that holds `value`, unless it needs none."""
        if isinstance(value, relax.Call | relax.TupleGetItem):
            return self.builder.emit(value, name_hint=name)
        return value

    def substitute(self, expr: ir.Expr) -> ir.Expr:
        """`expr` over variables of the new main."""
        if isinstance(expr, relax.Var):
            return self.replaced.get(expr, expr)
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.substitute(field) for field in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return item(self.substitute(expr.tuple_value), expr.index)
        if isinstance(expr, relax.Call):
            return relax.Call(expr.op, [self.substitute(arg) for arg in expr.args], expr.attrs, expr.ty_args)
        return expr


def item(pair: ir.Expr, index: int) -> ir.Expr:
    """An element of a tuple, looked up right away where the tuple is known."""
    return pair.fields[index] if isinstance(pair, relax.Tuple) else relax.TupleGetItem(pair, index)


def _is_tuple(main: relax.Function) -> bool:
    return isinstance(main.ret_ty, relax.TupleType)


def _returned(main: relax.Function) -> Iterator[ir.Expr]:
    """What main returns, one by one, wherever the tuple is bound."""
    result = main.body.body
    if not _is_tuple(main):
        yield result
        return
    by_var = {binding.var: binding.value for binding in bindings(main)}
    while isinstance(result, relax.Var) and isinstance(by_var.get(result), relax.Var | relax.Tuple):
        result = by_var[result]
    for index in range(len(main.ret_ty.fields)):
        yield item(result, index)
