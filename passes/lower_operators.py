"""Give operators without weights their own kernels: pooling, softmax and norms, concatenation, sorting, sums, scattering."""

from __future__ import annotations

import math
from collections.abc import Callable

import tvm
from tvm import ir, relax, tirx

from ..schedules import machines
from ..schedules.operators import concat, narrow, pool, rowwise, scan, scatter, sort
from ..schedules.operators.concat import ConcatSpec
from ..schedules.operators.narrow import NarrowSpec
from ..schedules.operators.pool import PoolSpec
from ..schedules.operators.rowwise import RowSpec
from ..schedules.operators.scan import ScanSpec
from ..schedules.operators.scatter import ScatterSpec
from ..schedules.operators.sort import SortSpec
from ..schedules.registry import Machine
from ..schedules.tiles.spec import ARITHMETIC
from ..schedules.tiles.tile import VectorUnit
from .attributes import kernel_attributes
from .ir import dtype, operator, shape, static_tensor, with_functions
from .module_pass import module_pass

Rule = Callable[[relax.Call], "tuple[object, Callable[..., tirx.PrimFunc], list[relax.Expr]] | None"]


@module_pass(opt_level=0)
class LowerOperators:
    """Replace operators that a kernel family covers by calls of its kernels.

    y = softmax(x)   →   y = call_tir(softmax_0, (x,))

    Operators that no rule takes stay for the generic fallback.
    """

    def __init__(self, unit: Machine) -> None:
        self.unit = unit

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        mutator = _Mutator(mod, self.unit)
        gv = mod.get_global_var("main")
        mutator.builder_.update_func(gv, mutator.visit_expr(mod["main"]))
        return with_functions(mod, dict(mutator.builder_.get().functions_items()))


@relax.expr_functor.mutator
class _Mutator(relax.PyExprMutator):
    def __init__(self, mod: tvm.IRModule, unit: Machine) -> None:
        super().__init__(mod)
        self.unit = unit
        self.kernels: dict[str, tvm.ir.GlobalVar] = {}

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        match = _match(call, self.unit)
        if match is None:
            return call
        spec, family, args = match
        key = repr(spec)
        if key not in self.kernels:
            name = f"{operator(call)}_{len(self.kernels)}"
            func = machines.operator(spec, family, self.unit).with_attrs(
                kernel_attributes(
                    operator(call), "vector", str(spec), getattr(spec, "flops", 0), rows=machines.rows(spec, self.unit)
                )
            )
            self.kernels[key] = self.builder_.add_func(func.with_attr("global_symbol", name), name)
        return relax.call_tir(self.kernels[key], args, _out_types(call))


def has_kernel(call: relax.Call, unit: Machine) -> bool:
    """Whether a call with known types becomes a call of a kernel of its own."""
    return _match(call, unit) is not None


def _match(call: relax.Call, unit: Machine):
    rule = _RULES.get(operator(call))
    if operator(call) == "astype" and isinstance(unit, VectorUnit) and unit.half in (dtype(call), dtype(call.args[0])):
        return None  # conversions are instructions there: generic kernels hold them, with what comes before and after
    return rule(call) if rule else None


def _out_types(call: relax.Call) -> relax.TensorType | list[relax.TensorType]:
    if isinstance(call.ty, relax.TupleType):
        return [relax.TensorType(tuple(field.shape.values), field.dtype) for field in call.ty.fields]
    return relax.TensorType(shape(call), dtype(call))


def _float(expr: relax.Expr) -> bool:
    return isinstance(expr, relax.Var) and static_tensor(expr) and dtype(expr) == "float32"


def _poolable(expr: relax.Expr) -> bool:
    return isinstance(expr, relax.Var) and static_tensor(expr) and dtype(expr) in ARITHMETIC


def _pool(call: relax.Call):
    attrs, data = call.attrs, call.args[0]
    if not _poolable(data) or attrs.layout != "NHWC" or attrs.out_layout not in ("NHWC", ""):
        return None
    kind = operator(call).removesuffix("_pool2d")
    n, h, w, c = shape(data)
    _, out_h, out_w, _ = shape(call)
    kh, kw = (int(size) for size in attrs.pool_size)
    pair = lambda values: tuple(int(value) for value in values)  # noqa: E731
    spec = PoolSpec(
        n, h, w, c, kh, kw, pair(attrs.strides), pair(attrs.padding), pair(attrs.dilation), kind,
        kind == "avg" and bool(attrs.count_include_pad), out_h, out_w, dtype(data),
    )  # fmt: skip
    # With ceil_mode the last window may reach past the padding, and frameworks then count differently.
    if bool(attrs.ceil_mode) and kind == "avg" and _reaches_out(spec):
        return None
    return spec, pool.kernel, [data]


def _reaches_out(spec: PoolSpec) -> bool:
    top, left, bottom, right = spec.pad
    end_h = (spec.out_h - 1) * spec.stride[0] + (spec.kh - 1) * spec.dilation[0] + 1
    end_w = (spec.out_w - 1) * spec.stride[1] + (spec.kw - 1) * spec.dilation[1] + 1
    return end_h > top + spec.h + bottom or end_w > left + spec.w + right


def _adaptive(call: relax.Call):
    data = call.args[0]
    if not _poolable(data) or call.attrs.layout != "NHWC" or shape(call)[1:3] != (1, 1):
        return None
    return PoolSpec.global_average(*shape(data), dtype(data)), pool.kernel, [data]


def _mean(call: relax.Call):
    data = call.args[0]
    if not _poolable(data) or len(shape(data)) != 4 or call.attrs.axis is None:
        return None
    if sorted(int(axis) % 4 for axis in call.attrs.axis) != [1, 2]:
        return None
    return PoolSpec.global_average(*shape(data), dtype(data)), pool.kernel, [data]


def _softmax(call: relax.Call):
    data = call.args[0]
    if not _float(data) or int(call.attrs.axis) % len(shape(data)) != len(shape(data)) - 1:
        return None
    return RowSpec(operator(call), shape(data)), rowwise.kernel, [data]


def _norm(call: relax.Call):
    """layer_norm and rms_norm."""
    kind, data, attrs = operator(call), call.args[0], call.attrs
    rank = len(shape(data)) if static_tensor(data) else 0
    axes = sorted(int(axis) % rank for axis in attrs.axes) if rank else []
    if not _float(data) or 0 in shape(data) or axes != list(range(rank - len(axes), rank)):
        return None
    if kind == "layer_norm" and not (attrs.center and attrs.scale):
        return None
    affine = [None if _is_all(arg, value) else arg for arg, value in zip(call.args[1:], (1.0, 0.0), strict=False)]
    given = [arg for arg in affine if arg is not None]
    if not all(map(_float, given)):
        return None
    scale, bias = (*affine, None)[:2]
    spec = RowSpec(
        kind, shape(data), len(axes), float(attrs.epsilon), has_scale=scale is not None, has_bias=bias is not None
    )
    return spec, rowwise.kernel, [data, *given]


def _is_all(expr: relax.Expr, value: float) -> bool:
    """Whether a tensor is a constant of one number."""
    return isinstance(expr, ir.GenericConst) and bool((expr.value.numpy() == value).all())


def _concat(call: relax.Call):
    parts = call.args[0]
    if not isinstance(parts, relax.Tuple) or not all(isinstance(p, relax.Var) and static_tensor(p) for p in parts.fields):
        return None
    shapes = tuple(shape(part) for part in parts.fields)
    if len(shapes) < 2 or dtype(call) == "bool":
        return None
    spec = ConcatSpec(shapes, int(call.attrs.axis) % len(shapes[0]), dtype(call))
    return spec, concat.kernel, list(parts.fields)


def _sortable(data: relax.Expr) -> bool:
    is_tensor = isinstance(data, relax.Var) and static_tensor(data)
    return is_tensor and dtype(data) in sort.DTYPES and len(shape(data)) > 0 and math.prod(shape(data)) > 0


def _sort(call: relax.Call):
    data, attrs = call.args[0], call.attrs
    if not _sortable(data):
        return None
    axis = int(attrs.axis) % len(shape(data))
    results = "values" if operator(call) == "sort" else "indices"
    index_dtype = dtype(call) if results == "indices" else "int64"
    if index_dtype not in ("int32", "int64"):
        return None
    count = shape(data)[axis]
    spec = SortSpec(shape(data), axis, count, dtype(data), bool(attrs.descending), results, index_dtype)
    return spec, sort.kernel, [data]


def _topk(call: relax.Call):
    data, attrs = call.args[0], call.attrs
    if not _sortable(data) or str(attrs.dtype) not in ("int32", "int64"):
        return None
    axis = int(attrs.axis) % len(shape(data))
    extent, k = shape(data)[axis], int(attrs.k)
    spec = SortSpec(
        shape(data), axis, k if 1 <= k <= extent else extent, dtype(data), bool(attrs.largest), str(attrs.ret_type),
        str(attrs.dtype),
    )  # fmt: skip
    return spec, sort.kernel, [data]


def _scan(call: relax.Call):
    data, attrs = call.args[0], call.attrs
    if not isinstance(data, relax.Var) or not static_tensor(data) or 0 in shape(data) or "bool" in (dtype(data), dtype(call)):
        return None
    # Without an axis: over the flattened tensor.
    over = shape(call) if attrs.axis is None else shape(data)
    axis = 0 if attrs.axis is None else int(attrs.axis) % len(over)
    spec = ScanSpec(over, axis, dtype(data), dtype(call), bool(attrs.exclusive), operator(call) == "cumprod")
    return spec, scan.kernel, [data]


def _astype(call: relax.Call):
    data = call.args[0]
    pair = (dtype(data), dtype(call))
    if not isinstance(data, relax.Var) or not static_tensor(data) or not math.prod(shape(data)):
        return None
    if "float32" not in pair or not set(pair) & set(narrow.NARROW):
        return None
    return NarrowSpec(shape(data), *pair), narrow.kernel, [data]


def _scatter(call: relax.Call):
    if not all(isinstance(arg, relax.Var) and static_tensor(arg) and math.prod(shape(arg)) for arg in call.args):
        return None
    data, indices, updates = call.args
    axis = int(call.attrs.axis) % len(shape(data)) if operator(call) == "scatter_elements" else -1
    spec = ScatterSpec(shape(data), shape(indices), axis, dtype(data), dtype(indices), str(call.attrs.reduction))
    if spec.reduction not in scatter.REDUCTIONS or spec.updates != shape(updates) or dtype(indices) not in ("int32", "int64"):
        return None
    return spec, scatter.kernel, [data, indices, updates]


_RULES: dict[str, Rule] = {
    "astype": _astype,
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
    "adaptive_avg_pool2d": _adaptive,
    "mean": _mean,
    "softmax": _softmax,
    "log_softmax": _softmax,
    "layer_norm": _norm,
    "rms_norm": _norm,
    "concat": _concat,
    "sort": _sort,
    "argsort": _sort,
    "topk": _topk,
    "cumprod": _scan,
    "cumsum": _scan,
    "scatter_elements": _scatter,
    "scatter_nd": _scatter,
}
