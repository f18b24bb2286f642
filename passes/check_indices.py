"""Let operators that index by value see only indices inside their axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import ir, relax, tirx
from tvm.relax import op

from ..errors import ModelError
from ..schedules.operators import indices
from ..schedules.operators.indices import IndexSpec
from .attributes import BOUNDS, DESCRIPTION, kernel_attributes
from .ir import dtype, num_inputs, operator, shape, static_tensor
from .module_pass import module_pass
from .rebuild import MainRewriter
from .weights import weight_vars

Bounds = tuple[tuple[int, int], ...]
Evaluate = Callable[[relax.Function], Sequence[np.ndarray]]


@module_pass(opt_level=0)
class CheckIndices:
    """Give every operator that indexes by value checked indices.

    y = take(x, i, axis=0)   →   s = call_tir(indices_0, (i,))          bounds [-n, n)
                                 y = take(x, s, axis=0, mode="clip")

    The kernel writes indices from the end as indices from the start, and none outside of the axis; the runtime refuses an index
    out of bounds before the kernel runs. Indices that depend on weights only are checked here: `evaluate` gives the result of a
    function of the weights of `main`; an index out of bounds is a ModelError. Operators whose translation has checked the indices
    already (a converter of ONNX knows the node's name) are not changed.
    """

    def __init__(self, evaluate: Evaluate) -> None:
        self.evaluate = evaluate

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        return _Checker(mod, self.evaluate).rewrite()


def wrapping(*extents: int) -> Bounds:
    """Bounds of indices into axes of these extents, where negative ones count from the end."""
    return tuple((-extent, extent) for extent in extents)


def check_function(index_shape: tuple[int, ...], index_dtype: str, bounds: Bounds, described: str) -> tirx.PrimFunc:
    """The kernel that makes indices safe; `described` names the owner in errors, e.g. "node 'embed' (Gather)"."""
    spec = IndexSpec(index_shape, index_dtype, bounds)
    attributes = kernel_attributes("indices", "checked", described, 0)
    return indices.kernel(spec).with_attrs({**attributes, BOUNDS: [list(bound) for bound in bounds]})


def checked_constant(values: np.ndarray, bounds: Bounds) -> np.ndarray:
    """Known indices, counted from the start. Raises IndexError with the reason."""
    flat = values.reshape(-1, len(bounds)).astype("int64")
    low, high = np.array(bounds).T
    outside = (flat < low) | (flat >= high)
    if outside.any():
        row, place = map(int, np.argwhere(outside)[0])
        position = row * len(bounds) + place
        raise IndexError(f"index {flat[row, place]} at position {position} is outside of [{low[place]}, {high[place]})")
    return np.where(flat < 0, flat + high, flat).reshape(values.shape).astype(values.dtype)


class _Checker(MainRewriter):
    def __init__(self, mod: tvm.IRModule, evaluate: Evaluate) -> None:
        super().__init__(mod)
        self.evaluate = evaluate
        self.from_weights = weight_vars(self.main)
        self.checked: set[ir.Expr] = set()  # variables of the new main that hold safe indices, and constants
        self.count = 0

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        if self._checks(value):
            self.checked.add(var)
            if var in self.from_weights:
                func = self.mod[value.args[0]]
                bounds = tuple((int(low), int(high)) for low, high in func.attrs[BOUNDS])
                return self._constant(value.args[1].fields[0], bounds, str(func.attrs[DESCRIPTION]))
            new = self.emit(self.substitute(value), var.name)
            self.checked.add(new)
            return new
        rule = _RULES.get(operator(value))
        return rule(self, value) if rule and all(map(_static, value.args)) else self.substitute(value)

    def _checks(self, value: ir.Expr) -> bool:
        if operator(value) != "call_tir":
            return False
        attrs = self.mod[value.args[0]].attrs
        return attrs is not None and BOUNDS in attrs

    def safe(self, call: relax.Call, given: ir.Expr, bounds: Bounds) -> ir.Expr:
        """Safe indices, over variables of the new main, for an operand of `call`."""
        if given in self.checked or self._looks_at_checked(given):
            return self.substitute(given)
        described = f"operator {operator(call)}"
        if isinstance(given, ir.GenericConst) or given in self.from_weights:
            return self._constant(given, bounds, described)
        new = self.substitute(given)
        if dtype(given) not in ("int32", "int64"):
            new = self.emit(op.astype(new, "int64"))
        name = f"indices_{self.count}"
        self.count += 1
        func = check_function(shape(new), dtype(new), bounds, described).with_attr("global_symbol", name)
        call = relax.call_tir(self.builder.add_func(func, name), [new], relax.TensorType(shape(new), dtype(new)))
        return self.emit(call)

    def _looks_at_checked(self, given: ir.Expr) -> bool:
        """Whether indices are a view of checked ones."""
        value = self.values.get(self.replaced.get(given)) if isinstance(given, relax.Var) else None
        return operator(value) == "reshape" and value.args[0] in self.checked

    def _constant(self, given: ir.Expr, bounds: Bounds, described: str) -> ir.Expr:
        new = self.substitute(given)
        values = new.value.numpy() if isinstance(new, ir.GenericConst) else np.asarray(self.evaluate(self._function_of(new))[0])
        try:
            safe = checked_constant(values, bounds)
        except IndexError as error:
            raise ModelError(f"{described}: {error}") from None
        if (values >= 0).all():
            return new
        return self.emit(op.add(new, relax.const(safe - values, str(values.dtype))))

    def _function_of(self, var: relax.Var) -> relax.Function:
        """`var`, of the new main, as a function of the weights."""
        needed = {var}
        for other in reversed(self.values):
            if other in needed:
                relax.analysis.post_order_visit(
                    self.values[other], lambda node: needed.add(node) if isinstance(node, relax.Var) else None
                )
        block = relax.DataflowBlock([relax.VarBinding(v, value) for v, value in self.values.items() if v in needed])
        return relax.Function(self.main.params[num_inputs(self.main) :], relax.SeqExpr([block], var), var.ty)


def _static(arg: ir.Expr) -> bool:
    if isinstance(arg, relax.Tuple):
        return all(map(_static, arg.fields))
    return not isinstance(arg.ty, relax.TensorType) or static_tensor(arg)


def _take(checker: _Checker, call: relax.Call) -> ir.Expr:
    data, given = call.args
    if str(call.attrs.mode) != "fast" or not isinstance(given.ty, relax.TensorType):
        return checker.substitute(call)
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    extent = math.prod(shape(data)) if axis is None else shape(data)[axis]
    return op.take(checker.substitute(data), checker.safe(call, given, wrapping(extent)), axis, mode="clip")


def _along_axis(checker: _Checker, call: relax.Call) -> ir.Expr:
    return _replaced(checker, call, wrapping(shape(call.args[0])[int(call.attrs.axis)]))


def _gather_nd(checker: _Checker, call: relax.Call) -> ir.Expr:
    return _by_tuples(checker, call, int(call.attrs.batch_dims))


def _by_tuples(checker: _Checker, call: relax.Call, first: int = 0) -> ir.Expr:
    data, given = call.args[:2]
    return _replaced(checker, call, wrapping(*shape(data)[first : first + shape(given)[-1]]))


def _replaced(checker: _Checker, call: relax.Call, bounds: Bounds) -> ir.Expr:
    safe = checker.safe(call, call.args[1], bounds)
    args = [checker.substitute(arg) for arg in call.args]
    return relax.Call(call.op, [args[0], safe, *args[2:]], call.attrs, call.ty_args)


def _tensors(checker: _Checker, call: relax.Call) -> ir.Expr:
    data, given = call.args[:2]
    if not isinstance(given, relax.Tuple):
        return checker.substitute(call)
    safe = [checker.safe(call, part, wrapping(extent)) for part, extent in zip(given.fields, shape(data), strict=False)]
    rest = [checker.substitute(arg) for arg in call.args[2:]]
    return relax.Call(call.op, [checker.substitute(data), relax.Tuple(safe), *rest], call.attrs, call.ty_args)


def _reverse_sequence(checker: _Checker, call: relax.Call) -> ir.Expr:
    return _replaced(checker, call, ((0, shape(call.args[0])[int(call.attrs.seq_axis)] + 1),))


_RULES: dict[str, Callable[[_Checker, relax.Call], ir.Expr]] = {
    "take": _take,
    "gather_elements": _along_axis,
    "gather_nd": _gather_nd,
    "index_put": _tensors,
    "index_tensor": _tensors,
    "reverse_sequence": _reverse_sequence,
    "scatter_elements": _along_axis,
    "scatter_nd": _by_tuples,
}
