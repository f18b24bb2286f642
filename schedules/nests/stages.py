"""A legalised PrimFunc as a list of stages: the form in which the generic scheduler rewrites it.

Every TIR function that a tensor expression gives is a sequence of perfect loop nests, each with one block that
stores one element. `parse` reads it into `Stage` records; a function of another form (loops written by hand in
the legaliser, external calls) has none. Before loops are made again, stages are merged:

    inline            an elementwise producer is computed where its elements are read
    fuse epilogues    an elementwise consumer of a reduction is computed from the accumulator

What neither removes is an intermediate tensor, and becomes scratch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

# Producers with one of these are recomputed only where that is no extra work.
_EXPENSIVE_CALLS = frozenset(
    f"tirx.{name}"
    for name in (
        *("exp", "exp2", "exp10", "log", "log2", "log10", "log1p", "tanh", "sigmoid"),
        *("erf", "pow", "sin", "cos", "tan", "sqrt", "rsqrt"),
    )
)
# Copies of a producer's expression at most: beyond, its result is stored.
_MAX_READERS = 4
_CONDITIONAL = "prim.if_then_else"


@dataclass(frozen=True)
class Axis:
    """A loop from 0 to `extent`."""

    var: tirx.Var
    extent: int


@dataclass(frozen=True)
class Reduction:
    """accumulator = init; over all `axes`: accumulator = update."""

    axes: tuple[Axis, ...]
    init: ir.Expr
    update: ir.Expr  # reads `accumulator`
    accumulator: tirx.Var

    @property
    def kind(self) -> str | None:
        """ "sum", "max" or "min" if the update is accumulator ∘ term; None for any other."""
        for kind, node in (("sum", tirx.Add), ("max", tirx.Max), ("min", tirx.Min)):
            if isinstance(self.update, node) and self.term is not None:
                return kind
        return None

    @property
    def term(self) -> ir.Expr | None:
        """The other operand of the update, if the accumulator is one of them."""
        a, b = getattr(self.update, "a", None), getattr(self.update, "b", None)
        for own, other in ((a, b), (b, a)):
            if own is not None and own.same_as(self.accumulator) and not uses(other, [self.accumulator]):
                return other
        return None


@dataclass(frozen=True)
class Stage:
    """For all `axes`: buffer[indices] = value; a reduction comes first and `value` reads its accumulator."""

    axes: tuple[Axis, ...]
    buffer: tirx.Buffer
    indices: tuple[ir.Expr, ...]
    value: ir.Expr
    reduction: Reduction | None = None

    @property
    def points(self) -> int:
        return math.prod(axis.extent for axis in self.axes)

    @property
    def iterations(self) -> int:
        return self.points * (math.prod(axis.extent for axis in self.reduction.axes) if self.reduction else 1)

    @property
    def expressions(self) -> list[ir.Expr]:
        """Everything the stage evaluates, besides its store indices."""
        return [self.value] + ([self.reduction.update] if self.reduction else [])

    def map(self, function: Callable[[ir.Expr], ir.Expr]) -> Stage:
        """The stage with `function` applied to what it evaluates; an update stays accumulator ∘ term."""
        reduction = self.reduction
        if reduction is not None:
            if reduction.kind is None:
                update = function(reduction.update)
            else:
                update = type(reduction.update)(reduction.accumulator, function(reduction.term))
            reduction = replace(reduction, update=update)
        return replace(self, value=function(self.value), reduction=reduction)


def substitute(expr: ir.Expr, values: Mapping[tirx.Var, ir.Expr]) -> ir.Expr:
    """`expr` with variables replaced."""
    return tvm_ffi.structural_map(expr, (ir.Var, lambda var: values.get(var, var)))


def uses(expr: ir.Expr, variables: Iterable[tirx.Var]) -> bool:
    """Whether one of the variables occurs."""
    wanted = set(variables)
    found = []
    tvm_ffi.structural_walk(expr, (ir.Var, lambda var: found.append(var) if var in wanted else None))
    return bool(found)


def loads(expr: ir.Expr) -> list[ir.TensorLoad]:
    """Every load in the expression, those inside indices included."""
    found: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(expr, (ir.TensorLoad, found.append))
    return found


def replace_loads(expr: ir.Expr, of: Callable[[ir.TensorLoad], ir.Expr]) -> ir.Expr:
    """`expr` with every load replaced by `of(load)`, innermost first."""
    return tvm_ffi.structural_map(expr, (ir.TensorLoad, of))


def called_operators(expr: ir.Expr) -> set[str]:
    """Names of the operators that the expression calls."""
    names: set[str] = set()

    def visit(call: ir.Call) -> None:
        if isinstance(call.op, ir.Op):
            names.add(call.op.name)

    tvm_ffi.structural_walk(expr, (ir.Call, visit))
    return names


def contains(expr: ir.Expr, kinds: type | tuple[type, ...]) -> bool:
    """Whether a node of one of the kinds occurs."""
    found: list[ir.Expr] = []
    tvm_ffi.structural_walk(expr, [(kinds, found.append)])
    return bool(found)


def is_constant(expr: ir.Expr) -> bool:
    """Whether the expression is a literal number."""
    return isinstance(expr, (tirx.IntImm, tirx.FloatImm))


def simplify(expr: ir.Expr, axes: Iterable[Axis]) -> ir.Expr:
    """`expr` simplified with what the axes' extents tell."""
    analyzer = sym.Analyzer()
    for axis in axes:
        dtype = axis.var.ty.dtype
        analyzer.bind(axis.var, ir.Range(tirx.const(0, dtype), tirx.const(axis.extent, dtype)))
    return analyzer.simplify(expr)


# Reading a PrimFunc


def parse(func: tirx.PrimFunc) -> list[Stage] | None:
    """The stages of `func` in order; None if it has another form."""
    if not isinstance(func.body, s_tir.SBlockRealize):
        return None
    root = func.body.block
    if root.iter_vars or root.match_buffers or root.init is not None:
        return None
    nests = root.body.seq if isinstance(root.body, tirx.stmt.SeqStmt) else [root.body]
    stages: list[Stage] = []
    for nest in nests:
        parsed = _parse_nest(nest)
        if parsed is None:
            return None
        stages += parsed
    written = [stage.buffer for stage in stages]
    if len(set(written)) != len(written):
        return None
    return stages


def _parse_nest(stmt: tirx.Stmt) -> list[Stage] | None:
    """The stages of one nest: several if its block stores to several buffers that do not depend on each other."""
    loops: list[Axis] = []
    while isinstance(stmt, tirx.For):
        if stmt.kind != tirx.ForKind.SERIAL or not _is_zero(stmt.min) or not isinstance(stmt.extent, tirx.IntImm):
            return None
        if stmt.step is not None or int(stmt.extent) < 1:
            return None
        loops.append(Axis(stmt.loop_var, int(stmt.extent)))
        stmt = stmt.body
    if not isinstance(stmt, s_tir.SBlockRealize) or not _is_true(stmt.predicate):
        return None
    block = stmt.block
    if block.alloc_buffers or block.match_buffers:
        return None
    bound = {var.var: value for var, value in zip(block.iter_vars, stmt.iter_values, strict=True)}
    reduced = [value for var, value in zip(block.iter_vars, stmt.iter_values, strict=True) if _is_reduced(var)]
    reduce_axes = tuple(axis for axis in loops if any(uses(value, [axis.var]) for value in reduced))
    axes = tuple(axis for axis in loops if axis not in reduce_axes)
    stores = _stores(block.body, bound)
    inits = [] if block.init is None else _stores(block.init, bound)
    if not stores or inits is None or (reduce_axes and not inits):
        return None
    stages = []
    for store in stores:
        others = [other.buffer for other in stores if other is not store]
        if any(load.source in others for load in loads(store.value)):
            return None
        if any(uses(index, [axis.var for axis in reduce_axes]) for index in store.indices):
            return None
        if inits:
            init = next((init.value for init in inits if init.buffer.same_as(store.buffer)), None)
            stage = _reduction_stage(axes, reduce_axes, store, init)
        elif any(load.source.same_as(store.buffer) for load in loads(store.value)):
            stage = None
        else:
            stage = Stage(axes, store.buffer, tuple(store.indices), store.value)
        if stage is None:
            return None
        stages.append(stage)
    return stages


def _stores(body: tirx.Stmt, bound: Mapping[tirx.Var, ir.Expr]) -> list[tirx.BufferStore] | None:
    """The stores of a block whose body consists of these and of bindings, which are resolved; None otherwise."""
    values = dict(bound)
    stores = []
    for stmt in body.seq if isinstance(body, tirx.stmt.SeqStmt) else [body]:
        if isinstance(stmt, tirx.stmt.Bind):
            values[stmt.var] = substitute(stmt.value, values)
        elif isinstance(stmt, tirx.BufferStore):
            indices = [substitute(index, values) for index in stmt.indices]
            stores.append(tirx.BufferStore(stmt.buffer, substitute(stmt.value, values), indices))
        else:
            return None
    return stores


def _reduction_stage(
    axes: tuple[Axis, ...], reduce_axes: tuple[Axis, ...], store: tirx.BufferStore, init: ir.Expr | None
) -> Stage | None:
    if init is None or not is_constant(init):
        return None
    accumulator = tirx.Var("accumulator", store.buffer.dtype)

    def own(load: ir.TensorLoad) -> ir.Expr:
        if not load.source.same_as(store.buffer):
            return load
        same = all(tvm_ffi.structural_equal(a, b) for a, b in zip(load.indices, store.indices, strict=True))
        return accumulator if same else load

    update = replace_loads(store.value, own)
    if any(load.source.same_as(store.buffer) for load in loads(update)):
        return None
    reduction = Reduction(reduce_axes, init, update, accumulator)
    return Stage(axes, store.buffer, tuple(store.indices), accumulator, reduction)


def _is_zero(expr: ir.Expr) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr) == 0


def _is_true(expr: ir.Expr) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr) == 1


def _is_reduced(var: tirx.IterVar) -> bool:
    return var.iter_type == tirx.IterVar.CommReduce


# Merging stages


def merge(stages: list[Stage], intermediates: Iterable[tirx.Buffer]) -> list[Stage]:
    """Inline producers and fuse epilogues until neither applies; order is kept.

    Producers with one reader come first, the last ones before those that they read: so a value that a reader needs
    twice is seen twice in one place, and is bound there, rather than copied along two ways.
    """
    intermediates = list(reversed(list(intermediates)))
    while True:
        merged = stages
        for buffer in intermediates:
            merged = _merge_at(merged, buffer, most_readers=1)
        if len(merged) == len(stages):
            for buffer in reversed(intermediates):
                merged = _merge_at(merged, buffer, most_readers=_MAX_READERS)
                if len(merged) < len(stages):
                    break
            else:
                return merged
        stages = merged


def _merge_at(stages: list[Stage], buffer: tirx.Buffer, most_readers: int) -> list[Stage]:
    producers = [stage for stage in stages if stage.buffer.same_as(buffer)]
    if len(producers) != 1:
        return stages
    (producer,) = producers
    readers = [stage for stage in stages if _reads(stage, buffer)]
    if not readers:
        return [stage for stage in stages if stage is not producer]
    if len(readers) > most_readers:
        return stages
    if producer.reduction is None:
        if not _covers(producer) or not all(_may_inline(producer, reader) for reader in readers):
            return stages
        merged = {id(reader): _inline(producer, reader) for reader in readers}
    else:
        fused = _fuse_epilogue(producer, readers[0]) if len(readers) == 1 else None
        if fused is None:
            return stages
        merged = {id(readers[0]): fused}
    return [merged.get(id(stage), stage) for stage in stages if stage is not producer]


def _reads(stage: Stage, buffer: tirx.Buffer) -> bool:
    return any(load.source.same_as(buffer) for expr in stage.expressions for load in loads(expr))


def _axis_of_index(stage: Stage) -> list[Axis | None] | None:
    """Per index of the store, its axis, None for a constant 0; None if an index is anything else."""
    result: list[Axis | None] = []
    for index in stage.indices:
        axis = next((axis for axis in stage.axes if axis.var.same_as(index)), None)
        if axis is None and not _is_zero(index):
            return None
        result.append(axis)
    return result


def _covers(stage: Stage) -> bool:
    """Whether every element of the buffer is stored once, by the iteration of its own coordinates."""
    axes = _axis_of_index(stage)
    if axes is None:
        return False
    used = [axis.var for axis in axes if axis is not None]
    extents = [1 if axis is None else axis.extent for axis in axes]
    unused = [axis for axis in stage.axes if axis.var not in used and axis.extent > 1]
    return len(set(used)) == len(used) and not unused and extents == [int(e) for e in stage.buffer.shape]


def _may_inline(producer: Stage, reader: Stage) -> bool:
    """Whether computing the producer's elements where the reader needs them is no more than twice the work.

    Cheap elementwise values may be computed more often, but not within a reduction if they hold conditions or
    change the order of elements: the reduction's loops would inherit both.
    """
    reads = sum(load.source.same_as(producer.buffer) for expr in reader.expressions for load in loads(expr))
    repeats = reads * reader.iterations / producer.points
    if repeats <= 2:
        return True
    calls = called_operators(producer.value)
    if calls & _EXPENSIVE_CALLS or contains(producer.value, tirx.Div):
        return False
    if reader.reduction is None:
        return True
    if _CONDITIONAL in calls or contains(producer.value, tirx.Select):
        return False
    innermost = producer.indices[-1] if producer.indices else None
    return all(
        not load.indices or tvm_ffi.structural_equal(load.indices[-1], innermost) or _is_zero(load.indices[-1])
        for load in loads(producer.value)
    )


def _inline(producer: Stage, reader: Stage) -> Stage:
    axes = _axis_of_index(producer)

    def value_of(load: ir.TensorLoad) -> ir.Expr:
        values = {axis.var: index for axis, index in zip(axes, load.indices, strict=True) if axis is not None}
        values |= {axis.var: tirx.const(0, axis.var.ty.dtype) for axis in producer.axes if axis.var not in values}
        return substitute(producer.value, values)

    def inlined(expr: ir.Expr) -> ir.Expr:
        own = [load for load in loads(expr) if load.source.same_as(producer.buffer)]
        # A value read twice is bound once, lest expressions double with every producer. Not beside conditions:
        # they may guard the very load.
        if len(own) > 1 and _CONDITIONAL not in called_operators(expr) | called_operators(producer.value):
            first = own[0]
            if all(tvm_ffi.structural_equal(load, first) for load in own):
                value = value_of(first)
                if contains(value, (ir.Call, tirx.Div)) or len(loads(value)) > 1:
                    shared = tirx.Var("shared", producer.buffer.dtype)
                    body = replace_loads(expr, lambda load: shared if load.source.same_as(own[0].source) else load)
                    return tirx.Let(shared, value, body)
        return replace_loads(expr, lambda load: value_of(load) if load.source.same_as(producer.buffer) else load)

    return reader.map(inlined)


def _fuse_epilogue(producer: Stage, reader: Stage) -> Stage | None:
    """The reduction with the reader's value computed from its accumulator, None unless both run over the same."""
    if reader.reduction is not None or reader.points != producer.points or not _covers(producer):
        return None
    own = [load for load in loads(reader.value) if load.source.same_as(producer.buffer)]
    first = own[0]
    if any(not tvm_ffi.structural_equal(load, first) for load in own):
        return None
    values: dict[tirx.Var, ir.Expr] = {}
    taken: list[tirx.Var] = []
    for axis, index in zip(_axis_of_index(producer), first.indices, strict=True):
        index = simplify(index, reader.axes)
        if axis is None:
            continue
        match = next((a for a in reader.axes if a.var.same_as(index) and a.extent == axis.extent), None)
        if match is None and not (axis.extent == 1 and _is_zero(index)):
            return None
        if match is not None:
            taken.append(match.var)
        values[axis.var] = index
    if len(set(taken)) != len(taken):
        return None
    values |= {axis.var: tirx.const(0, axis.var.ty.dtype) for axis in producer.axes if axis.var not in values}
    result = substitute(producer.value, values)

    def value_of(load: ir.TensorLoad) -> ir.Expr:
        return result if load.source.same_as(producer.buffer) else load

    reduction = replace(producer.reduction, update=substitute(producer.reduction.update, values))
    return replace(reader, value=replace_loads(reader.value, value_of), reduction=reduction)
