"""Register tiles of float16. AArch64's multiply-adds take a factor by lane from the first 16 registers only.

LLVM gives accumulators the first registers that are free, and then keeps factors on the stack. So accumulators begin in the last
registers: `kept_<number>` is its argument, in that register. LLVM also unrolls loops over steps on some cores, until factors of
two steps are live: nothing moves across a call of `apart`. The text of both is part of a kernel's module (`DefineCalled`).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from .emit import Accumulators, vector

_LAST = 31
_KEPT, _APART = "flexcomp_half_kept_", "flexcomp_half_apart"
_WIDTH = 8  # lanes of a register


class HalfAccumulators(Accumulators):
    """A register tile of float16."""

    dtype = "float16"

    def begin_steps(self) -> None:
        if len(self._rows) > 1:  # a row that is alone has few factors
            T.evaluate(tirx.call_extern("int32", _APART))


class HalfByLane(HalfAccumulators):
    """One whose left factors are lanes."""

    def fill(self, rows: int, value: Callable[[int, int], tirx.Expr]) -> None:
        places = [(row, start, lanes) for row in range(rows) for start, lanes in self.pieces]
        for before, (row, start, lanes) in enumerate(places):
            given = value(start, lanes)
            if lanes == _WIDTH and before <= _LAST:
                given = tirx.call_pure_extern(f"float16x{_WIDTH}", f"{_KEPT}{_LAST - before}", given)
            T.buffer_store(self._rows[row], given, [vector(start, lanes)])


def text_of(names: set[str], registers: bool) -> str:
    """LLVM's text of the functions among these names; without `registers`, as on other architectures, they do nothing."""
    numbers = sorted(int(match[1]) for match in (re.fullmatch(rf"{_KEPT}(\d+)", name) for name in names) if match)
    texts = [_kept(number, registers) for number in numbers]
    return "\n".join(texts + [_apart(registers)] * (_APART in names))


def _kept(number: int, registers: bool) -> str:
    kind = f"<{_WIDTH} x half>"
    body = f'  %y = call {kind} asm "", "={{v{number}}},0"({kind} %x)\n  ret {kind} %y' if registers else f"  ret {kind} %x"
    return f"define internal {kind} @{_KEPT}{number}({kind} %x) alwaysinline {{\n{body}\n}}"


def _apart(registers: bool) -> str:
    barrier = '  call void asm sideeffect "", "~{memory}"()\n' if registers else ""
    return f"define internal i32 @{_APART}() alwaysinline {{\n{barrier}  ret i32 0\n}}"
