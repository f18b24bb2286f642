"""Group every anchor operator with its epilogue into one layer function."""

from __future__ import annotations

import math

import tvm
from tvm import ir, relax

from .attributes import DTYPE, FIRST_TAPS, INTEGERS, LAYER, WEIGHTS
from .integers import integer_ranges
from .ir import bindings, dtype, operator, shape, static_tensor, uses, values_of, with_functions
from .layers import ANCHORS, ELEMENTWISE, scalar
from .module_pass import module_pass
from .panels import lacking
from .weights import KeptWeight, WeightType, weight_vars

# A longer chain than this is no epilogue any more; the bound also limits the search.
_LONGEST_EPILOGUE = 32
_MOST = 255  # by which integers of 8 bits differ
_BY_NUMBERS = ("add", "subtract", "multiply", "divide")


@module_pass(opt_level=0)
class FuseLayers:
    """Replace an anchor operator and the elementwise operators that follow by a call of a layer function.

    c = conv2d(x, w)             y = layer(x, w, b, r)    with
    d = add(c, b)           →      def layer(x, w, b, r): the same operators,
    e = add(d, r)                  attribute flexcomp.layer = "conv2d"
    y = relu(e)

    An anchor is an NHWC convolution, or a matrix product, in float32. Its epilogue takes operators while all
    their other operands are scalars, per-channel weights or tensors of the output's shape, and ends where a
    value is needed elsewhere. Operators that only scale or shift such a tensor are fused, too. A reshape that keeps the channels
    is no obstacle: nothing moves. Where two anchors could take the same operator, the later one does.

    `weight_type` says in which element type a layer's weights are kept: flexcomp.dtype = "float16". Kernels of plain weights
    widen them in registers; kernels of transformed weights have float32 weights, made of the same rounded values.
    Where a layer's input holds integers that 8 bits have, flexcomp.integers says which is the least.
    """

    def __init__(self, weight_type: WeightType = lambda names, weight: "float32") -> None:
        self.weight_type = weight_type

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        main = mod["main"]
        groups = _groups(main)
        return _Rewriter(mod, main, groups, self.weight_type).rewrite() if groups else mod


def _groups(main: relax.Function) -> dict[relax.Var, list[relax.VarBinding]]:
    """Layers by the variable that ends them; each is its bindings in order, the anchor first."""
    order = list(bindings(main))
    from_weights = weight_vars(main)
    readers = uses(main)
    at = {binding.var: position for position, binding in enumerate(order)}
    taken: set[relax.Var] = set()
    groups: dict[relax.Var, list[relax.VarBinding]] = {}
    for position in reversed(range(len(order))):
        anchor = order[position]
        if anchor.var in from_weights or not _is_anchor(anchor.value, from_weights):
            continue
        group = _grow(order, position, at, from_weights, readers, taken)
        taken.update(binding.var for binding in group)
        groups[group[-1].var] = group
    return groups


def _is_anchor(value: ir.Expr, from_weights: set[relax.Var]) -> bool:
    name = operator(value)
    if name not in ANCHORS or not all(static_tensor(arg) and dtype(arg) == "float32" for arg in value.args):
        return False
    data, weight = value.args
    if not isinstance(data, relax.Var) or not isinstance(weight, relax.Var) or data in from_weights:
        return False
    if name == "conv2d":
        attrs = value.attrs
        layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
        return weight in from_weights and layouts == ("NHWC", "OHWI", "NHWC")
    if weight in from_weights and len(shape(weight)) == 2:
        return len(shape(data)) >= 2
    left, right = shape(data), shape(weight)
    if weight in from_weights or len(left) < 2 or len(right) < 2:
        return False
    whole = math.prod(shape(value)[:-2])
    return all(math.prod(side[:-2]) in (1, whole) for side in (left, right))


def _grow(order, position, at, from_weights, readers, taken) -> list[relax.VarBinding]:
    """The longest epilogue of the anchor at `position` of which only the end is needed elsewhere.

    Only readers of a member can become members. `at` has the positions of variables, `readers` those that read them.
    """
    anchor = order[position]
    out_shape = shape(anchor.var)
    weighted = anchor.value.args[1] in from_weights
    group = [anchor]
    members = {anchor.var}
    best = [anchor]
    ahead = sorted(at[reader] for reader in set(readers.get(anchor.var, [])) - {anchor.var})
    while ahead and len(group) <= _LONGEST_EPILOGUE:
        binding = order[ahead.pop(0)]
        if binding.var in taken or not _fits(binding, members, out_shape, from_weights, weighted):
            continue
        scaling = _scaling(binding, members, order, at, readers, taken)
        group += [*scaling, binding]
        members.update(inner.var for inner in (*scaling, binding))
        ahead = sorted({*ahead, *(at[reader] for reader in readers.get(binding.var, []) if reader != binding.var)})
        if all(reader in members for inner in group[:-1] for reader in readers.get(inner.var, [])) and all(
            inner.var not in readers.get(inner.var, []) for inner in group[:-1]
        ):
            best = list(group)
    return best


def _scaling(binding, members, order, at, readers, taken) -> list[relax.VarBinding]:
    """The operations with numbers that make the tensors which only `binding` reads; in order."""
    found: list[relax.VarBinding] = []
    ahead = [arg for arg in binding.value.args if isinstance(arg, relax.Var) and arg not in members]
    while ahead:
        arg = ahead.pop()
        maker = order[at[arg]] if arg in at and arg not in taken else None
        if maker is None or operator(maker.value) not in _BY_NUMBERS or len(readers.get(arg, [])) != 1:
            continue
        tensors = [operand for operand in maker.value.args if scalar(operand) is None]
        if len(tensors) == 1 and static_tensor(tensors[0]) and _same_type(tensors[0], arg):
            found.insert(0, maker)
            ahead += tensors
    return found


def _same_type(a: ir.Expr, b: ir.Expr) -> bool:
    return shape(a) == shape(b) and dtype(a) == dtype(b) == "float32"


def _fits(binding, members, out_shape, from_weights, weighted: bool) -> bool:
    call = binding.value
    name = operator(call)
    if name not in (*ELEMENTWISE, "reshape") or not static_tensor(binding.var) or dtype(binding.var) != "float32":
        return False
    if not _same_rows(binding.var, out_shape) or not any(arg in members for arg in call.args if isinstance(arg, relax.Var)):
        return False
    if name == "reshape":
        return True
    if name == "prelu" and int(call.attrs.axis) % len(shape(binding.var)) != len(shape(binding.var)) - 1:
        return False
    for arg in call.args:
        if scalar(arg) is not None or (isinstance(arg, relax.Var) and arg in members):
            continue
        if not isinstance(arg, relax.Var) or not static_tensor(arg) or dtype(arg) != "float32":
            return False
        if arg in from_weights:
            per_channel = shape(arg)[-1:] in (out_shape[-1:], (1,)) and math.prod(shape(arg)[:-1]) == 1
            if not per_channel or not weighted:
                return False
        elif shape(arg) != shape(binding.var):
            return False
    return True


def _same_rows(value: relax.Var, out_shape: tuple[int, ...]) -> bool:
    """As many elements in rows of as many channels: the same memory, whatever the other axes are called."""
    return shape(value)[-1:] == out_shape[-1:] and math.prod(shape(value)) == math.prod(out_shape)


class _Rewriter:
    def __init__(self, mod: tvm.IRModule, main: relax.Function, groups: dict, weight_type: WeightType) -> None:
        self.mod, self.main, self.groups, self.weight_type = mod, main, groups, weight_type
        self.inner = {binding.var for group in groups.values() for binding in group[:-1]}
        self.from_weights, self.values = weight_vars(main), values_of(main)
        self.ranges = integer_ranges(main)
        self.builder = relax.BlockBuilder(mod.clone())

    def rewrite(self) -> tvm.IRModule:
        main, builder = self.main, self.builder
        returned = main.body.body
        outputs = set(returned.fields) if isinstance(returned, relax.Tuple) else {returned}
        replaced: dict[relax.Var, relax.Var] = {}

        def substitute(expr):
            return relax.expr_functor.PyExprMutator.visit_expr(_Substitute(replaced), expr)

        params = list(main.params)
        with builder.function("rewritten", params, attrs=dict(main.attrs.items()) if main.attrs else None):
            with builder.dataflow():
                for binding in bindings(main):
                    if binding.var in self.inner:
                        continue
                    group = self.groups.get(binding.var)
                    value = self._call(group, replaced) if group else substitute(binding.value)
                    emit = builder.emit_output if binding.var in outputs else builder.emit
                    # By its anchor, the layer's main operator.
                    replaced[binding.var] = emit(value, name_hint=(group[0] if group else binding).var.name)
            builder.emit_func_output(substitute(returned))
        result = builder.get()
        functions = {gv: func for gv, func in result.functions_items() if gv.name_hint not in ("main", "rewritten")}
        functions[self.mod.get_global_var("main")] = result["rewritten"].with_attr("global_symbol", "main")
        return with_functions(self.mod, functions)

    def _call(self, group: list[relax.VarBinding], replaced: dict) -> relax.Call:
        members = {binding.var for binding in group}
        args: list[relax.Var] = []
        for binding in group:
            for arg in binding.value.args:
                if isinstance(arg, relax.Var) and arg not in members and arg not in args:
                    args.append(arg)
        params = [relax.Var(f"p{i}", arg.ty) for i, arg in enumerate(args)]
        inner = dict(zip(args, params, strict=True))
        name = operator(group[0].value)
        weights = [i for i, arg in enumerate(args) if arg in self.from_weights]
        attrs = {LAYER: name, WEIGHTS: weights}
        kept = group[0].value.args[1]
        if kept in self.from_weights:
            weight = KeptWeight(self.main, self.values, kept, 1 if name == "matmul" else 0, may_be_in_blocks=name == "matmul")
            dtype = self.weight_type([binding.var.name for binding in group], weight)
            attrs |= {DTYPE: dtype} if dtype != "float32" else {}
            low, high = self.ranges.get(group[0].value.args[0], (0.0, math.inf))
            attrs |= {INTEGERS: int(low)} if low <= 0 <= high <= low + _MOST else {}
            attrs |= {FIRST_TAPS: found} if (found := lacking(self.values.get(kept))) else {}
        builder = relax.BlockBuilder()
        with builder.function("layer", params, private=True, attrs=attrs):
            with builder.dataflow():
                for position, binding in enumerate(group):
                    value = relax.expr_functor.PyExprMutator.visit_expr(_Substitute(inner), binding.value)
                    last = position == len(group) - 1
                    inner[binding.var] = builder.emit_output(value) if last else builder.emit(value)
            builder.emit_func_output(inner[group[-1].var])
        gv = self.builder.add_func(builder.get()["layer"], f"layer_{name}")
        return relax.Call(gv, [replaced.get(arg, arg) for arg in args])


@relax.expr_functor.mutator
class _Substitute(relax.PyExprMutator):
    """Replace variables."""

    def __init__(self, by: dict[relax.Var, relax.Var]) -> None:
        super().__init__()
        self.by = by

    def visit_var_(self, var: relax.Var) -> relax.Expr:
        return self.by.get(var, var)

    def visit_dataflow_var_(self, var: relax.DataflowVar) -> relax.Expr:
        return self.by.get(var, var)
