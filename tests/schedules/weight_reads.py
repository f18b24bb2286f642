"""How often a kernel reads its weights from memory: its loops, walked with a cache that holds only weights.

A cache of `capacity` bytes keeps the pages of the panel that were read last. Loops that do not change what is read are walked at
both ends and twice in between, and what the second time misses counts for all others. The input and the result have no room in
this cache, so a kernel reads its weights at least so often.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import tvm_ffi
from tvm import ir, tirx

_PAGE = 4096
_BINARY: dict[type, Callable[[int, int], int]] = {
    tirx.Add: lambda a, b: a + b, tirx.Sub: lambda a, b: a - b, tirx.Mul: lambda a, b: a * b, tirx.Min: min, tirx.Max: max,
    tirx.FloorDiv: lambda a, b: a // b, tirx.FloorMod: lambda a, b: a % b, tirx.Div: lambda a, b: a // b,
    tirx.RShift: lambda a, b: a >> b, tirx.BitwiseAnd: lambda a, b: a & b,
    tirx.LT: lambda a, b: a < b, tirx.LE: lambda a, b: a <= b, tirx.GT: lambda a, b: a > b, tirx.GE: lambda a, b: a >= b,
    tirx.EQ: lambda a, b: a == b, tirx.NE: lambda a, b: a != b, tirx.And: lambda a, b: a and b, tirx.Or: lambda a, b: a or b,
}  # fmt: skip


def times_read(kernel: tirx.PrimFunc, panel: str, blocks: int, capacity: int) -> float:
    """Of all its weights, the parameter `panel`, for all blocks at once."""
    walk = _Walk(kernel, panel, blocks, capacity)
    walk.statement(kernel.body)
    return walk.missed * _PAGE / walk.nbytes


class _Walk:
    def __init__(self, kernel: tirx.PrimFunc, panel: str, blocks: int, capacity: int) -> None:
        (of,) = (param for param in kernel.params if param.name == panel)
        self.itemsize = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}[str(of.dtype)]
        self.nbytes = self.itemsize
        for extent in of.shape:
            self.nbytes *= int(extent)
        self.views, self.capacity, self.missed = {of}, capacity // _PAGE, 0.0
        self.pages: OrderedDict[int, None] = OrderedDict()
        self.env: dict[ir.Var, int] = {}
        for param in kernel.params:
            if param.name in ("first", "count"):
                self.env[param] = {"first": 0, "count": blocks}[param.name]
        self.bound: dict[ir.Var, ir.Expr] = {}
        tvm_ffi.structural_walk(kernel.body, [(tirx.stmt.DeclBuffer, self._view), (tirx.stmt.Bind, self._bind)])
        self.reads: dict[tirx.Stmt, list[ir.Expr]] = {}
        self.needed: dict[ir.Var, set[ir.Var]] = {}
        self.moves: dict[tirx.For, tuple[bool, bool]] = {}  # whether reads depend on a loop, and whether loops inside read

    def _view(self, stmt: tirx.stmt.DeclBuffer) -> None:
        if isinstance(stmt.data, ir.Call) and len(stmt.data.args) and stmt.data.args[0] in self.views:
            self.views.add(stmt.buffer)

    def _bind(self, stmt: tirx.stmt.Bind) -> None:
        self.bound[stmt.var] = stmt.value

    # -- what is read ------------------------------------------------------------------------------

    def _indices(self, stmt: tirx.Stmt) -> list[ir.Expr]:
        """Of all reads of weights in a statement, but not in what is prefetched."""
        if stmt not in self.reads:
            found = self.reads[stmt] = []
            note = lambda load: found.append(load.indices[0]) if load.source in self.views else None  # noqa: E731
            tvm_ffi.structural_walk(stmt, [(ir.TensorLoad, note)])
        return self.reads[stmt]

    def _moves(self, loop: tirx.For) -> tuple[bool, bool]:
        if loop not in self.moves:
            inner: list[tirx.For] = []
            tvm_ffi.structural_walk(loop.body, [(tirx.For, inner.append)])
            depends = any(loop.loop_var in self._depends(index) for index in self._indices(loop))
            self.moves[loop] = depends, any(map(self._indices, inner))
        return self.moves[loop]

    def _depends(self, expr: ir.Expr) -> set[ir.Var]:
        """The variables of loops that an index is made of."""
        found: set[ir.Var] = set()

        def note(var: ir.Var) -> None:
            if var in self.bound:
                if var not in self.needed:
                    self.needed[var] = self._depends(self.bound[var])
                found.update(self.needed[var])
            else:
                found.add(var)

        tvm_ffi.structural_walk(expr, [(ir.Var, note)])
        return found

    # -- walking -----------------------------------------------------------------------------------

    def statement(self, stmt: tirx.Stmt) -> None:
        if isinstance(stmt, tirx.SeqStmt):
            for one in stmt.seq:
                self.statement(one)
        elif isinstance(stmt, tirx.IfThenElse):
            taken = stmt.then_case if self._value(stmt.condition, 0) else stmt.else_case
            if taken is not None:
                self.statement(taken)
        elif isinstance(stmt, tirx.For):
            self._loop(stmt)
        elif isinstance(stmt, tirx.AttrStmt):
            self.statement(stmt.body)
        else:
            self._touch([stmt], {})

    def _loop(self, loop: tirx.For) -> None:
        indices = self._indices(loop)
        if not indices:
            return
        start, extent = (self._value(one, 0) for one in (loop.min, loop.extent))
        if extent <= 0:
            return
        depends, nested = self._moves(loop)
        if depends:
            if not nested and not self._jumps(loop, start, extent):
                self._touch([loop.body], {loop.loop_var: (start, start + extent - 1)})
                return
            for value in range(start, start + extent):
                self.env[loop.loop_var] = value
                self.statement(loop.body)
            return
        for value in (0, 1) if extent > 3 else range(extent):
            self._iteration(loop, start + value)
        if extent > 3:
            again = self._iteration(loop, start + 1)
            self.missed += (extent - 4) * again
            self._iteration(loop, start + extent - 1)

    def _jumps(self, loop: tirx.For, start: int, extent: int) -> bool:
        """Whether a loop without others inside leaves out pages between two of its reads."""
        found: list[list[int]] = []
        for value in range(start, start + min(extent, 2)):
            self.env[loop.loop_var] = value
            found.append([self._value(index, 0) for index in self._indices(loop.body)])
        return any(abs(b - a) * self.itemsize > _PAGE for a, b in zip(found[0], found[-1], strict=True))

    def _iteration(self, loop: tirx.For, value: int) -> float:
        """The pages that it misses."""
        before, self.env[loop.loop_var] = self.missed, value
        self.statement(loop.body)
        return self.missed - before

    def _touch(self, statements: list[tirx.Stmt], ranges: dict[ir.Var, tuple[int, int]]) -> None:
        """Read from the least to the largest index."""
        ends: list[int] = []
        for stmt in statements:
            for index in self._indices(stmt):
                for end in (0, 1):
                    self.env.update({var: bounds[end] for var, bounds in ranges.items()})
                    ends.append(self._value(index, end) * self.itemsize)
        if not ends:
            return
        for page in range(min(ends) // _PAGE, max(ends) // _PAGE + 1):
            if page in self.pages:
                self.pages.move_to_end(page)
                continue
            self.missed += 1
            self.pages[page] = None
            if len(self.pages) > self.capacity:
                self.pages.popitem(last=False)

    def _value(self, expr: ir.Expr, end: int) -> int:
        """A number; of a vector of indices the first, or with `end` the last."""
        if isinstance(expr, tirx.IntImm):
            return int(expr)
        if isinstance(expr, ir.Var):
            return self.env[expr] if expr in self.env else self._value(self.bound[expr], end)
        if isinstance(expr, tirx.Ramp):
            return self._value(expr.base, end) + end * self._value(expr.stride, end) * (int(expr.lanes) - 1)
        if isinstance(expr, tirx.Cast):
            return self._value(expr.value, end)
        if type(expr) in _BINARY:
            return _BINARY[type(expr)](self._value(expr.a, end), self._value(expr.b, end))
        if isinstance(expr, tirx.Select):
            return self._value(expr.true_value if self._value(expr.condition, end) else expr.false_value, end)
        if isinstance(expr, ir.Call) and expr.op.name.endswith("if_then_else"):
            condition, yes, no = expr.args
            return self._value(yes if self._value(condition, end) else no, end)
        raise AssertionError(f"an index that is not of numbers: {type(expr).__name__} {expr}")


