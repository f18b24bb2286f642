"""Keep caches of keys and values in fewer bits from one inference to the next."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import tvm
from tvm import ir, relax, tirx
from tvm.relax import op

from ..schedules import machines
from ..schedules.operators import quantise_rows, scatter_rows
from ..schedules.operators.attention_spec import AttentionSpec, stored_shape
from ..schedules.operators.quantise_rows import QuantiseSpec
from ..schedules.operators.scatter_rows import ScatterSpec
from ..schedules.registry import Machine
from .attributes import ATTENTION, EXCHANGE, kernel_attributes
from .fuse_attention import kernel_of
from .ir import dtype, operator, shape, uses, values_of
from .module_pass import module_pass
from .quantise_activations import QUANTISE
from .rebuild import MainRewriter, returned

_WIDE = "float32"
_OPERANDS = {1: "k", 2: "v"}  # of an attention kernel


@dataclass(frozen=True)
class StateSlot:
    """A state: the places of its input and its output in `main`, and the element type that is wanted."""

    read: int
    made: int | None  # None for a state that stays as it is set
    kind: str  # float32, float16 or int8


# What is told of a state that stays as it is: its slot, and what reads it otherwise: the name of a variable, the place of a
# result, or None if nothing does.
Reader = str | int | None
Refused = Callable[[StateSlot, Reader], None]


@module_pass(opt_level=0)
class NarrowStates:
    """Give states that only attention reads an element type of fewer bits.

    w = call_tir(tensor_scatter, (past, rows, at))       q = astype(rows, "float16")
    y = call_tir(attention_0, (x, w, v))            →    w = call_tir(tensor_scatter', (past', q, at))
    present = w                                          y = call_tir(attention_0', (x, w, v))

    In int8, rows of each head have a scale (ByteRows.of_cache). `past` and `present` change their types, and int8 their last
    extent. New rows are narrowed once; the kernel of attention widens what it reads. A state that the network itself has in
    float16 stays so, and is not converted as a whole. Of a state that no kernel writes the caller gives the bytes.
    """

    def __init__(self, unit: Machine, slots: Sequence[StateSlot], refused: Refused) -> None:
        self.unit, self.slots, self.refused = unit, slots, refused

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        rewriter = _Narrower(mod, self.unit)
        for slot in self.slots:
            rewriter.find(slot, self.refused)
        mod = rewriter.rewrite() if rewriter.found else mod
        described = [gv for gv, func in mod.functions_items() if ATTENTION in (func.attrs or ())]
        mod = mod.clone() if described else mod
        for gv in described:
            mod.update_func(gv, mod[gv].without_attr(ATTENTION))
        return mod


def writing_kernel(spec: ScatterSpec, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> tirx.PrimFunc:
    """The kernel that writes rows into a cache, which may exchange them instead; `shapes` are those of the cache and the rows."""
    described = kernel_attributes("tensor_scatter", "vector", str(spec), 0, work=spec.work)
    return scatter_rows.kernel(spec, shapes).with_attrs({**described, EXCHANGE: spec.encode()})


@dataclass
class _Cache:
    """A state in `main`, all names of which are variables of the old one."""

    kind: str
    names: set[relax.Var]  # of the state, before and after new rows
    write: relax.Var | None = None
    depth: int = 0  # of a head, in int8


class _Narrower(MainRewriter):
    def __init__(self, mod: tvm.IRModule, unit: Machine) -> None:
        super().__init__(mod)
        self.unit = unit
        self.bound, self.readers = values_of(self.main), uses(self.main)
        self.results = list(returned(self.main))
        self.found: list[_Cache] = []
        self.cache_of: dict[relax.Var, _Cache] = {}
        self.kernels: dict[object, ir.GlobalVar] = {}

    def find(self, slot: StateSlot, refused: Refused) -> None:
        """Note a state that can have its type; tell `refused` of another one."""
        cache, reader = self._read(slot)
        if cache is None:
            refused(slot, reader)
            return
        self.found.append(cache)
        self.cache_of.update(dict.fromkeys(cache.names, cache))
        old = self.params[slot.read]
        extents = stored_shape(shape(old), cache.kind, cache.depth)
        if (extents, cache.kind) != (shape(old), dtype(old)):
            self.params[slot.read] = self.replaced[old] = relax.Var(old.name, relax.TensorType(extents, cache.kind))

    def _read(self, slot: StateSlot) -> tuple[_Cache | None, Reader]:
        """The state, if everything that reads it can read the type; else the name of what cannot."""
        param = self.main.params[slot.read]
        cache, left, depths = _Cache(slot.kind, {param}), [param], set()
        while left:
            var = left.pop()
            for reader in self.readers.get(var, []):
                value = self.bound.get(reader)
                if isinstance(value, relax.Tuple) or reader.same_as(var):
                    continue  # a result
                if self._converts(value, param) or (self._writes(value, var) and cache.write is None):
                    cache.write = cache.write if self._converts(value, param) else reader
                    cache.names.add(reader)
                    left.append(reader)
                elif (of_heads := self._depths(value, var, slot.kind)) is not None:
                    depths |= of_heads
                else:
                    return None, self.results.index(reader) if reader in self.results else reader.name
        places = [at for at, one in enumerate(self.results) if one in cache.names]
        stays = slot.made is None
        if (cache.write is None) != stays or len(depths) != 1 or places != ([] if stays else [slot.made]):
            return None, None
        (cache.depth,) = depths
        inner = shape(param)[-1] if stays else self._scatter(cache.write).inner
        is_whole = slot.kind != "int8" or (inner % cache.depth == 0 and shape(param)[-1] % cache.depth == 0)
        return (cache, None) if is_whole else (None, None if stays else cache.write.name)

    @staticmethod
    def _converts(value: ir.Expr, param: relax.Var) -> bool:
        """Whether a state of float16 is widened, or narrowed again."""
        return operator(value) == "astype" and {dtype(value), dtype(value.args[0])} == {_WIDE, dtype(param)} != {_WIDE}

    def _attribute(self, value: ir.Expr, name: str) -> str | None:
        """Of the kernel that is called, if any."""
        attrs = self.mod[value.args[0]].attrs if operator(value) == "call_tir" else None
        return str(attrs[name]) if attrs and name in attrs else None

    def _writes(self, value: ir.Expr, var: relax.Var) -> bool:
        if self._attribute(value, EXCHANGE) is None:
            return False
        past, *others = value.args[1].fields
        return past.same_as(var) and not any(other.same_as(var) for other in others)

    def _scatter(self, write: relax.Var) -> ScatterSpec:
        return ScatterSpec.decode(self._attribute(self.bound[write], EXCHANGE))

    def _depths(self, value: ir.Expr, var: relax.Var, kind: str) -> set[int] | None:
        """The depths of heads, as attention reads `var`; None for another reader."""
        text = self._attribute(value, ATTENTION)
        places = [at for at, one in enumerate(value.args[1].fields) if one.same_as(var)] if text is not None else []
        if not places or not set(places) <= _OPERANDS.keys():
            return None
        spec = AttentionSpec.decode(text)
        given = [(spec.k, spec.depth) if at == 1 else (spec.v, spec.value_depth) for at in places]
        return None if any(access.stored(kind, depth) is None for access, depth in given) else {depth for _, depth in given}

    def rewrite_binding(self, var: relax.Var, value: ir.Expr) -> ir.Expr:
        cache = self.cache_of.get(var)
        if cache is not None:
            return self._written(cache, value) if var.same_as(cache.write) else self.substitute(value.args[0])
        if self._attribute(value, ATTENTION) is None:
            return self.substitute(value)
        kinds = {at: self.cache_of[one].kind for at in _OPERANDS if (one := value.args[1].fields[at]) in self.cache_of}
        return self._attention(value, kinds) if kinds else self.substitute(value)

    def _written(self, cache: _Cache, call: relax.Call) -> ir.Expr:
        past, rows, *others = (self.substitute(one) for one in call.args[1].fields)
        old = self._scatter(cache.write)
        inner = stored_shape((old.inner,), cache.kind, cache.depth)[0]
        spec, rows = replace(old, dtype=cache.kind, inner=inner), self._narrowed(rows, cache)
        name = call.args[0].name_hint
        attrs = dict(self.mod[call.args[0]].attrs.items())

        def make() -> tirx.PrimFunc:
            made = writing_kernel(spec, (shape(past), shape(rows)))
            return made.with_attrs({name: one for name, one in attrs.items() if name not in made.attrs})

        kernel = self._kernel((call.args[0], spec), f"{name}_{cache.kind}", make)
        return relax.call_tir(kernel, [past, rows, *others], relax.TensorType(shape(past), cache.kind))

    def _narrowed(self, rows: ir.Expr, cache: _Cache) -> ir.Expr:
        if cache.kind == "float16":
            return rows if dtype(rows) == "float16" else self.emit(op.astype(rows, "float16"))
        rows = rows if dtype(rows) == _WIDE else self.emit(op.astype(rows, _WIDE))
        extents, count = shape(rows), math.prod(shape(rows)) // cache.depth
        spec = QuantiseSpec.of_cache(count, cache.depth)
        flat = self.emit(self.reshape(rows, (count, cache.depth)))

        def make() -> tirx.PrimFunc:
            described = kernel_attributes(QUANTISE, "rows in 8 bits", str(spec), spec.flops)
            return machines.operator(spec, quantise_rows.kernel, self.unit).with_attrs(described)

        type_ = relax.TensorType((count, spec.layout.nbytes), "int8")
        made = self.emit(relax.call_tir(self._kernel(spec, f"quantise_cache_{len(self.kernels)}", make), [flat], type_))
        return self.emit(op.reshape(made, stored_shape(extents, "int8", cache.depth)))

    def _attention(self, call: relax.Call, kinds: Mapping[int, str]) -> ir.Expr:
        spec = AttentionSpec.decode(self._attribute(call, ATTENTION))
        k = spec.k.stored(kinds.get(1, spec.k.dtype), spec.depth)
        v = spec.v.stored(kinds.get(2, spec.v.dtype), spec.value_depth)
        spec, name = replace(spec, k=k, v=v), f"{call.args[0].name_hint}_{k.dtype}_{v.dtype}"
        kernel = self._kernel(spec, name, lambda: kernel_of(spec, self.unit, name))
        return relax.call_tir(kernel, [self.substitute(one) for one in call.args[1].fields], call.ty_args[0])

    def _kernel(self, key: object, name: str, make: Callable[[], tirx.PrimFunc]) -> ir.GlobalVar:
        if key not in self.kernels:
            self.kernels[key] = self.builder.add_func(make().with_attr("global_symbol", name), name)
        return self.kernels[key]
