"""Loop nests of the generic scheduler: one stage becomes parallel, tiled, vectorised TIR.

Elementwise stages
    1. Partition: where conditions compare an axis with a constant (concatenation, padding, slices), the axis is
       cut there, and every box of the iteration space loses its conditions.
    2. Collapse: adjacent axes that all accesses walk as one become one.
    3. The axis along which the store is contiguous is covered by vectors (`rows.cover`). If a load is
       contiguous along another axis, squares of vectors are transposed in registers.
Reductions
    A. The store's contiguous axis is contiguous in the loads too: tiles of rows × vectors are accumulated in
       registers over all reduce loops.
    B. Otherwise, if a reduce axis is contiguous: lanes accumulate along it and are combined at the end.
    C. Otherwise: a scalar accumulator.
    Tiles that do not divide an axis end with one that overlaps its predecessor and stores the same again.

Schedule primitives are not used: they refuse two nests that write parts of one buffer, and split tails into
predicates.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import tvm_ffi
from tvm import ir, sym, tirx

from .rows import cover
from .stages import (
    Axis,
    Reduction,
    Stage,
    called_operators,
    contains,
    loads,
    replace_loads,
    simplify,
    substitute,
    uses,
)
from .vector_math import EXPANSIONS

# Work below which handing it to other threads costs more than it gains.
_PARALLEL_OPERATIONS = 400_000
_OPERATIONS_PER_ELEMENT = 2  # of a plain load and store
_OPERATIONS_PER_CALL = 10  # of an exponential and the like
_TASKS_PER_CORE = 4
# Boxes of a partitioned stage; beyond, conditions stay in the loops.
_MAX_BOXES = 64
# Buffers below 1 KiB are registers or stack, larger ones are requested from the runtime.
_MAX_TILE_BYTES = 1023
_CHAINS = 4
_MAX_SPLITS = 8


@dataclass(frozen=True)
class Machine:
    """What loops are fitted to."""

    lanes: int  # floats in a vector
    registers: int  # vector registers
    cores: int


@dataclass(frozen=True)
class _Nest:
    """A stage over flat buffers: for all axes, buffer[index] = value."""

    axes: tuple[Axis, ...]
    buffer: tirx.Buffer
    index: ir.Expr
    value: ir.Expr
    reduction: Reduction | None = None

    @property
    def points(self) -> int:
        return math.prod(axis.extent for axis in self.axes)

    @property
    def expressions(self) -> list[ir.Expr]:
        return [self.value] + ([self.reduction.update] if self.reduction else [])

    def substitute(self, values: dict[tirx.Var, ir.Expr], axes: Sequence[Axis], reduce_axes: Sequence[Axis] = ()):
        """The nest over other axes, with variables replaced and everything simplified."""
        bounds = [*axes, *reduce_axes]

        def rewrite(expr: ir.Expr) -> ir.Expr:
            return simplify(substitute(expr, values), bounds)

        reduction = self.reduction
        if reduction is not None:
            # The accumulator stays outside: the simplifier may reorder a sum.
            if reduction.kind is None:
                update = rewrite(reduction.update)
            else:
                update = type(reduction.update)(reduction.accumulator, rewrite(reduction.term))
            reduction = replace(reduction, axes=tuple(reduce_axes), update=update)
        return _Nest(tuple(axes), self.buffer, rewrite(self.index), rewrite(self.value), reduction)


def emit(stage: Stage, flat: dict[tirx.Buffer, tirx.Buffer], machine: Machine) -> tirx.Stmt:
    """The loops of one stage; `flat` gives the one-dimensional view of every buffer."""

    def flatten(buffer: tirx.Buffer, indices: Sequence[ir.Expr]) -> ir.Expr:
        result: ir.Expr = tirx.const(0, "int64")
        for index, extent in zip(indices, buffer.shape, strict=True):
            result = result * tirx.const(int(extent), "int64") + index.astype("int64")
        return result

    def view(expr: ir.Expr) -> ir.Expr:
        return replace_loads(
            expr, lambda load: tirx.BufferLoad(flat[load.source], [flatten(load.source, load.indices)])
        )

    mapped = stage.map(view)
    nest = _Nest(mapped.axes, flat[stage.buffer], flatten(stage.buffer, stage.indices), mapped.value, mapped.reduction)
    nest = _split(nest)
    return _emit_reduction(nest, machine) if nest.reduction else _emit_elementwise(nest, machine)


# Building blocks


def _constant(value: int, like: tirx.Var | None = None) -> ir.Expr:
    return tirx.const(value, "int64" if like is None else like.ty.dtype)


def _new_axis(extent: int, like: Axis | None = None, name: str = "i") -> Axis:
    return Axis(tirx.Var(name, like.var.ty.dtype if like else "int64"), extent)


def _for(axis_var: tirx.Var, extent: ir.Expr | int, body: tirx.Stmt, kind=tirx.ForKind.SERIAL) -> tirx.Stmt:
    if isinstance(extent, int):
        if extent == 1:
            return substitute(body, {axis_var: _constant(0, axis_var)})
        extent = _constant(extent, axis_var)
    return tirx.For(axis_var, _constant(0, axis_var), extent, kind, body)


def _store(buffer: tirx.Buffer, index: ir.Expr, value: ir.Expr, lane: tirx.Var | None = None, lanes: int = 1):
    """(variables to allocate, statement): buffer[index] = value, inside a vectorised loop over `lane` if given.

    Values that are bound at the top of the expression, and results of calls that other calls take, pass through
    variables of `lanes` elements, which LLVM turns back into registers. TVM's simplifier tracks every `Let` as
    the expression it stands for, so that chains of them grow exponentially; it does not look into memory.
    """
    position = tirx.const(0, "int32") if lane is None else lane
    variables: list[tirx.Buffer] = []
    statements: list[tirx.Stmt] = []

    def keep(expr: ir.Expr) -> ir.Expr:
        variable = tirx.decl_buffer((lanes,), expr.ty.dtype, name="value")
        variables.append(variable)
        statements.append(tirx.BufferStore(variable, expr, [position]))
        return tirx.BufferLoad(variable, [position])

    def keep_nested(call: ir.Call) -> ir.Expr:
        # Arguments come first; one that holds a load of a variable already is kept as it is.
        is_math = isinstance(call.op, ir.Op) and call.op.name in EXPANSIONS
        return keep(call) if is_math and call.ty.dtype == "float32" else call

    def evaluate(expr: ir.Expr) -> ir.Expr:
        while isinstance(expr, tirx.Let):
            expr = substitute(expr.body, {expr.var: keep(evaluate(expr.value))})
        if _conditions(expr) or contains(expr, tirx.Let):
            return expr
        return tvm_ffi.structural_map(expr, (ir.Call, keep_nested))

    statements.append(tirx.BufferStore(buffer, evaluate(value), [index]))
    return [tirx.stmt.AllocBuffer(variable) for variable in variables], _sequence(statements)


def _sequence(statements: Sequence[tirx.Stmt]) -> tirx.Stmt:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def _fused_loop(axes: Sequence[Axis], body: tirx.Stmt, kind: tirx.ForKind) -> tirx.Stmt:
    """One loop over the product of the axes."""
    if len(axes) == 1:
        return _for(axes[0].var, axes[0].extent, body, kind)
    fused = tirx.Var("fused", "int64")
    values, inner = {}, 1
    for axis in reversed(axes):
        position = fused if inner == 1 else tirx.floordiv(fused, _constant(inner))
        if axis is not axes[0]:
            position = tirx.floormod(position, _constant(axis.extent))
        values[axis.var] = position.astype(axis.var.ty.dtype)
        inner *= axis.extent
    return _for(fused, inner, substitute(body, values), kind)


def _loops(axes: Sequence[Axis], body: tirx.Stmt, machine: Machine, operations: int) -> tirx.Stmt:
    """Nested loops over axes, of which leading ones run in parallel if the work in all is worth it."""
    single = [axis for axis in axes if axis.extent == 1]
    body = _sequence([*(tirx.stmt.Bind(axis.var, tirx.const(0, axis.var.ty.dtype)) for axis in single), body])
    axes = [axis for axis in axes if axis.extent > 1]
    shared = 0
    if machine.cores > 1 and operations >= _PARALLEL_OPERATIONS:
        tasks = 1
        while shared < len(axes) and tasks < _TASKS_PER_CORE * machine.cores:
            tasks *= axes[shared].extent
            shared += 1
    for axis in reversed(axes[shared:]):
        body = _for(axis.var, axis.extent, body)
    return _fused_loop(axes[:shared], body, tirx.ForKind.PARALLEL) if shared else body


def _operations(nest: _Nest) -> int:
    """A rough count, to tell work that is worth threads."""
    calls = sum(len(called_operators(expr)) for expr in nest.expressions)
    reduce_points = math.prod(axis.extent for axis in nest.reduction.axes) if nest.reduction else 1
    return nest.points * reduce_points * (_OPERATIONS_PER_ELEMENT + _OPERATIONS_PER_CALL * calls)


def _coefficients(index: ir.Expr, axes: Sequence[Axis]) -> list[int] | None:
    """The factors of the axes' variables in an affine index; None if it is not affine."""
    if not axes:
        return []
    found = sym.detect_linear_equation(index, [axis.var for axis in axes])
    if not found or not all(isinstance(factor, tirx.IntImm) for factor in found[:-1]):
        return None
    return [int(factor) for factor in found[:-1]]


def _load_coefficients(nest: _Nest, axes: Sequence[Axis]) -> list[tuple[ir.TensorLoad, list[int] | None]]:
    return [(load, _coefficients(load.indices[0], axes)) for expr in nest.expressions for load in loads(expr)]


def _split(nest: _Nest) -> _Nest:
    """Split the axes that a reshape joined, so that indices need no division: (i // 64, i % 64) → (i0, i1)."""
    for _ in range(_MAX_SPLITS):
        every = [*nest.axes, *(nest.reduction.axes if nest.reduction else ())]
        found: list[tuple[Axis, int]] = []

        def visit(node: ir.Expr, every: list[Axis] = every, found: list = found) -> None:
            if not isinstance(node.b, tirx.IntImm) or loads(node.a):
                return
            divisor = int(node.b)
            factors = _coefficients(simplify(node.a, every), every)
            for axis, factor in zip(every, factors or (), strict=False):
                inner = divisor // factor if factor > 0 and divisor % factor == 0 else 0
                if 1 < inner < axis.extent and axis.extent % inner == 0:
                    found.append((axis, inner))

        for expr in (nest.index, *nest.expressions):
            tvm_ffi.structural_walk(expr, [((tirx.FloorDiv, tirx.FloorMod), visit)])
        if not found:
            break
        axis, inner = found[0]
        parts = [_new_axis(axis.extent // inner, axis), _new_axis(inner, axis)]
        values = {axis.var: parts[0].var * tirx.const(inner, axis.var.ty.dtype) + parts[1].var}

        def replaced(axes: Sequence[Axis], axis: Axis = axis, parts: list[Axis] = parts) -> list[Axis]:
            return [part for a in axes for part in (parts if a is axis else [a])]

        reduced = replaced(nest.reduction.axes) if nest.reduction else ()
        nest = nest.substitute(values, replaced(nest.axes), reduced)
    return nest


def _collapse(nest: _Nest) -> _Nest:
    """Drop axes of one iteration; join neighbours that every access walks as one."""
    reduce_axes = nest.reduction.axes if nest.reduction else ()
    zero = {a.var: _constant(0, a.var) for a in (*nest.axes, *reduce_axes) if a.extent == 1}
    axes = [axis for axis in nest.axes if axis.extent > 1]
    reduced = [axis for axis in reduce_axes if axis.extent > 1]
    nest = nest.substitute(zero, axes, reduced)
    every = [*axes, *reduced]
    accesses = [_coefficients(nest.index, every)]
    pinned: list[ir.Expr] = [] if accesses[0] is not None else [nest.index]

    def note(load: ir.TensorLoad) -> ir.Expr:
        factors = _coefficients(load.indices[0], every)
        if factors is None:
            return load
        accesses.append(factors)
        return tirx.const(0, load.ty.dtype)

    pinned += [replace_loads(expr, note) for expr in nest.expressions]
    factors = {axis.var: tuple(a[i] for a in accesses if a is not None) for i, axis in enumerate(every)}
    fixed = {axis.var for axis in every if any(uses(expr, [axis.var]) for expr in pinned)}
    values: dict[tirx.Var, ir.Expr] = {}

    def join(group: list[Axis]) -> list[Axis]:
        result: list[Axis] = []
        for axis in group:
            previous = result[-1] if result else None
            if (
                previous is not None
                and previous.var not in fixed
                and axis.var not in fixed
                and all(p == f * axis.extent for p, f in zip(factors[previous.var], factors[axis.var], strict=True))
            ):
                joined = _new_axis(previous.extent * axis.extent, axis)
                factors[joined.var] = factors[axis.var]
                values[previous.var] = _constant(0, previous.var)
                values[axis.var] = joined.var
                result[-1] = joined
            else:
                result.append(axis)
        return result

    axes, reduced = join(axes), join(reduced)
    # Chains: a joined axis may have been joined again.
    for var in list(values):
        values[var] = _resolve(values[var], values)
    return nest.substitute(values, axes, reduced) if values else nest


def _resolve(expr: ir.Expr, values: dict[tirx.Var, ir.Expr]) -> ir.Expr:
    while isinstance(expr, ir.Var) and expr in values:
        expr = values[expr]
    return expr


# Elementwise stages


def _emit_elementwise(nest: _Nest, machine: Machine) -> tirx.Stmt:
    operations = _operations(nest)
    boxes, uncut = _partition(nest)
    if len(boxes) == 1:
        return _emit_box(boxes[0], machine, operations)
    leading = nest.axes[:uncut]
    if math.prod(axis.extent for axis in leading) > 1:
        serial = replace(machine, cores=1)
        body = _sequence([_emit_box(replace(box, axes=box.axes[uncut:]), serial, 0) for box in boxes])
        return _loops(leading, body, machine, operations)
    return _sequence([_emit_box(box, machine, operations * box.points // nest.points) for box in boxes])


def _conditions(expr: ir.Expr) -> list[ir.Expr]:
    found: list[ir.Expr] = []

    def visit(node: ir.Expr) -> None:
        if isinstance(node, tirx.Select):
            found.append(node.condition)
        elif isinstance(node.op, ir.Op) and node.op.name == "prim.if_then_else":
            found.append(node.args[0])

    tvm_ffi.structural_walk(expr, [((ir.Call, tirx.Select), visit)])
    return found


def _cuts(nest: _Nest) -> dict[tirx.Var, set[int]]:
    """Per axis, the positions at which a comparison with a constant changes its outcome."""
    cuts: dict[tirx.Var, set[int]] = {axis.var: set() for axis in nest.axes}

    def visit(node: ir.Expr) -> None:
        if loads(node) or not node.a.ty.dtype.startswith("int"):
            return
        difference = simplify(node.a - node.b, nest.axes)
        found = sym.detect_linear_equation(difference, [axis.var for axis in nest.axes])
        if not found or not all(isinstance(factor, tirx.IntImm) for factor in found):
            return
        involved = [(axis, int(factor)) for axis, factor in zip(nest.axes, found, strict=False) if int(factor)]
        if len(involved) != 1:
            return
        (axis, factor), offset = involved[0], int(found[-1])
        root, below = -offset, math.floor(-offset / factor)
        above = -((-root) // factor)  # ceiling of root / factor
        if isinstance(node, (tirx.EQ, tirx.NE)):
            points = {above, below + 1}
        elif isinstance(node, (tirx.LT, tirx.GE)) == (factor > 0):
            points = {above}
        else:
            points = {below + 1}
        cuts[axis.var] |= {point for point in points if 0 < point < axis.extent}

    comparisons = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
    for condition in _conditions(nest.value):
        tvm_ffi.structural_walk(condition, [(comparisons, visit)])
    return cuts


def _partition(nest: _Nest) -> tuple[list[_Nest], int]:
    """Boxes of the iteration space in which conditions are decided; how many leading axes are whole in all."""
    cuts = _cuts(nest)
    if math.prod(len(points) + 1 for points in cuts.values()) > _MAX_BOXES or not any(cuts.values()):
        return [nest], 0
    uncut = next(i for i, axis in enumerate(nest.axes) if cuts[axis.var])
    intervals = []
    for axis in nest.axes[uncut:]:
        points = [0, *sorted(cuts[axis.var]), axis.extent]
        intervals.append(list(itertools.pairwise(points)))
    boxes = []
    for box in itertools.product(*intervals):
        axes = list(nest.axes[:uncut])
        values: dict[tirx.Var, ir.Expr] = {}
        for axis, (start, stop) in zip(nest.axes[uncut:], box, strict=True):
            if stop - start == axis.extent:
                axes.append(axis)
                continue
            part = _new_axis(stop - start, axis)
            axes.append(part)
            values[axis.var] = part.var + _constant(start, axis.var) if start else part.var
        boxes.append(nest.substitute(values, axes))
    return boxes, uncut


def _emit_box(nest: _Nest, machine: Machine, operations: int) -> tirx.Stmt:
    nest = _collapse(nest)
    if not nest.axes:
        variables, store = _store(nest.buffer, nest.index, nest.value)
        return _sequence([*variables, store])
    nest = _contiguous_last(nest)
    turned = _transposed_loads(nest, machine)
    if turned is not None:
        return _emit_transposed(nest, *turned, machine, operations)
    *outer, last = nest.axes
    if not _is_vectorisable(nest, last):
        variables, store = _store(nest.buffer, nest.index, nest.value)
        return _loops(nest.axes, _sequence([*variables, store]), machine, operations)
    row = cover(last.extent, machine.lanes)
    dtype = last.var.ty.dtype

    def at(start: ir.Expr) -> tirx.Stmt:
        lane = tirx.Var("lane", dtype)
        values = {last.var: start + lane}
        index, value = substitute(nest.index, values), substitute(nest.value, values)
        variables, store = _store(nest.buffer, index, value, lane, row.lanes)
        return _sequence([*variables, _for(lane, row.lanes, store, tirx.ForKind.VECTORIZED)])

    def vectors(first: ir.Expr | None, count: ir.Expr | int) -> tirx.Stmt:
        i = tirx.Var("vector", dtype)
        position = i if first is None else first + i
        return _for(i, count, at(position * tirx.const(row.lanes, dtype)))

    tail = [at(tirx.const(row.last, dtype))] if row.overlap else []
    rows = math.prod(axis.extent for axis in outer)
    wanted = _TASKS_PER_CORE * machine.cores
    is_parallel = machine.cores > 1 and operations >= _PARALLEL_OPERATIONS
    if not is_parallel or rows >= wanted or row.full < 2 * wanted:
        return _loops(outer, _sequence([vectors(None, row.full), *tail]), machine, operations)
    # Few long rows: their vectors are shared out too.
    per_task = -(-row.full * rows // wanted)
    chunk = Axis(tirx.Var("chunk", dtype), -(-row.full // per_task))
    first = chunk.var * tirx.const(per_task, dtype)
    count: ir.Expr | int = per_task
    if row.full % per_task:
        count = tirx.min(tirx.const(per_task, dtype), tirx.const(row.full, dtype) - first)
    body = [_fused_loop([*outer, chunk], vectors(first, count), tirx.ForKind.PARALLEL)]
    if tail:
        body.append(_loops(outer, tail[0], replace(machine, cores=1), 0))
    return _sequence(body)


def _contiguous_last(nest: _Nest) -> _Nest:
    """The axis along which the store is contiguous becomes the innermost one."""
    factors = _coefficients(nest.index, nest.axes)
    if factors is None or factors[-1] == 1 or 1 not in factors:
        return nest
    axis = nest.axes[factors.index(1)]
    return replace(nest, axes=(*[a for a in nest.axes if a is not axis], axis))


def _has_wide_types(nest: _Nest) -> bool:
    """Whether only 32-bit and 64-bit numbers are read and written: others are left to LLVM's own vectoriser."""
    types = {nest.buffer.dtype} | {load.ty.dtype for expr in nest.expressions for load in loads(expr)}
    return all(dtype in ("float32", "int32", "float64", "int64", "uint32") for dtype in types)


def _is_vectorisable(nest: _Nest, axis: Axis) -> bool:
    """Whether all accesses along `axis` are contiguous or fixed, and no condition depends on it."""
    if not _has_wide_types(nest) or (_coefficients(nest.index, [axis]) or [0])[0] != 1:
        return False
    for _, factors in _load_coefficients(nest, [axis]):
        if factors is None or factors[0] not in (0, 1):
            return False
    for expr in nest.expressions:
        if any(uses(condition, [axis.var]) for condition in _conditions(expr)):
            return False
        if contains(expr, (tirx.And, tirx.Or, tirx.Not, tirx.FloorDiv, tirx.FloorMod)) and uses(expr, [axis.var]):
            return False
    return True


def _transposed_loads(nest: _Nest, machine: Machine) -> tuple[Axis, list[ir.TensorLoad]] | None:
    """The axis along which loads are contiguous that the store strides along, and these loads; None without."""
    last = nest.axes[-1]
    lanes = machine.lanes
    if last.extent < lanes or not _has_wide_types(nest) or (_coefficients(nest.index, [last]) or [0])[0] != 1:
        return None
    across: Axis | None = None
    turned: list[ir.TensorLoad] = []
    for load, factors in _load_coefficients(nest, nest.axes):
        if factors is None:
            return None
        if factors[-1] in (0, 1):
            continue
        contiguous = [axis for axis, f in zip(nest.axes[:-1], factors, strict=False) if f == 1]
        if len(contiguous) != 1 or contiguous[0].extent < lanes or load.ty.dtype.itemsize != 4:
            return None
        if across is not None and contiguous[0] is not across:
            return None
        across = contiguous[0]
        turned.append(load)
    if across is None or len(turned) > 2 or any(_conditions(expr) for expr in nest.expressions):
        return None
    return across, turned


def _emit_transposed(
    nest: _Nest, across: Axis, turned: list[ir.TensorLoad], machine: Machine, operations: int
) -> tirx.Stmt:
    """Squares of `lanes` × `lanes` elements: vectors are loaded along `across`, stored along the last axis."""
    lanes = machine.lanes
    last = nest.axes[-1]
    tiles: list[Axis] = []
    starts: dict[tirx.Var, ir.Expr] = {}
    for axis in (across, last):
        tile = _new_axis(-(-axis.extent // lanes), axis, "tile")
        start = tile.var * tirx.const(lanes, axis.var.ty.dtype)
        if axis.extent % lanes:
            start = tirx.min(start, tirx.const(axis.extent - lanes, axis.var.ty.dtype))
        tiles.append(tile)
        starts[axis.var] = start
    statements: list[tirx.Stmt] = []
    row_start, column_start = (tirx.Var(name, axis.var.ty.dtype) for name, axis in (("row", across), ("col", last)))
    statements += [tirx.stmt.Bind(row_start, starts[across.var]), tirx.stmt.Bind(column_start, starts[last.var])]

    def bound(value: ir.Expr) -> tirx.Var:
        var = tirx.Var("v", value.ty.dtype)
        statements.append(tirx.stmt.Bind(var, value))
        return var

    columns: list[list[tirx.Var]] = []  # per turned load: vectors along the last axis
    squares: list[tirx.Buffer] = []
    for load in turned:
        vectors = []
        for k in range(lanes):
            index = substitute(
                load.indices[0],
                {across.var: row_start, last.var: column_start + tirx.const(k, last.var.ty.dtype)},
            )
            ramp = tirx.Ramp(index, tirx.const(1, index.ty.dtype), lanes)
            vectors.append(bound(tirx.BufferLoad(load.source, [ramp])))
        columns.append(_transpose(vectors, bound))
        squares.append(tirx.decl_buffer((lanes,), load.ty.dtype, name="column"))
    ramp = tirx.Ramp(tirx.const(0, "int32"), tirx.const(1, "int32"), lanes)
    for k in range(lanes):
        # The vector goes through a variable of `lanes` elements, which LLVM turns back into a register.
        for column, vectors in zip(squares, columns, strict=True):
            statements.append(tirx.BufferStore(column, vectors[k], [ramp]))
        lane = tirx.Var("lane", last.var.ty.dtype)
        values = {across.var: row_start + tirx.const(k, across.var.ty.dtype), last.var: column_start + lane}

        def of(load: ir.TensorLoad, lane: tirx.Var = lane) -> ir.Expr:
            for own, column in zip(turned, squares, strict=True):
                if tvm_ffi.structural_equal(load, own):
                    return tirx.BufferLoad(column, [lane])
            return load

        value = substitute(replace_loads(nest.value, of), values)
        variables, store = _store(nest.buffer, substitute(nest.index, values), value, lane, lanes)
        statements += [*variables, _for(lane, lanes, store, tirx.ForKind.VECTORIZED)]
    statements = [*(tirx.stmt.AllocBuffer(column) for column in squares), *statements]
    outer = [axis for axis in nest.axes if axis is not across and axis is not last]
    return _loops([*outer, *tiles], _sequence(statements), machine, operations)


def _transpose(vectors: list[tirx.Var], bound: Callable[[ir.Expr], tirx.Var]) -> list[tirx.Var]:
    """The columns of a square of vectors, by log2(n) rounds of shuffles of pairs."""
    count = len(vectors)
    half = count // 2
    while half:
        result = list(vectors)
        # Swap the off-diagonal blocks of every 2 × 2 blocks of half × half elements.
        low = [j if not j & half else count + (j ^ half) for j in range(count)]
        high = [count + j if j & half else j | half for j in range(count)]
        for i in (i for i in range(count) if not i & half):
            pair = [vectors[i], vectors[i | half]]
            for slot, mask in ((i, low), (i | half, high)):
                result[slot] = bound(tirx.Shuffle(pair, [tirx.const(m, "int32") for m in mask]))
        vectors = result
        half //= 2
    return vectors


# Reductions


@dataclass(frozen=True)
class _Tile:
    """Accumulators of one task: `rows` positions of `row_axis` × `vectors` vectors of `lanes` elements."""

    row_axis: Axis | None
    rows: int
    vector_axis: Axis | None  # None: lanes lie along a reduce axis, or there is one lane
    vectors: int
    lanes: int


def _emit_reduction(nest: _Nest, machine: Machine) -> tirx.Stmt:
    operations = _operations(nest)
    nest = _collapse(nest)
    if nest.axes:
        nest = _contiguous_last(nest)
    along = _lane_axis(nest, machine)
    last = nest.axes[-1] if nest.axes else None
    if last is not None and _is_vectorisable(nest, last) and (along is None or last.extent >= machine.lanes):
        lanes = cover(last.extent, machine.lanes).lanes
        tile = _choose_tile(nest, last, lanes, machine)
        return _emit_tiles(nest, tile, None, machine, operations)
    if along is not None:
        lanes = cover(along.extent, machine.lanes).lanes
        chains = min(_CHAINS, along.extent // lanes)
        tile = replace(_choose_tile(nest, None, lanes, machine), vectors=chains)
        if tile.rows > 1:
            tile = replace(tile, vectors=1)
        return _emit_tiles(nest, tile, along, machine, operations)
    tile = _choose_tile(nest, None, 1, machine)
    if tile.row_axis is None and last is not None:
        # Nothing is shared, but independent scalars hide the latency of their updates.
        tile = replace(tile, row_axis=last, rows=_even(last.extent, 2 * _CHAINS))
    return _emit_tiles(nest, tile, None, machine, operations)


def _lane_axis(nest: _Nest, machine: Machine) -> Axis | None:
    """The reduce axis along which lanes can accumulate: the largest that all loads walk contiguously."""
    reduction = nest.reduction
    if reduction.kind is None or not _has_wide_types(nest):
        return None
    fitting = []
    for axis in reduction.axes:
        factors = [_coefficients(load.indices[0], [axis]) for load in loads(reduction.term)]
        conditions = [c for c in _conditions(reduction.term) if uses(c, [axis.var])]
        if (
            all(f is not None and f[0] in (0, 1) for f in factors)
            and [1] in factors
            and not conditions
            and axis.extent > 1
        ):
            fitting.append(axis)
    return max(fitting, key=lambda axis: axis.extent, default=None)


def _choose_tile(nest: _Nest, vector_axis: Axis | None, lanes: int, machine: Machine) -> _Tile:
    """As many accumulators as registers allow, along the axis that shares the most loads between its rows."""
    accumulators = 12 if machine.registers >= 32 else 8
    term_loads = loads(nest.reduction.update)
    best: tuple[int, Axis] | None = None
    for axis in nest.axes:
        if axis is vector_axis:
            continue
        shared = sum((_coefficients(load.indices[0], [axis]) or [1])[0] == 0 for load in term_loads)
        if shared and (best is None or shared >= best[0]):
            best = (shared, axis)
    vectors = 1 if vector_axis is None else -(-vector_axis.extent // lanes)
    if best is None:
        return _Tile(None, 1, vector_axis, _even(vectors, 4), lanes)
    columns = 1 if vector_axis is None else _even(vectors, 2)
    rows = _even(best[1].extent, max(1, (accumulators if vector_axis is not None else 4) // columns))
    return _Tile(best[1], rows, vector_axis, columns, lanes)


def _even(extent: int, most: int) -> int:
    """The tile of at most `most` that covers `extent` in the fewest steps and then with the least overlap."""
    steps = -(-extent // most)
    return -(-extent // steps)


def _emit_tiles(nest: _Nest, tile: _Tile, along: Axis | None, machine: Machine, operations: int) -> tirx.Stmt:
    """All tiles of a reduction; `along` is the reduce axis of the lanes, if they lie along one."""
    reduction = nest.reduction
    dtype = reduction.accumulator.ty.dtype
    count = tile.rows * tile.vectors * tile.lanes
    assert count * dtype.itemsize <= _MAX_TILE_BYTES, "the register tile is no stack memory"
    registers = tirx.decl_buffer((count,), dtype, name="registers")
    statements: list[tirx.Stmt] = [tirx.stmt.AllocBuffer(registers)]
    outer = [axis for axis in nest.axes if axis is not tile.row_axis and axis is not tile.vector_axis]
    starts: dict[tirx.Var, ir.Expr] = {}
    for axis, size in ((tile.row_axis, tile.rows), (tile.vector_axis, tile.vectors * tile.lanes)):
        if axis is None:
            continue
        step = _new_axis(-(-axis.extent // size), axis, "tile")
        start = step.var * tirx.const(size, axis.var.ty.dtype)
        if axis.extent % size and axis.extent >= size:
            start = tirx.min(start, tirx.const(axis.extent - size, axis.var.ty.dtype))
        outer.append(step)
        bound = tirx.Var("start", axis.var.ty.dtype)
        if step.extent == 1:
            start = tirx.const(0, axis.var.ty.dtype)
        statements.append(tirx.stmt.Bind(bound, start))
        starts[axis.var] = bound

    def slot(row: int, vector: int, lane: ir.Expr) -> ir.Expr:
        return tirx.const((row * tile.vectors + vector) * tile.lanes, lane.ty.dtype) + lane

    def each(make: Callable[[int, int, tirx.Var], tirx.Stmt], vectors: Sequence[int]) -> list[tirx.Stmt]:
        made = []
        for row, vector in itertools.product(range(tile.rows), vectors):
            lane = tirx.Var("lane", "int32" if tile.vector_axis is None else tile.vector_axis.var.ty.dtype)
            made.append(_for(lane, tile.lanes, make(row, vector, lane), tirx.ForKind.VECTORIZED))
        return made

    def place(row: int, vector: int, lane: ir.Expr) -> dict[tirx.Var, ir.Expr]:
        values = dict(starts)
        if tile.row_axis is not None:
            values[tile.row_axis.var] = starts[tile.row_axis.var] + tirx.const(row, tile.row_axis.var.ty.dtype)
        if tile.vector_axis is not None:
            # The last vector of a tile longer than the axis ends with the axis.
            offset = min(vector * tile.lanes, tile.vector_axis.extent - tile.lanes)
            offset = tirx.const(offset, tile.vector_axis.var.ty.dtype)
            values[tile.vector_axis.var] = starts[tile.vector_axis.var] + offset + lane
        return values

    every = range(tile.vectors)
    init = reduction.init
    statements += each(lambda row, vector, lane: tirx.BufferStore(registers, init, [slot(row, vector, lane)]), every)
    statements.append(_reduce_loops(nest, tile, along, registers, slot, each, place))
    if along is not None:
        statements += _combine_lanes(reduction, tile, registers, slot, each)

    def store(row: int, vector: int, lane: ir.Expr) -> tirx.Stmt:
        values = place(row, vector, lane)
        values[reduction.accumulator] = tirx.BufferLoad(registers, [slot(row, vector, lane)])
        return tirx.BufferStore(nest.buffer, substitute(nest.value, values), [substitute(nest.index, values)])

    if along is None:
        statements += each(store, every)
    else:
        statements += [store(row, 0, tirx.const(0, "int32")) for row in range(tile.rows)]
    return _loops(outer, _sequence(statements), machine, operations)


def _reduce_loops(nest, tile, along, registers, slot, each, place) -> tirx.Stmt:
    """All reduce axes around the updates of a tile's accumulators."""
    reduction = nest.reduction

    def update(row: int, vector: int, lane: ir.Expr, position: ir.Expr | None, masked: int = 0) -> tirx.Stmt:
        values = place(row, vector, lane)
        if position is not None:
            values[along.var] = position
        old = tirx.BufferLoad(registers, [slot(row, vector, lane)])
        if masked:
            term = substitute(reduction.term, values)
            neutral = tirx.const(0, term.ty.dtype) if reduction.kind == "sum" else reduction.init
            term = tirx.Select(lane >= tirx.const(masked, lane.ty.dtype), term, neutral)
            value = type(reduction.update)(old, term)
        else:
            value = substitute(reduction.update, values | {reduction.accumulator: old})
        return tirx.BufferStore(registers, value, [slot(row, vector, lane)])

    if along is None:
        body = _sequence(each(lambda row, v, lane: update(row, v, lane, None), range(tile.vectors)))
        for axis in reversed(reduction.axes):
            body = _for(axis.var, axis.extent, body)
        return body
    row = cover(along.extent, tile.lanes)
    dtype = along.var.ty.dtype
    group = tile.vectors * tile.lanes
    step = tirx.Var("step", dtype)

    def at(base: ir.Expr, chains: int) -> list[tirx.Stmt]:
        return each(
            lambda r, v, lane: update(r, v, lane, base + tirx.const(v * tile.lanes, dtype) + lane.astype(dtype)),
            range(chains),
        )

    groups, rest = divmod(row.full, tile.vectors)
    parts = [_for(step, groups, _sequence(at(step * tirx.const(group, dtype), tile.vectors)))] if groups else []
    if rest:
        parts += at(tirx.const(groups * group, dtype), rest)
    if row.overlap:
        last = tirx.const(row.last, dtype)
        parts += each(lambda r, v, lane: update(r, v, lane, last + lane.astype(dtype), row.overlap), [0])
    body = _sequence(parts)
    for axis in reversed([axis for axis in reduction.axes if axis is not along]):
        body = _for(axis.var, axis.extent, body)
    return body


def _combine_lanes(reduction, tile, registers, slot, each) -> list[tirx.Stmt]:
    """Leave the result of every row in lane 0 of its first vector."""
    combine = type(reduction.update)

    def load(row: int, vector: int, lane: ir.Expr) -> ir.Expr:
        return tirx.BufferLoad(registers, [slot(row, vector, lane)])

    statements: list[tirx.Stmt] = []
    for vector in range(1, tile.vectors):
        statements += each(
            lambda row, _, lane, v=vector: tirx.BufferStore(
                registers, combine(load(row, 0, lane), load(row, v, lane)), [slot(row, 0, lane)]
            ),
            [0],
        )
    half = tile.lanes // 2
    while half:
        for row in range(tile.rows):
            lane = tirx.Var("lane", "int32")
            value = combine(load(row, 0, lane), load(row, 0, lane + tirx.const(half, "int32")))
            store = tirx.BufferStore(registers, value, [slot(row, 0, lane)])
            statements.append(_for(lane, half, store, tirx.ForKind.VECTORIZED))
        half //= 2
    return statements
