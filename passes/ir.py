"""Reading Relax functions: the few questions that several passes ask."""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import ir, relax, tirx

# Operators of two or more tensors, element by element, which broadcast them.
BROADCASTING = frozenset({
    "add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "floor_divide", "mod", "floor_mod",
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "where",
})  # fmt: skip
LOGICAL = frozenset({"logical_and", "logical_or", "logical_xor"})  # likewise
# Operators of one tensor, element by element.
UNARY = frozenset({
    "abs", "astype", "ceil", "clip", "cos", "erf", "exp", "floor", "isinf", "isnan", "log", "logical_not", "negative", "relu",
    "round", "rsqrt", "sigmoid", "sign", "sin", "sqrt", "square", "tanh",
})  # fmt: skip


def bindings(func: relax.Function) -> Iterator[relax.VarBinding]:
    """The bindings of a straight-line function, in order."""
    for block in func.body.blocks:
        yield from block.bindings


def values_of(func: relax.Function) -> dict[relax.Var, ir.Expr]:
    """The variables of a straight-line function, in order, and their values."""
    return {binding.var: binding.value for binding in bindings(func)}


def shape(expr: ir.Expr) -> tuple[int, ...]:
    """The static shape of a tensor."""
    return tuple(int(extent) for extent in expr.ty.shape.values)


def static_tensor(expr: ir.Expr) -> bool:
    """A tensor whose shape is known."""
    ty = expr.ty
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return False
    return all(isinstance(extent, tirx.IntImm) for extent in ty.shape.values)


def dtype(expr: ir.Expr) -> str:
    return str(expr.ty.dtype)


def operator(expr: ir.Expr) -> str:
    """The operator's name without the `relax.` and `nn.` prefixes; empty if `expr` calls no operator."""
    if isinstance(expr, relax.Call) and isinstance(expr.op, ir.Op):
        return expr.op.name.removeprefix("relax.").removeprefix("nn.")
    return ""


def uses(func: relax.Function) -> dict[relax.Var, list[relax.Var]]:
    """For each variable the variables whose bindings read it; the function's result counts as one more, itself."""
    result: dict[relax.Var, list[relax.Var]] = {}

    def note(expr: ir.Expr, by: relax.Var) -> None:
        def visit(node) -> None:
            if isinstance(node, relax.Var):
                result.setdefault(node, []).append(by)

        relax.analysis.post_order_visit(expr, visit)

    for binding in bindings(func):
        note(binding.value, binding.var)
    returned = func.body.body
    for part in returned.fields if isinstance(returned, relax.Tuple) else [returned]:
        result.setdefault(part, []).append(part)
    return result


def num_inputs(func: relax.Function) -> int:
    """How many leading parameters of `main` are inputs; the others are weights."""
    if func.attrs is not None and "num_input" in func.attrs:
        return int(func.attrs["num_input"])
    return len(func.params)


def with_functions(mod: tvm.IRModule, functions: dict[ir.GlobalVar, ir.BaseFunc]) -> tvm.IRModule:
    """A module of `functions` that keeps the attributes of `mod`."""
    result = tvm.IRModule(functions)
    return result.with_attrs(dict(mod.attrs.items())) if mod.attrs else result
