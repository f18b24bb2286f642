"""Which values of `main` depend on weights only: the weight side, evaluated at build time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import tvm
from tvm import ir, relax

from .ir import bindings, num_inputs, operator, shape, with_functions
from .panels import OfBlocks, of_blocks, of_transposed_blocks


@dataclass(frozen=True)
class KeptWeight:
    """The weights of a layer, a variable of main."""

    main: relax.Function
    values: Mapping[relax.Var, ir.Expr]  # of main, by variable
    var: relax.Var
    axis: int | None  # of the output channels, if one of its axes is
    may_be_in_blocks: bool = False  # whether kernels read weights in blocks of inputs (schedules/tiles/blocks.py)
    asked_again: bool = False  # whether the layer is asked about again, and this answer only decides what it multiplies

    @property
    def multiplies_blocks(self) -> bool:
        """Whether a dense layer reads it, whose kernels may multiply weights in blocks; tables of embeddings have rows first."""
        return self.may_be_in_blocks and self.axis == 1

    def made_of(self) -> KeptWeight:
        """The weight of which this is only a reshape or permutation."""
        var, axis = self.var, self.axis
        while (name := operator(value := self.values.get(var))) in ("permute_dims", "reshape"):
            if axis is not None:
                axis = _permuted(value, axis) if name == "permute_dims" else _reshaped(value, axis)
            var = value.args[0]
        return replace(self, var=var, axis=axis)

    def in_blocks(self) -> OfBlocks | None:
        """Its integers, scales and zero points, if the model has it in blocks and kernels read these."""
        if not self.may_be_in_blocks:
            return None
        if self.axis == 0:
            return of_blocks(self.values.get(self.var))
        return of_transposed_blocks(self.values.get, self.var)

    def function(self) -> relax.Function:
        """As `function_of`."""
        return function_of(self.main, self.values, self.var)

    @property
    def index(self) -> int | None:
        """The number of this weight of main; None for computed values."""
        params = list(self.main.params[num_inputs(self.main) :])
        return params.index(self.var) if self.var in params else None


# Names of the variables of a layer, and its weights → the element type to keep them in.
WeightType = Callable[[Sequence[str], KeptWeight], str]


def function_of(main: relax.Function, values: Mapping[relax.Var, ir.Expr], wanted: relax.Var) -> relax.Function:
    """A function of all weights of `main` that returns `wanted`, which depends on weights only. `values` are by variable."""
    order: list[relax.Var] = []
    seen: set[relax.Var] = set()
    ahead = [(wanted, False)]
    while ahead:  # depth first: for networks of thousands of weights it looks at no other bindings
        var, follows = ahead.pop()
        if follows:
            order.append(var)
        elif var in values and var not in seen:
            seen.add(var)
            ahead.append((var, True))
            ahead += [(operand, False) for operand in relax.analysis.free_vars(values[var])]
    block = relax.BindingBlock([relax.VarBinding(var, values[var]) for var in order])
    return relax.Function(list(main.params[num_inputs(main) :]), relax.SeqExpr([block] if order else [], wanted), wanted.ty)


def _permuted(call: relax.Call, axis: int) -> int:
    axes, rank = call.attrs.axes, len(shape(call))
    return rank - 1 - axis if axes is None else int(axes[axis]) % rank


def _reshaped(call: relax.Call, axis: int) -> int | None:
    """The operand's axis that is the result's axis `axis`."""
    before, after = shape(call.args[0]), shape(call)
    places = [i for i, n in enumerate(before) if n == after[axis] and math.prod(before[:i]) == math.prod(after[:axis])]
    return places[0] if places else None


def weight_vars(main: relax.Function) -> set[relax.Var]:
    """The weight parameters of `main` and every variable computed from them and constants alone."""
    result = set(main.params[num_inputs(main) :])
    for binding in bindings(main):
        value = binding.value
        operands = value.args if isinstance(value, relax.Call) else [value]
        if isinstance(value, relax.Call) and not isinstance(value.op, ir.Op):
            continue
        if all(_from_weights(operand, result) for operand in operands):
            result.add(binding.var)
    return result


def weights_first(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with the weight side of main before all else."""
    main = mod["main"]
    on_weights = weight_vars(main)
    ordered = sorted(bindings(main), key=lambda binding: binding.var not in on_weights)
    body = relax.SeqExpr([relax.DataflowBlock(ordered)], main.body.body)
    attrs = dict(main.attrs.items()) if main.attrs else {}
    changed = relax.Function(list(main.params), body, main.ret_ty, main.is_pure).with_attrs(attrs)
    functions = {gv: func for gv, func in mod.functions_items() if gv.name_hint != "main"}
    return with_functions(mod, {**functions, mod.get_global_var("main"): changed})


def _from_weights(expr: ir.Expr, known: set[relax.Var]) -> bool:
    if isinstance(expr, relax.Var):
        return expr in known
    if isinstance(expr, relax.Tuple):
        return all(_from_weights(part, known) for part in expr.fields)
    if isinstance(expr, relax.TupleGetItem):
        return _from_weights(expr.tuple_value, known)
    return not isinstance(expr, relax.Call)
