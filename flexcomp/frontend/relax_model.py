"""Relax modules: one form for all of them, weights out of the IR, static shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tvm
from tvm import relax

from flexcomp.deferred import Array, Deferred, content_digest, elements, fact
from flexcomp.errors import InputError, ModelError, UnsupportedModelError

_LOOKED_AT, _AT_ONCE = 16, 8  # places of a weight, and elements there, before it is compared with others as a whole


def detach_weights(
    mod: tvm.IRModule, params: Mapping[str, object] | Sequence[object] | None = None
) -> tuple[tvm.IRModule, tuple[Array, ...]]:
    """Move every weight into a parameter of main and return the weights' values beside the module.

        main(x) { add(x, const[4, 8]) }                           →  main(x, w) { add(x, w) }, [const]
        main(x, w) attributes {num_input: 1, params: [tensor]}    →  main(x, w), [tensor]

    Constants of one element stay. Weights that nothing reads are dropped, equal ones are merged.
    """
    mod = _only_main(mod)
    main = mod["main"]
    inputs, weights = _split_parameters(main, params)
    used = set(relax.analysis.all_vars(main.body))
    weights = {var: value for var, value in weights.items() if var in used}
    body, lifted = _lift_constants(main.body)
    weights.update(lifted)
    body, weights = _merge_equal(body, weights)

    attrs = {k: v for k, v in (main.attrs or {}).items() if k not in ("params", "num_input")}
    new_main = relax.Function([*inputs, *weights], body, main.ret_ty, main.is_pure).with_attrs(
        {"global_symbol": "main", **attrs, "num_input": len(inputs)}
    )
    mod = mod.clone()
    mod.update_func(mod.get_global_var("main"), new_main)
    return mod, tuple(weights.values())


def _only_main(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with main as its only Relax function."""
    if "main" not in mod or not isinstance(mod["main"], relax.Function):
        names = ", ".join(sorted(gv.name_hint for gv in mod.get_global_vars())) or "nothing"
        raise ModelError(f"the module has no Relax function main; it holds {names}")

    def others(mod: tvm.IRModule) -> list[str]:
        functions = mod.functions_items()
        return [gv.name_hint for gv, f in functions if isinstance(f, relax.Function) and gv.name_hint != "main"]

    if others(mod):
        mod = relax.transform.InlinePrivateFunctions()(mod)
        mod = relax.transform.DeadCodeElimination(["main"])(mod)
    if others(mod):
        raise UnsupportedModelError(
            f"main calls other Relax functions ({', '.join(others(mod))}); make them private, so that they are inlined"
        )
    return mod


def _split_parameters(
    main: relax.Function, params: Mapping[str, object] | Sequence[object] | None
) -> tuple[list[relax.Var], dict[relax.Var, Array]]:
    attrs = main.attrs or {}
    if params is None:
        params = attrs.get("params", [])
    if isinstance(params, Mapping) and isinstance(params.get("main"), list | tuple):
        params = params["main"]  # detach_params: one list for each function
    if isinstance(params, Mapping):
        by_name = {p.name: p for p in main.params}
        unknown = sorted(set(params) - set(by_name))
        if unknown:
            raise InputError(f"params names {', '.join(unknown)}; main's parameters are {', '.join(by_name)}")
        chosen = {p: params[p.name] for p in main.params if p.name in params}
    else:
        count = len(params)
        if count > len(main.params):
            raise InputError(f"params holds {count} weights, but main takes {len(main.params)} parameters")
        chosen = dict(zip(main.params[len(main.params) - count :], params, strict=True))
    inputs = [p for p in main.params if p not in chosen]
    if "num_input" in attrs and int(attrs["num_input"]) != len(inputs):
        declared = int(attrs["num_input"])
        raise InputError(
            f"main declares {declared} inputs and {len(main.params) - declared} weights, but {len(chosen)} weights "
            "were given in params"
        )
    return inputs, {p: _as_array(p, value) for p, value in chosen.items()}


def _as_array(param: relax.Var, value: object) -> Array:
    deferred = isinstance(value, Deferred)
    array = value if deferred else value.numpy() if isinstance(value, tvm.runtime.Tensor) else np.asarray(value)
    shape, dtype = tuple(int(d) for d in param.ty.shape.values), str(param.ty.dtype)
    if array.shape != shape or str(array.dtype) != dtype:
        raise InputError(f"weight {param.name!r} must be {dtype}{shape}; given was {array.dtype}{array.shape}")
    return array if deferred else np.ascontiguousarray(array)


def _lift_constants(body: relax.Expr) -> tuple[relax.Expr, dict[relax.Var, Array]]:
    lifter = _ConstantLifter()
    return lifter.visit_expr(body), lifter.lifted


@relax.expr_functor.mutator
class _ConstantLifter(relax.PyExprMutator):
    """Replaces constants of more than one element by variables."""

    def __init__(self):
        super().__init__()
        self.lifted: dict[relax.Var, Array] = {}

    def visit_generic_const_(self, const: tvm.ir.GenericConst) -> relax.Expr:
        if not isinstance(const.ty, relax.TensorType):
            return const
        value = const.value.numpy()
        if value.size == 1 and value.ndim <= 1:
            return const
        var = relax.Var(f"constant_{len(self.lifted)}", const.ty)
        self.lifted[var] = value
        return var


def _merge_equal(
    body: relax.Expr, weights: dict[relax.Var, Array]
) -> tuple[relax.Expr, dict[relax.Var, Array]]:
    alike: dict[tuple, list[relax.Var]] = {}  # with the same type and the same few bytes
    replaced: dict[relax.Var, relax.Var] = {}
    for var, value in weights.items():
        known = alike.setdefault((tuple(value.shape), str(value.dtype), fact(_looked_at, value)), [])
        equal = next((other for other in known if _same_bytes(weights[other], value)), None)
        if equal is None:
            known.append(var)
        else:
            replaced[var] = equal
    if replaced:
        body = _Renamer(replaced).visit_expr(body)
    return body, {var: value for var, value in weights.items() if var not in replaced}


def _looked_at(value: Array) -> bytes:
    """Some elements."""
    some, places = elements(value), {value.size * place // _LOOKED_AT for place in range(_LOOKED_AT)}
    return b"".join(some(place, min(place + _AT_ONCE, value.size)).tobytes() for place in sorted(places))


def _same_bytes(one: Array, other: Array) -> bool:
    """Of arrays of one type; NaN is equal to itself, and -0.0 is not 0.0."""
    if isinstance(one, Deferred) or isinstance(other, Deferred):  # which are read once for all shapes
        return content_digest(one) == content_digest(other)
    return np.array_equal(*(np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (one, other)))


@relax.expr_functor.mutator
class _Renamer(relax.PyExprMutator):
    def __init__(self, replaced: dict[relax.Var, relax.Var]):
        super().__init__()
        self.replaced = replaced

    def visit_var_(self, var: relax.Var) -> relax.Expr:
        return self.replaced.get(var, var)
