"""Fold batch norms, and other scaling by weights, into the weights of the operator before them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import tvm
import tvm_ffi
from tvm import ir, relax
from tvm.relax import op

from .ir import bindings, dtype, operator, shape, static_tensor, uses
from .module_pass import module_pass
from .panels import of_transposed_blocks
from .rebuild import MainRewriter
from .share_weights import LEAST_NBYTES, same_values
from .weights import weight_vars


@module_pass(opt_level=0)
class FoldBatchNorm:
    """Collapse every chain of per-channel (or scalar) multiplications and additions by weights.

    y = conv2d(x, w)                          s = gamma · rsqrt(var + eps)
    z = batch_norm(y, gamma, …)[0]      →     y = conv2d(x, w · s)
    u = z · a + b                             u = y + (beta - mean · s) · a + b      (with s · a for s)

    After a convolution or a product with a weight matrix the scale goes into the weight. A chain after
    anything else becomes one multiplication and one addition. The new factors are expressions over weights. A value that
    is rounded to integers next is not changed, for there a last bit is a whole number; nor are differences of integers. A large
    weight that is scaled differently for several operators is not changed either: it would become as many weights.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        folder = _Folder(mod)
        folded = folder.rewrite()
        several = frozenset(weight for weight, scales in folder.scales.items() if _differ(scales))
        return _Folder(mod, several).rewrite() if several else folded


@dataclass(frozen=True)
class _Affine:
    """The value `base · scale + shift`. Factors have one element, or one for each channel and then rank 1."""

    base: ir.Expr  # a call of a linear operator, not yet emitted, that can take the scale; or a variable
    axis: int | None  # of the channels; None as long as all factors are scalars
    weight: relax.Var | None = None  # of the base in the old main: the first variable with the same value
    scale: ir.Expr | None = None
    shift: ir.Expr | None = None
    name: str = ""  # of the first variable of the chain that tells an ONNX node


class _Folder(MainRewriter):
    def __init__(self, mod: tvm.IRModule, unscaled: frozenset[relax.Var] = frozenset()) -> None:
        super().__init__(mod)
        self.unscaled = unscaled
        self.scales: dict[relax.Var, list[ir.Expr | None]] = {}  # of a large weight, for each of its readers; None: 1
        self.same = same_values(self.main)
        self.weights = weight_vars(self.main)
        self.readers = uses(self.main)
        self.old = {binding.var: binding.value for binding in bindings(self.main)}
        self.norms = {var: value for var, value in self.old.items() if self._is_foldable_norm(var, value)}
        self.exact = _rounded_next(self.old) | _integer_differences(self.old)
        self.chains: dict[relax.Var, _Affine] = {}  # old variable → value that its only reader takes up

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr | None:
        if var in self.norms:
            return None  # comes with its element
        affine = None if var in self.weights | self.exact else self._affine(value)
        if affine is None:
            return self.substitute(value)
        if self._goes_on(var, affine.axis):
            self.chains[var] = affine if affine.name or "@" not in var.name else replace(affine, name=var.name)
            return None
        return self._emit_affine(affine, var.name)

    # Reading: which operators are links of a chain.

    def _affine(self, value: ir.Expr) -> _Affine | None:
        """`value` as a chain, or None if `value` is no link of one."""
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self.norms:
            return self._after_norm(self.norms[value.tuple_value])
        if self._takes_scale(value):
            return _Affine(self.substitute(value), _channel_axis(value), self.same.get(value.args[1], value.args[1]))
        for position, data in enumerate(value.args if isinstance(value, relax.Call) else ()):
            axis = self.chains[data].axis if data in self.chains else None
            if self._is_link(value, position, axis):
                return self._after_binary(value, position)
        return None

    def _goes_on(self, var: relax.Var, axis: int | None) -> bool:
        """Whether the only reader of `var` is the next link of its chain."""
        readers = self.readers.get(var, [])
        if len(readers) != 1 or readers[0] not in self.old or readers[0] in self.exact:
            return False
        reader = self.old[readers[0]]
        if readers[0] in self.norms:
            return axis in (None, int(reader.attrs.axis) % len(shape(var)))
        if not isinstance(reader, relax.Call):
            return False
        return any(arg.same_as(var) and self._is_link(reader, i, axis) for i, arg in enumerate(reader.args))

    def _is_link(self, call: relax.Call, position: int, axis: int | None) -> bool:
        """Whether `call` scales or shifts its argument at `position` by a weight along `axis`."""
        name = operator(call)
        if name not in _ARITHMETIC or (name == "divide" and position == 1):
            return False
        data, factor = call.args[position], call.args[1 - position]
        if not isinstance(data, relax.Var) or data in self.weights or not self._is_weight(factor):
            return False
        if not static_tensor(data) or not static_tensor(factor) or not dtype(data).startswith("float"):
            return False
        along = _axis_of(shape(factor), shape(data))
        return along is not None and (along in (-1, axis) or axis is None)

    def _is_weight(self, expr: ir.Expr) -> bool:
        return isinstance(expr, ir.GenericConst) or expr in self.weights

    def _takes_scale(self, value: ir.Expr) -> bool:
        """Whether `value` is linear in a weight that has its output channels on an axis of its own."""
        name = operator(value)
        if name not in (*_CONVOLUTIONS, *_TRANSPOSED, "matmul") or not static_tensor(value):
            return False
        data, weight = value.args
        if data in self.weights or weight not in self.weights or not dtype(value).startswith("float"):
            return False
        if name == "matmul":
            # Weights in blocks have few bits, as long as nothing scales them.
            return len(shape(weight)) == 2 and len(shape(data)) >= 2 and not of_transposed_blocks(self.old.get, weight)
        return name in _CONVOLUTIONS or int(value.attrs.groups) == 1

    def _is_foldable_norm(self, var: relax.Var, value: ir.Expr) -> bool:
        """A batch norm with known statistics, of which only the normalised tensor is read, and is no weight."""
        if operator(value) != "batch_norm" or value.attrs.training or not static_tensor(value.args[0]):
            return False
        readers = self.readers.get(var, [])
        if not self.weights.isdisjoint(readers):
            return False
        elements = [self.old.get(reader) for reader in readers]
        only_first = all(isinstance(e, relax.TupleGetItem) and e.index == 0 for e in elements)
        return only_first and all(self._is_weight(arg) for arg in value.args[1:])

    # Writing: chains grow, then are emitted. Everything here is over variables of the new main.

    def _start(self, data: relax.Var) -> _Affine:
        return self.chains.get(data) or _Affine(self.substitute(data), None)

    def _after_norm(self, call: relax.Call) -> _Affine:
        gamma, beta, mean, variance = (self._flat(arg) for arg in call.args[1:])
        scale = self.emit(op.rsqrt(self.emit(op.add(variance, relax.const(call.attrs.epsilon, dtype(variance))))))
        if call.attrs.scale:
            scale = self._multiply(scale, gamma)
        shift = self._negated(self._multiply(mean, scale))
        if call.attrs.center:
            shift = self._add(shift, beta)
        axis = int(call.attrs.axis) % len(shape(call.args[0]))
        return self._scaled(replace(self._start(call.args[0]), axis=axis), scale, shift)

    def _after_binary(self, call: relax.Call, position: int) -> _Affine:
        data, factor = call.args[position], call.args[1 - position]
        along = _axis_of(shape(factor), shape(data))
        factor = self._flat(factor)
        affine = self._start(data)
        if along >= 0:
            affine = replace(affine, axis=along)
        match operator(call), position:
            case "multiply", _:
                return self._scaled(affine, factor, None)
            case "divide", _:
                one = relax.const(1.0, dtype(factor))
                inverse = _fold(lambda a, b: a / b, one, factor) or self.emit(op.divide(one, factor))
                return self._scaled(affine, inverse, None)
            case "add", _:
                return self._scaled(affine, None, factor)
            case "subtract", 0:
                return self._scaled(affine, None, self._negated(factor))
            case _:
                return self._scaled(affine, relax.const(-1.0, dtype(factor)), factor)

    def _scaled(self, affine: _Affine, scale: ir.Expr | None, shift: ir.Expr | None) -> _Affine:
        """(base · s + t) · scale + shift"""
        return replace(
            affine,
            scale=self._multiply(affine.scale, scale),
            shift=self._add(self._multiply(affine.shift, scale) if affine.shift is not None else None, shift),
        )

    def _multiply(self, a: ir.Expr | None, b: ir.Expr | None) -> ir.Expr | None:
        if a is None or b is None:
            return b if a is None else a
        return _fold(lambda x, y: x * y, a, b) or self.emit(op.multiply(a, b))

    def _add(self, a: ir.Expr | None, b: ir.Expr | None) -> ir.Expr | None:
        if a is None or b is None:
            return b if a is None else a
        return _fold(lambda x, y: x + y, a, b) or self.emit(op.add(a, b))

    def _negated(self, factor: ir.Expr) -> ir.Expr:
        return self._multiply(factor, relax.const(-1.0, dtype(factor)))

    def _flat(self, factor: ir.Expr) -> ir.Expr:
        """A factor of the old main at rank 1, a single element at rank 0."""
        extent = math.prod(shape(factor))
        return self.emit(self.reshape(self.substitute(factor), (extent,) if extent > 1 else ()))

    def _along(self, factor: ir.Expr, axis: int | None, rank: int) -> ir.Expr:
        """A factor in the shape that broadcasts along `axis` of a tensor."""
        if not shape(factor) or axis == rank - 1:
            return factor
        extents = tuple(shape(factor)[0] if i == axis else 1 for i in range(rank))
        return self.emit(self.reshape(factor, extents))

    def _derived(self, expr: ir.Expr | None) -> ir.Expr | None:
        """A factor as an expression of the weights of main."""
        value = self.values.get(expr, expr) if isinstance(expr, relax.Var) else expr
        if not isinstance(value, relax.Call):
            return value
        return relax.Call(value.op, [self._derived(arg) for arg in value.args], value.attrs, value.ty_args)

    def _emit_affine(self, affine: _Affine, name: str) -> ir.Expr:
        value, scale = affine.base, affine.scale
        if isinstance(value, relax.Call):
            if 4 * math.prod(shape(affine.weight)) >= LEAST_NBYTES:
                self.scales.setdefault(affine.weight, []).append(self._derived(scale))
            if scale is not None and affine.weight not in self.unscaled:
                data, weight = value.args
                channels = _weight_channel_axis(value)
                weight = self.emit(op.multiply(weight, self._along(scale, channels, len(shape(weight)))))
                value, scale = relax.Call(value.op, [data, weight], value.attrs, value.ty_args), None
            value = self.emit(value, affine.name or name)
        rank = len(shape(value))
        for factor, apply in ((scale, op.multiply), (affine.shift, op.add)):
            if factor is not None:
                value = self.emit(apply(value, self._along(factor, affine.axis, rank)), name)
        return value


_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
_TRANSPOSED = ("conv1d_transpose", "conv2d_transpose", "conv3d_transpose")
_ARITHMETIC = ("add", "subtract", "multiply", "divide")


def _differ(scales: list[ir.Expr | None]) -> bool:
    return any((scale is None) != (scales[0] is None) or not tvm_ffi.structural_equal(scale, scales[0]) for scale in scales[1:])


def _rounded_next(values: dict[relax.Var, ir.Expr]) -> set[relax.Var]:
    """The variables from which only arithmetic leads to a rounding, sums of products among them."""
    found: set[relax.Var] = set()
    ahead = [value.args[0] for value in values.values() if operator(value) == "round"]
    while ahead:
        var = ahead.pop()
        name = operator(values.get(var)) if isinstance(var, relax.Var) and var not in found else ""
        if name in (*_CONVOLUTIONS, *_TRANSPOSED, *_ARITHMETIC, "matmul"):
            found.add(var)
            ahead.extend(values[var].args if name in _ARITHMETIC else ())
    return found


def _integer_differences(values: dict[relax.Var, ir.Expr]) -> set[relax.Var]:
    """The variables that are integers without a zero point."""
    integers = {
        var
        for var, value in values.items()
        if operator(value) == "clip" or (operator(value) == "astype" and "int" in dtype(value.args[0]))
    }
    return {var for var, value in values.items() if operator(value) == "subtract" and value.args[0] in integers}


def _channel_axis(call: relax.Call) -> int:
    if operator(call) == "matmul":
        return len(shape(call)) - 1
    return (call.attrs.out_layout or call.attrs.data_layout).index("C")


def _weight_channel_axis(call: relax.Call) -> int:
    return 1 if operator(call) == "matmul" else call.attrs.kernel_layout.index("O")


def _axis_of(factor: tuple[int, ...], data: tuple[int, ...]) -> int | None:
    """The one axis of `data` that a factor of this shape varies along; -1 for a scalar, None if there are more."""
    if len(factor) > len(data):
        return None
    varied = [len(data) - len(factor) + i for i, extent in enumerate(factor) if extent != 1]
    if not varied:
        return -1
    return varied[0] if len(varied) == 1 and data[varied[0]] == math.prod(factor) else None


def _fold(compute, a: ir.Expr, b: ir.Expr) -> ir.Expr | None:
    """The result for two constants."""
    if isinstance(a, ir.GenericConst) and isinstance(b, ir.GenericConst):
        with np.errstate(all="ignore"):
            return relax.const(compute(a.value.numpy(), b.value.numpy()), dtype(a))
    return None
