"""A kernel that computes the first rows of its results, and writes zeros to the others.

The kernel takes one more number, the rows that are wanted:

    for i in range(64): y[32 * i + …] = x[32 * i + …]
    →  for i in range(min(64, valid)): …
       for i in range(64 - valid): y[32 * (valid + i) + …] = 0

Tiles of rows are computed whole. Of slices, the last one writes the zeros. Rows lie along the first axis of a tensor that has
more than one element, so rows that are not wanted are the end of the tensor. A kernel is one of rows if some loop writes, in each
iteration, rows of its results, and reads just those of an operand that has rows, too. Kernels that can do better than end their
loops early are made with the number, and get the zeros here (`with_zeros`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import tvm_ffi
from tvm import ir, tirx

from .accesses import Quotient, UnknownError, read
from .bounds import Bound, End, aligned, bounds, reads_own_rows

# Shorter rows are computed no slower than they are filled with zeros. Masks have rows of one element, or are bool, and must be
# whole.
_LEAST_NBYTES = 64
_KINDS = ("float32", "uint8", "int8")


@dataclass(frozen=True)
class ByRows:
    """A kernel whose results have rows as an operand does."""

    kernel: tirx.PrimFunc | None  # told how many rows are wanted, after its results; None: the kernel computes all


def by_rows(
    kernel: tirx.PrimFunc, rows: int, operands: Collection[int], results: Collection[int], blocks: int, declared: bool = False,
    scratch: Collection[int] = (),
) -> ByRows | None:
    """The kernel for up to `rows` rows; None if nothing shows that its results have rows.

    `operands` are the positions of parameters with as many rows, `results` those of all that are written, one after the other.
    `blocks`: of the weights, of which numbers among the parameters count some. `declared`: the results are known to have
    rows. `scratch`: parameters that a loop over rows fills anew in each iteration.
    """
    params = kernel.params
    row = {params[position]: elements(params[position]) // rows for position in results}
    if any(elements(param) % rows for param in row):
        return None
    numbers = {param: (0, blocks) for param in params if not tirx.is_buffer_var(param)}
    for count in list(numbers)[1:]:
        numbers[count] = (1, blocks)
    try:
        found = read(kernel, numbers)
    except UnknownError:
        return ByRows(None) if declared else None
    loops = bounds(found, row, [params[position] for position in scratch])
    if not reads_own_rows(found, loops, row):
        return None
    of = {params[position]: elements(params[position]) // rows for position in operands}
    if not declared and {result for bound in loops for result in aligned(found, bound, row, of)} != set(row):
        return None
    kinds = {one: str(one.dtype) for one in row}
    worth = loops and all(kinds[one] in _KINDS and row[one] * np.dtype(kinds[one]).itemsize >= _LEAST_NBYTES for one in row)
    if not worth:
        return ByRows(None)
    return ByRows(with_zeros(bounded(kernel, loops, rows, max(results) + 1), rows, results, blocks))


def with_zeros(kernel: tirx.PrimFunc, rows: int, results: Collection[int], blocks: int) -> tirx.PrimFunc:
    """The kernel, which takes the number of valid rows after its results, with zeros in other rows of these.

    Slices of `blocks` are computed in their order; the last one writes zeros for all.
    """
    params = list(kernel.params)
    valid = params[max(results) + 1]
    numbers = [param for param in params if not tirx.is_buffer_var(param) and param is not valid]
    rest = tirx.const(rows, "int64") - _clamped(valid, rows)
    if numbers:
        first, count = (one.astype("int64") for one in numbers)
        rest = tirx.Select(first + count >= tirx.const(blocks, "int64"), rest, tirx.const(0, "int64"))
    kind = _counted_in(kernel, [params[position] for position in results])
    left = tirx.Var("left", kind)
    tails = [_zeros(params[position], rows, left) for position in results]
    body = list(kernel.body.seq) if isinstance(kernel.body, tirx.SeqStmt) else [kernel.body]
    whole = tirx.SeqStmt([*body, tirx.stmt.Bind(left, rest.astype(kind)), *tails])
    return tirx.PrimFunc(params, whole, kernel.ret_type, attrs=kernel.attrs)


def _counted_in(kernel: tirx.PrimFunc, results: Collection[tirx.Var]) -> str:
    """The type of the kernel's loop variables, where it holds the sizes of `results`: 32 bits but for kernels that TVM makes.

    Kernels with loops of 64 bits take TVM's passes twice as long (`flexcomp/compiler/machine_code.py`).
    """
    loops: list[tirx.For] = []
    tvm_ffi.structural_walk(kernel.body, (tirx.For, loops.append))
    narrow = loops and all(loop.loop_var.ty.dtype == "int32" for loop in loops)
    return "int32" if narrow and all(elements(one) < 2**31 for one in results) else "int64"


def elements(param: tirx.Var) -> int:
    """Of a buffer."""
    return math.prod(map(int, param.shape))


def _clamped(valid: tirx.Var, rows: int) -> ir.Expr:
    return tirx.max(tirx.min(valid, tirx.const(rows, "int64")), tirx.const(0, "int64"))


def bounded(
    func: tirx.PrimFunc, loops: list[Bound], rows: int, position: int,
    asked: Callable[[tirx.BufferStore, ir.Expr], tirx.BufferStore] | None = None,
) -> tirx.PrimFunc:  # fmt: skip
    """The kernel whose parameter at `position` says how many rows are wanted; loops end there, and stores are as `asked`."""
    valid = tirx.Var("valid", "int64")
    kind = loops[0].loop.node.loop_var.ty.dtype if loops else "int64"
    wanted = tirx.Var("wanted", kind)
    clamped = _clamped(valid, rows)
    ends = {bound.loop.node.loop_var: bound for bound in loops}

    def ended(loop: tirx.For) -> tirx.For:
        bound = ends.get(loop.loop_var)
        if bound is None:
            return loop
        kind = loop.loop_var.ty.dtype
        latest = [_last(end, tirx.Cast(kind, wanted) if kind != wanted.ty.dtype else wanted, kind) for end in bound.ends]
        extent = latest[0]
        for one in latest[1:]:
            extent = tirx.max(extent, one)
        extent = tirx.max(tirx.min(loop.extent, extent), tirx.const(0, kind))
        return tirx.For(loop.loop_var, loop.min, extent, loop.kind, loop.body, None, loop.annotations)

    changes = [(tirx.For, ended)]
    if asked is not None:
        changes.append((tirx.BufferStore, lambda store: asked(store, wanted)))
    body = tvm_ffi.structural_map(func.body, changes)
    first = tirx.Cast(kind, clamped) if kind != "int64" else clamped
    statements = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    params = [*func.params[:position], valid, *func.params[position:]]
    whole = tirx.SeqStmt([tirx.stmt.Bind(wanted, first), *statements])
    return tirx.PrimFunc(params, whole, func.ret_type, attrs=func.attrs)


def _last(end: End, wanted: ir.Expr, kind: str) -> ir.Expr:
    """The number of iterations before the one that stores no wanted row."""
    start: ir.Expr = tirx.const(end.offset, kind)
    for key, factor in end.factors.items():
        of = tirx.floordiv(key.var, _divisor(key.divisor, key.var.ty.dtype)) if isinstance(key, Quotient) else key
        of = of.astype(kind) if of.ty.dtype != kind else of
        start = start + of * tirx.const(factor, kind)
    rest = wanted * tirx.const(end.row, kind) - start
    count = tirx.floordiv(rest + tirx.const(end.stride - 1, kind), tirx.const(end.stride, kind))
    divisor = _divisor(end.divisor, kind)
    return count if isinstance(end.divisor, int) and end.divisor == 1 else count * divisor


def _divisor(divisor: int | tirx.Var, kind: str) -> ir.Expr:
    if isinstance(divisor, int):
        return tirx.const(divisor, kind)
    return divisor.astype(kind) if divisor.ty.dtype != kind else divisor


def _zeros(result: tirx.Var, rows: int, left: tirx.Var) -> tirx.Stmt:
    """Zeros in the last `left` rows."""
    size, kind = elements(result), left.ty.dtype
    flat = tirx.decl_buffer((size,), result.dtype, name=f"{result.name}_rest")
    place = tirx.Var("element", kind)
    count = left * tirx.const(size // rows, kind)
    store = tirx.BufferStore(flat, tirx.const(0, result.dtype), [tirx.const(size, kind) - count + place])
    loop = tirx.For(place, tirx.const(0, kind), count, tirx.ForKind.SERIAL, store)
    return tirx.SeqStmt([tirx.stmt.DeclBuffer(flat, data=tirx.buffer.buffer_data(result)), loop])
