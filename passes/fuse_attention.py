"""Compute attention by one kernel, without a tensor of queries × keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import tvm
from tvm import ir, relax, tirx
from tvm.relax import op

from ..schedules import machines
from ..schedules.operators import attention
from ..schedules.operators.attention import Access, AttentionSpec
from ..schedules.tiles.tile import VectorUnit
from .attributes import kernel_attributes
from .ir import bindings, dtype, operator, shape, static_tensor, uses
from .layers import scalar
from .module_pass import module_pass
from .rebuild import MainRewriter, permuted_axes
from .views import View, access_of, readable, view_of
from .weights import function_of, weight_vars

# What hides a score for certain: none comes near it from the other side.
_HIDDEN = -1e30

Evaluate = Callable[[relax.Function], Sequence[np.ndarray]]


@module_pass(opt_level=0)
class FuseAttention:
    """Replace the products around a softmax by one call of an attention kernel.

    s = matmul(q, k)                 float32[…, queries, keys]
    s = where(m, s * 0.125, -inf)    or add(s, m), or nothing        →   y = call_tir(attention_0, (q, k, v, m))
    y = matmul(softmax(s), v)

    q, k and v are read in place out of the tensors that they are slices, reshapes and permutations of, and y is written
    in the order in which a permutation after it wants it. A mask is transposed, of several that are added the sum; one
    that is known to be causal goes, and with it the work on what it hides. `evaluate` gives the result of a function of
    the weights of `main`.
    """

    def __init__(self, unit: VectorUnit, evaluate: Evaluate) -> None:
        self.unit, self.evaluate = unit, evaluate

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        fuser = _Fuser(mod, self.unit, self.evaluate)
        return fuser.rewrite() if fuser.matches else mod


@dataclass(frozen=True)
class _Mask:
    """What is done to scores before the softmax."""

    kind: str  # "add" or "where"
    tensor: relax.Var
    fill: float = 0.0
    hides: bool = False  # where the tensor is true, not where it is false
    others: tuple[relax.Var, ...] = ()  # added besides


@dataclass(frozen=True)
class _Match:
    """Attention in `main`; q, k and v are the operands of the products."""

    q: relax.Var
    k: relax.Var
    v: relax.Var
    lead: tuple[int, int]  # batch and heads
    scale: float = 1.0
    mask: _Mask | None = None
    joins: bool = False  # heads are permuted behind the queries


@dataclass
class _Matcher:
    main: relax.Function
    values: dict[relax.Var, ir.Expr] = field(init=False)

    def __post_init__(self) -> None:
        self.values = {binding.var: binding.value for binding in bindings(self.main)}
        self.readers = uses(self.main)
        self.from_weights = weight_vars(self.main)

    def matches(self) -> dict[relax.Var, _Match]:
        """Attention by the variable that it ends with."""
        found = {}
        for var, value in self.values.items():
            match = self._match(value) if operator(value) == "matmul" else None
            if match is None:
                continue
            readers = self.readers.get(var, [])
            follower = self.values.get(readers[0]) if len(readers) == 1 else None
            if operator(follower) == "permute_dims" and permuted_axes(follower) == [0, 2, 1, 3]:
                found[readers[0]] = replace(match, joins=True)
            else:
                found[var] = match
        return found

    def _only(self, var: ir.Expr) -> ir.Expr | None:
        """What `var` is bound to, if it is float32 and nothing else reads it."""
        alone = isinstance(var, relax.Var) and len(self.readers.get(var, [])) == 1
        return self.values.get(var) if alone and static_tensor(var) and dtype(var) == "float32" else None

    def _match(self, mix: relax.Call) -> _Match | None:
        probabilities, v = mix.args
        softmax = self._unviewed(probabilities)
        if operator(softmax) != "softmax" or not isinstance(v, relax.Var) or dtype(v) != "float32":
            return None
        full = shape(softmax)
        if int(softmax.attrs.axis) % len(full) != len(full) - 1 or not 2 <= len(full) <= 4:
            return None
        lead = (1,) * (4 - len(full)) + full[:-2]
        products = self._products(softmax.args[0], lead)
        if products is None:
            return None
        call, scale, mask = products
        q, k = call.args
        operands = all(isinstance(x, relax.Var) and static_tensor(x) and dtype(x) == "float32" for x in (q, k, v))
        if not operands or any(math.prod(shape(x)[:-2]) != math.prod(lead) for x in (q, k, v)):
            return None
        return None if q in self.from_weights and k in self.from_weights else _Match(q, k, v, lead, scale, mask)

    def _unviewed(self, var: ir.Expr) -> ir.Expr | None:
        """What `var` is bound to, before reshapes that keep its matrices."""
        value = self._only(var)
        while operator(value) == "reshape" and shape(value)[-2:] == shape(value.args[0])[-2:]:
            value = self._only(value.args[0])
        return value

    def _products(self, scores: ir.Expr, lead: tuple[int, int]):
        """The product that scores come from, their scale and their mask."""
        value, scale, mask = self._unviewed(scores), 1.0, None
        while value is not None:
            name = operator(value)
            if name == "matmul":
                return value, scale, mask
            if name in ("multiply", "divide") and (factor := scalar(value.args[1])):
                scale *= factor if name == "multiply" else 1.0 / factor
                value = self._unviewed(value.args[0])
                continue
            # A factor met before the mask was applied after it.
            found = self._masked(value, lead) if scale == 1.0 else None
            if found is None:
                return None
            inner, earlier = found
            mask = earlier if mask is None else self._both(earlier, mask)
            if mask is None:
                return None
            value = self._unviewed(inner)
        return None

    def _both(self, first: _Mask, second: _Mask) -> _Mask | None:
        """One mask for two that are added; their sum is no larger than the scores, which it takes the place of."""
        if {first.kind, second.kind} != {"add"}:
            return None
        return replace(first, others=(second.tensor, *second.others))

    def _masked(self, call: relax.Call, lead: tuple[int, int]) -> tuple[ir.Expr, _Mask] | None:
        name, args = operator(call), getattr(call, "args", ())
        if name == "add":
            for inner, tensor in (args, reversed(args)):
                if self._reaches_product(inner) and self._broadcasts(tensor, shape(call), lead):
                    return (inner, _Mask("add", tensor)) if dtype(tensor) == "float32" else None
        elif name == "where" and self._broadcasts(args[0], shape(call), lead):
            for inner, fill, hides in ((args[1], args[2], False), (args[2], args[1], True)):
                if (value := scalar(fill)) is not None and self._reaches_product(inner):
                    return inner, _Mask("where", args[0], value, hides)
        return None

    def _reaches_product(self, var: ir.Expr) -> bool:
        value = self._unviewed(var)
        if operator(value) == "add":
            return any(map(self._reaches_product, value.args))
        if operator(value) in ("multiply", "divide") and scalar(value.args[1]):
            return self._reaches_product(value.args[0])
        return operator(value) == "matmul"

    def _broadcasts(self, tensor: ir.Expr, full: tuple[int, ...], lead: tuple[int, int]) -> bool:
        """Whether a mask has one element or all of them along batch, heads and queries, and all keys."""
        if not isinstance(tensor, relax.Var) or not static_tensor(tensor):
            return False
        extents = _padded(shape(tensor))
        wanted = (*lead, *full[-2:])
        four_axes = len(_padded(full)) == 4 <= len(full)
        if len(extents) > 4 or (not four_axes and any(e != 1 for e in extents[:-2]) and shape(tensor) != full):
            return False
        return extents[3] == wanted[3] and all(e in (1, w) for e, w in zip(extents, wanted, strict=True))


class _Fuser(MainRewriter):
    def __init__(self, mod: tvm.IRModule, unit: VectorUnit, evaluate: Evaluate) -> None:
        super().__init__(mod)
        self.unit, self.evaluate = unit, evaluate
        self.matcher = _Matcher(self.main)
        self.matches = self.matcher.matches()
        self.kernels: dict[AttentionSpec, ir.GlobalVar] = {}
        self.causal: dict[tuple, bool] = {}

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        match = self.matches.get(var)
        return self.substitute(value) if match is None else self._call(match, shape(var))

    def _call(self, match: _Match, result: tuple[int, ...]) -> ir.Expr:
        (batch, heads), (queries, depth) = match.lead, shape(match.q)[-2:]
        keys, value_depth = shape(match.v)[-2:]
        lead = match.lead
        q, k, v = self._operand(match.q, lead), self._key(match.k, lead), self._operand(match.v, lead, scaled=False)
        joined = (batch, queries, heads, value_depth)
        size = queries * value_depth
        y = (
            Access(joined, 0, heads * size, value_depth, heads * value_depth)
            if match.joins
            else Access.dense(batch, heads, queries, value_depth)
        )
        mask, causal = match.mask, False
        if mask is not None:
            causal = self._is_causal(mask, queries, keys)
        args = [q.source, k.source, v.source]
        spec = AttentionSpec(
            batch, heads, queries, keys, depth, value_depth,
            q=access_of(q, lead), k=access_of(k, lead), v=access_of(v, lead), y=y,
            scale=match.scale * q.scale * k.scale,
        )  # fmt: skip
        if causal:
            spec = replace(spec, mask="causal")
        elif mask is not None:
            args.append(self._mask(mask))
            spec = replace(spec, mask=mask.kind, mask_shape=shape(args[-1]), fill=mask.fill)
        out = relax.call_tir(self._kernel(spec), args, relax.TensorType(y.buffer, "float32"))
        return out if y.buffer == result else op.reshape(self.emit(out), result)

    def _view(self, expr: ir.Expr) -> View:
        return view_of(expr, self.matcher.values, scalar)

    def _operand(self, var: relax.Var, lead: tuple[int, int], scaled: bool = True) -> View:
        view = self._view(var)
        if not readable(view, lead) or (view.scale != 1.0 and not scaled):
            view = View.whole(var)
        return replace(view, source=self.substitute(view.source))

    def _key(self, var: relax.Var, lead: tuple[int, int]) -> View:
        """Keys as [… keys, depth]; the product has them transposed."""
        view = self._view(var)
        swapped = replace(view, shape=_swap_last(view.shape), strides=_swap_last(view.strides))
        if readable(swapped, lead):
            return replace(swapped, source=self.substitute(swapped.source))
        axes = _swap_last(tuple(range(len(shape(var)))))
        return View.whole(self.emit(self.permute(self.substitute(var), list(axes))))

    def _mask(self, mask: _Mask) -> ir.Expr:
        """A mask as float32[batch or 1, heads or 1, keys, queries or 1]."""
        tensor, *others = (
            self.emit(self.reshape(self.substitute(one), _padded(shape(one)))) for one in (mask.tensor, *mask.others)
        )
        for other in others:
            tensor = self.emit(op.add(tensor, other))
        if mask.hides:
            tensor = self.emit(op.logical_not(tensor))
        if dtype(tensor) != "float32":
            tensor = self.emit(op.astype(tensor, "float32"))
        return self.emit(self.permute(tensor, [0, 1, 3, 2]))

    def _is_causal(self, mask: _Mask, queries: int, keys: int) -> bool:
        """Whether the mask is known, and hides of every query just the keys that come later."""
        if (
            mask.tensor not in self.matcher.from_weights
            or mask.others
            or keys < queries
            or (mask.kind == "where"
            and mask.fill > _HIDDEN)
        ):
            return False
        key = (mask.tensor, mask.kind, mask.hides, queries, keys)
        if key not in self.causal:
            found = self.evaluate(function_of(self.main, mask.tensor))[0]
            if mask.kind == "add":
                visible, certain = found == 0, bool(((found == 0) | (found <= _HIDDEN)).all())
            else:
                visible, certain = (found != 0) != mask.hides, True
            wanted = np.tril(np.ones((queries, keys), bool), keys - queries)
            same = visible.shape[-2:] == wanted.shape and bool((visible == wanted).all())
            self.causal[key] = certain and same
        return self.causal[key]

    def _kernel(self, spec: AttentionSpec) -> ir.GlobalVar:
        if spec not in self.kernels:
            name = f"attention_{len(self.kernels)}"
            self.kernels[spec] = self.builder.add_func(kernel_of(spec, self.unit, name), name)
        return self.kernels[spec]


def kernel_of(spec: AttentionSpec, unit: VectorUnit, name: str) -> tirx.PrimFunc:
    """The kernel with all that the lowering wants to know."""
    func, implementation, scratch = machines.attention_of(spec, unit)
    described = kernel_attributes(
        "attention", implementation, str(spec), spec.flops, scratch=scratch, work=attention.work(spec)
    )
    return func.with_attrs({**described, "global_symbol": name})


def _padded(extents: tuple[int, ...]) -> tuple[int, ...]:
    """A shape of four axes, or of more if there are more from the first one on that is longer than 1."""
    while len(extents) > 4 and extents[0] == 1:
        extents = extents[1:]
    return (1,) * (4 - len(extents)) + extents


def _swap_last(values: tuple) -> tuple:
    return (*values[:-2], values[-1], values[-2])
