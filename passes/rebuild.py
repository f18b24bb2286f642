"""Rewriting `main` binding by binding, forwards, into one dataflow block."""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import ir, relax
from tvm.relax import op

from .ir import bindings, dtype, operator, shape


class MainRewriter:
    """Rebuilds `main` of a module; a subclass gives the new expression of a binding by `rewrite_binding`.

    The result is in A-normal form: every value has a variable, main's body is one dataflow block, and
    returns a variable or a tuple of variables. Unread bindings are gone, and so are functions without
    callers. Parameters stay, read or not. The new expression of a binding has its variable's name,
    which tells the origin in the source.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self.mod = mod
        self.main = mod["main"]
        self.params = list(self.main.params)  # of the new main
        self.builder = relax.BlockBuilder()
        self.replaced: dict[relax.Var, ir.Expr] = {}  # variable of the old main → value in the new one
        self.values: dict[relax.Var, ir.Expr] = {}  # variable of the new main → its expression
        self.name = ""  # of the binding that is rewritten

    def rewrite(self) -> tvm.IRModule:
        """The rewritten module; the given one is left alone."""
        main, builder = self.main, self.builder
        attrs = dict(main.attrs.items()) if main.attrs else None
        with builder.function("main", self.params, attrs=attrs):
            with builder.dataflow():
                for binding in bindings(main):
                    self.name = self.name_of(binding.var)
                    value = self.rewrite_binding(binding.var, binding.value)
                    if value is not None:
                        self.replaced[binding.var] = self.emit(value)
                results = [self.emit(self.result(result)) for result in returned(main)]
                outputs = [builder.emit_output(part, part.name if isinstance(part, relax.Var) else "") for part in results]
            builder.emit_func_output(outputs[0] if len(outputs) == 1 and not _is_tuple(main) else outputs)
        mod = self.mod.clone()
        for gv, func in builder.get().functions_items():
            mod.update_func(mod.get_global_var("main") if gv.name_hint == "main" else gv, func)
        mod = relax.transform.CanonicalizeBindings()(mod)
        return relax.transform.DeadCodeElimination(["main"])(mod)

    def name_of(self, var: relax.Var) -> str:
        """The name of bindings in the place of that of `var`."""
        return var.name

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr | None:
        """The expression in place of `value`, over variables of the new main; None to bind nothing."""
        return self.substitute(value)

    def result(self, old: ir.Expr) -> ir.Expr:
        """The result in place of `old`."""
        return self.substitute(old)

    def emit(self, value: ir.Expr, name: str | None = None) -> ir.Expr:
        """A variable for `value`, unless none is needed; named `name`, or like the binding that is rewritten."""
        if not isinstance(value, relax.Call | relax.TupleGetItem):
            return value
        var = self.builder.emit(value, name_hint=self.name if name is None else name)
        self.values[var] = value
        return var

    def substitute(self, expr: ir.Expr) -> ir.Expr:
        """`expr` over variables of the new main."""
        if isinstance(expr, relax.Var):
            return self.replaced.get(expr, expr)
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self.substitute(field) for field in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return item(self.substitute(expr.tuple_value), expr.index)
        if isinstance(expr, relax.Call):
            args = [self.substitute(arg) for arg in expr.args]
            call = relax.Call(expr.op, args, expr.attrs, expr.ty_args)
            if all(new.ty.same_as(old.ty) for new, old in zip(args, expr.args, strict=True)):
                relax.expr._update_type(call, expr.ty)  # which the builder would infer again
            return call
        return expr

    def reshape(self, data: ir.Expr, new_shape: tuple[int, ...]) -> ir.Expr:
        """`data` in another shape: the last of a chain of reshapes, nothing if the shape stays. Not emitted."""
        earlier = self.producer(data, "reshape")
        if earlier is not None:
            data = earlier.args[0]
        if shape(data) == new_shape:
            return data
        if 0 in new_shape:  # TVM would read it as "the extent of the operand"
            return op.zeros(relax.ShapeExpr(new_shape), dtype(data))
        if isinstance(data, ir.GenericConst):
            return relax.const(data.value.numpy().reshape(new_shape), dtype(data))
        return op.reshape(data, new_shape)

    def permute(self, data: ir.Expr, axes: list[int]) -> ir.Expr:
        """`data` with permuted axes: one permutation for a chain, a reshape where nothing moves. Not emitted."""
        earlier = self.producer(data, "permute_dims")
        if earlier is not None:
            first = permuted_axes(earlier)
            data, axes = earlier.args[0], [first[axis] for axis in axes]
        if permutes_nothing(shape(data), axes):
            return self.reshape(data, tuple(shape(data)[axis] for axis in axes))
        return op.permute_dims(data, axes)

    def producer(self, expr: ir.Expr, name: str) -> relax.Call | None:
        """The call of operator `name` that `expr` is bound to."""
        value = self.values.get(expr) if isinstance(expr, relax.Var) else None
        return value if operator(value) == name else None


def permuted_axes(call: relax.Call) -> list[int]:
    """The axes of a permute_dims, all of them and not negative."""
    rank = len(shape(call.args[0]))
    axes = call.attrs.axes
    return list(range(rank))[::-1] if axes is None else [int(axis) % rank for axis in axes]


def permutes_nothing(extents: tuple[int, ...], axes: list[int]) -> bool:
    """Whether permuted data lies in memory as before: the axes longer than 1 keep their order."""
    moved = [axis for axis in axes if extents[axis] != 1]
    return moved == sorted(moved)


def item(pair: ir.Expr, index: int) -> ir.Expr:
    """An element of a tuple, looked up right away where the tuple is known."""
    return pair.fields[index] if isinstance(pair, relax.Tuple) else relax.TupleGetItem(pair, index)


def _is_tuple(main: relax.Function) -> bool:
    return isinstance(main.ret_ty, relax.TupleType)


def returned(main: relax.Function) -> Iterator[ir.Expr]:
    """The results of main, one by one, wherever the tuple is bound."""
    result = main.body.body
    if not _is_tuple(main):
        yield result
        return
    by_var = {binding.var: binding.value for binding in bindings(main)}
    while isinstance(result, relax.Var) and isinstance(by_var.get(result), relax.Var | relax.Tuple):
        result = by_var[result]
    for index in range(len(main.ret_ty.fields)):
        yield item(result, index)
