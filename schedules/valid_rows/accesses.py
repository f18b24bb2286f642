"""The loads and stores of a kernel, with their indices as sums of variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import tvm_ffi
from tvm import ir, tirx
from tvm.target import codegen

_FAR = 2**62  # of an index of which nothing is known


class UnknownError(Exception):
    """A statement that may do anything."""


@dataclass(frozen=True)
class Quotient:
    """var // divisor, as a variable of its own."""

    var: tirx.Var
    divisor: int | tirx.Var


Key = tirx.Var | Quotient


@dataclass(frozen=True)
class Sum:
    """Σ factor · variable, plus something in [low, high]."""

    factors: Mapping[Key, int]
    low: int
    high: int
    exact: bool = True  # every whole number from low to high occurs

    def __add__(self, other: Sum) -> Sum:
        factors = {key: self.factors.get(key, 0) + other.factors.get(key, 0) for key in (*self.factors, *other.factors)}
        exact = self.exact and other.exact and (self.low == self.high or other.low == other.high)
        return Sum({key: f for key, f in factors.items() if f}, self.low + other.low, self.high + other.high, exact)

    def times(self, factor: int) -> Sum:
        """The product with a number."""
        low, high = sorted((self.low * factor, self.high * factor))
        exact = self.exact and (low == high or abs(factor) == 1)
        return Sum({key: f * factor for key, f in self.factors.items() if f * factor}, low, high, exact)

    @property
    def is_constant(self) -> bool:
        return not self.factors and self.low == self.high


def number(value: int) -> Sum:
    """A constant."""
    return Sum({}, value, value)


def within(low: int, high: int) -> Sum:
    """Some number between two."""
    return Sum({}, max(low, -_FAR), min(high, _FAR), low == high)


@dataclass(frozen=True)
class Access:
    """One load or store."""

    buffer: tirx.Var
    index: Sum
    is_store: bool
    store: tirx.BufferStore | None  # of which it is the target, or a load in the value; None elsewhere
    scope: list[int]  # the range of accesses in the innermost condition, or loop that may not run, around this one


@dataclass
class Loop:
    """A loop, with the accesses in it as a range, and the place in the order of variables where its own stands."""

    node: tirx.For
    order: int
    start: int
    inside: list[Loop] = field(default_factory=list)
    around: Loop | None = None
    end: int = 0


@dataclass
class Kernel:
    """What a kernel does, in the order of its statements."""

    accesses: list[Access] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)  # the outermost ones
    allocated: dict[tirx.Var, list[int]] = field(default_factory=dict)  # the range of accesses in which a local buffer lives
    order: dict[tirx.Var, int] = field(default_factory=dict)  # of variables
    ranges: dict[tirx.Var, tuple[int, int]] = field(default_factory=dict)
    values: dict[tirx.Var, Sum] = field(default_factory=dict)  # of variables that are bound
    views: dict[tirx.Var, tirx.Var] = field(default_factory=dict)  # of buffers

    def seen_from(self, index: Sum, order: int) -> Sum:
        """The index by variables up to `order`; what comes after is anywhere in its range."""
        while True:
            last = max(index.factors, key=self._order_of, default=None)  # for others may cancel out
            if last is None or self._order_of(last) <= order:
                return index
            rest = Sum({k: f for k, f in index.factors.items() if k is not last}, index.low, index.high, index.exact)
            index = rest + self._expanded(last).times(index.factors[last])

    def range_of(self, index: Sum) -> tuple[int, int]:
        """The least and the largest value."""
        all_of = self.seen_from(index, -1)
        return all_of.low, all_of.high

    def _order_of(self, key: Key) -> int:
        if not isinstance(key, Quotient):
            return self.order[key]
        return max(self.order[one] for one in (key.var, key.divisor) if not isinstance(one, int))

    def _expanded(self, key: Key) -> Sum:
        if isinstance(key, Quotient):
            low, high = self.ranges[key.var]
            least = key.divisor if isinstance(key.divisor, int) else self.ranges[key.divisor][0]
            return within(min(low // least, low), high // least)
        if key in self.values:
            return self.values[key]
        low, high = self.ranges[key]
        return Sum({}, low, high)


def read(func: tirx.PrimFunc, numbers: Mapping[tirx.Var, tuple[int, int]]) -> Kernel:
    """The accesses of a kernel; `numbers` are the ranges of parameters that are no buffers. Raises UnknownError."""
    reader = _Reader(func, numbers)
    reader.statement(func.body)
    reader.scope[1] = len(reader.kernel.accesses)
    for lives in reader.kernel.allocated.values():
        lives[1] = lives[1] if lives[1] >= 0 else len(reader.kernel.accesses)
    return reader.kernel


class _Reader:
    def __init__(self, func: tirx.PrimFunc, numbers: Mapping[tirx.Var, tuple[int, int]]) -> None:
        self.kernel = Kernel()
        self.store: tirx.BufferStore | None = None
        self.loop: Loop | None = None
        self.scope = [0, -1]
        for var, bounds in numbers.items():
            self._declare(var, *bounds)

    def _declare(self, var: tirx.Var, low: int, high: int) -> None:
        self.kernel.order[var] = len(self.kernel.order)
        self.kernel.ranges[var] = (low, high)

    def statement(self, stmt: tirx.Stmt) -> None:
        """Note what a statement does."""
        kernel = self.kernel
        if isinstance(stmt, tirx.SeqStmt):
            own = []
            for one in stmt.seq:
                if isinstance(one, tirx.stmt.AllocBuffer):
                    kernel.allocated[one.buffer] = [len(kernel.accesses), -1]
                    own.append(one.buffer)
                else:
                    self.statement(one)
            for buffer in own:
                kernel.allocated[buffer][1] = len(kernel.accesses)
        elif isinstance(stmt, tirx.For):
            self._for(stmt)
        elif isinstance(stmt, tirx.stmt.DeclBuffer):
            self._view(stmt)
        elif isinstance(stmt, tirx.stmt.Bind):
            self._loads(stmt.value)
            value = self.sum(stmt.value) if _is_whole(stmt.value) else within(-_FAR, _FAR)
            low, high = kernel.range_of(value)
            self._declare(stmt.var, low, high)
            kernel.values[stmt.var] = value
        elif isinstance(stmt, tirx.BufferStore):
            self._loads(stmt.indices[0])
            self.store = stmt
            self._loads(stmt.value)
            self._access(stmt.buffer, stmt.indices, True)
            self.store = None
        elif isinstance(stmt, tirx.IfThenElse):
            self._loads(stmt.condition)
            for case in (stmt.then_case, stmt.else_case):
                if case is not None:
                    with self._perhaps():
                        self.statement(case)
        elif not _is_prefetch(stmt):
            raise UnknownError(type(stmt).__name__)

    def _for(self, stmt: tirx.For) -> None:
        self._loads(stmt.extent)
        (first, last), (low, high) = (self.kernel.range_of(self.sum(one)) for one in (stmt.min, stmt.extent))
        loop = Loop(stmt, len(self.kernel.order), len(self.kernel.accesses), around=self.loop)
        self._declare(stmt.loop_var, first, last + max(high - 1, 0))
        (self.loop.inside if self.loop else self.kernel.loops).append(loop)
        self.loop = loop
        with nullcontext() if low > 0 else self._perhaps():
            self.statement(stmt.body)
        self.loop, loop.end = loop.around, len(self.kernel.accesses)

    @contextmanager
    def _perhaps(self) -> Iterator[None]:
        """Around what may not run."""
        around, self.scope = self.scope, [len(self.kernel.accesses), -1]
        yield
        self.scope[1], self.scope = len(self.kernel.accesses), around

    def _view(self, stmt: tirx.stmt.DeclBuffer) -> None:
        offset = stmt.buffer.elem_offset
        source = stmt.data.args[0] if isinstance(stmt.data, ir.Call) and len(stmt.data.args) else None
        if not isinstance(source, ir.Var) or not isinstance(offset, int | tirx.IntImm) or int(offset):
            raise UnknownError("a view from the middle of a buffer")
        self.kernel.views[stmt.buffer] = self.kernel.views.get(source, source)

    def _access(self, buffer: tirx.Var, indices, is_store: bool) -> None:
        source = self.kernel.views.get(buffer, buffer)
        index = number(0)
        for one, extent in zip(indices, buffer.shape, strict=True):
            index = index.times(int(extent)) + self.sum(one)
        if source.dtype != buffer.dtype:  # other elements
            index = within(-_FAR, _FAR)
        self.kernel.accesses.append(Access(source, index, is_store, self.store, self.scope))

    def _loads(self, expr: ir.Expr) -> None:
        found: list[ir.TensorLoad] = []
        calls: list[ir.Call] = []
        lets: list[tirx.Let] = []
        tvm_ffi.structural_walk(expr, [(ir.TensorLoad, found.append), (ir.Call, calls.append), (tirx.Let, lets.append)])
        if any(isinstance(arg, ir.Var) and tirx.is_buffer_var(arg) for call in calls for arg in call.args):
            raise UnknownError("a call that takes a buffer")
        for let in lets:
            if let.var not in self.kernel.order:
                self._declare(let.var, -_FAR, _FAR)
        for load in found:
            self._access(load.source, load.indices, False)

    def sum(self, expr: ir.Expr) -> Sum:
        """An index as a sum."""
        if isinstance(expr, tirx.IntImm):
            return number(int(expr))
        if isinstance(expr, ir.Var):
            return Sum({expr: 1}, 0, 0)
        if isinstance(expr, tirx.Add):
            return self.sum(expr.a) + self.sum(expr.b)
        if isinstance(expr, tirx.Sub):
            return self.sum(expr.a) + self.sum(expr.b).times(-1)
        if isinstance(expr, tirx.Ramp):
            step = self.sum(expr.stride)
            if not step.is_constant:
                return within(-_FAR, _FAR)
            end = step.low * (int(expr.lanes) - 1)
            return self.sum(expr.base) + Sum({}, min(0, end), max(0, end), abs(step.low) == 1)
        if isinstance(expr, tirx.Broadcast):
            return self.sum(expr.value)
        if isinstance(expr, tirx.Cast) and _is_whole(expr.value):
            return self.sum(expr.value)
        if isinstance(expr, tirx.Mul):
            a, b = self.sum(expr.a), self.sum(expr.b)
            if b.is_constant:
                return a.times(b.low)
            return b.times(a.low) if a.is_constant else self._interval(expr, a, b)
        if isinstance(expr, tirx.FloorDiv | tirx.FloorMod | tirx.Min | tirx.Max):
            return self._interval(expr, self.sum(expr.a), self.sum(expr.b))
        return within(*self._of_two(expr)) if isinstance(expr, tirx.Select | ir.Call) else within(-_FAR, _FAR)

    def _interval(self, expr: ir.Expr, a: Sum, b: Sum) -> Sum:
        (low, high), (least, most) = self.kernel.range_of(a), self.kernel.range_of(b)
        if isinstance(expr, tirx.Min):
            return within(min(low, least), min(high, most))
        if isinstance(expr, tirx.Max):
            return within(max(low, least), max(high, most))
        if isinstance(expr, tirx.Mul):
            products = [x * y for x in (low, high) for y in (least, most)]
            return within(min(products), max(products))
        if least < 1:
            return within(-_FAR, _FAR)
        if isinstance(expr, tirx.FloorMod):
            return within(0, most - 1)
        one, by = _only(a), _only(b)
        if one is not None and (b.is_constant or by is not None):
            return Sum({Quotient(one, b.low if by is None else by): 1}, 0, 0)
        return within(min(low // least, low // most), max(high // least, high // most))

    def _of_two(self, expr: ir.Expr) -> tuple[int, int]:
        """Of a choice between two numbers."""
        if isinstance(expr, tirx.Select):
            cases = [expr.true_value, expr.false_value]
        elif isinstance(expr.op, ir.Op) and expr.op.name == "tirx.if_then_else":
            cases = list(expr.args[1:])
        else:
            return -_FAR, _FAR
        ranges = [self.kernel.range_of(self.sum(case)) for case in cases]
        return min(low for low, _ in ranges), max(high for _, high in ranges)


def _is_prefetch(stmt: tirx.Stmt) -> bool:
    """Whether a statement only says what is going to be read."""
    call = stmt.value if isinstance(stmt, tirx.Evaluate) else None
    is_intrinsic = isinstance(call, ir.Call) and isinstance(call.op, ir.Op) and call.op.name == "tirx.call_llvm_intrin"
    return is_intrinsic and int(call.args[0]) == codegen.llvm_lookup_intrinsic_id("llvm.prefetch")


def _only(index: Sum) -> tirx.Var | None:
    """The variable that an index is."""
    if index.low == index.high == 0 and len(index.factors) == 1:
        ((key, factor),) = index.factors.items()
        return key if factor == 1 and not isinstance(key, Quotient) else None
    return None


def _is_whole(expr: ir.Expr) -> bool:
    return isinstance(expr.ty, ir.PrimType) and str(expr.ty.dtype).startswith(("int", "uint"))


def enclosing(loop: Loop) -> Iterator[Loop]:
    """The loops around one, the innermost first."""
    at = loop.around
    while at is not None:
        yield at
        at = at.around
