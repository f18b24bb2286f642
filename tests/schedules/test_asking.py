"""Weights that register tiles ask for while others are multiplied: those of every next block, or position, once at least."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tvm_ffi
from tvm import ir, tirx
from tvm.target import codegen

from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.asking import MOST_SHARES, share
from flexcomp.schedules.tiles.memory import Memory
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit

from .weight_reads import _Walk

SLOW = Memory(far=10.0, near=6.0, second_nbytes=2 << 20, is_slow=True)
UNIT = VectorUnit(16, 32, memory=SLOW)
LINE = 16
SAME = (1, 1, 1, 1)
_SECOND_LEVEL = 4 - 2  # in the intrinsic's words


class _Asked(_Walk):
    """The lines of a panel that a kernel asks for into the second-level cache."""

    def __init__(self, kernel: tirx.PrimFunc, blocks: int) -> None:
        super().__init__(kernel, "panel", blocks, 1 << 40)
        self.lines: set[int] = set()
        self.statement(kernel.body)

    def _indices(self, stmt: tirx.Stmt) -> list[ir.Expr]:
        if stmt not in self.reads:
            self.reads[stmt] = []
            tvm_ffi.structural_walk(stmt, [(ir.Call, lambda call: self._note(call, self.reads[stmt]))])
        return self.reads[stmt]

    def _note(self, call: ir.Call, found: list[ir.Expr]) -> None:
        if not isinstance(call.op, ir.Op) or call.op.name != "tirx.call_llvm_intrin":
            return
        if int(call.args[0]) != codegen.llvm_lookup_intrinsic_id("llvm.prefetch") or int(call.args[3]) != _SECOND_LEVEL:
            return
        load = call.args[1].args[0]
        if load.source in self.views:
            found.append(load.indices[0])

    def _loop(self, loop: tirx.For) -> None:
        if self._indices(loop):
            start = self._value(loop.min, 0)
            for value in range(start, start + self._value(loop.extent, 0)):
                self.env[loop.loop_var] = value
                self.statement(loop.body)

    def _touch(self, statements: list[tirx.Stmt], ranges: object) -> None:
        self.lines.update(self._value(index, 0) // LINE for stmt in statements for index in self._indices(stmt))


def asked(spec: ConvSpec, family: str, unit: VectorUnit = UNIT) -> tuple[set[int], int, int]:
    """The lines that the family's last kernel asks for, the lines of a block, and the number of blocks."""
    kernel = [one for one in candidates(spec, unit) if one.family == family][-1]
    return _Asked(kernel.build(), kernel.panel.blocks).lines, kernel.panel.block_nbytes // 4 // LINE, kernel.panel.blocks


@pytest.mark.parametrize(
    "spec, family",
    [
        (ConvSpec(1, 1, 28, 48, 128), "direct"),  # more tiles than one, of pixels in a row
        (ConvSpec(1, 1, 197, 48, 128), "direct"),
        (ConvSpec(1, 1, 52, 64, 256), "strassen"),
    ],
    ids=str,
)
def test_all_weights_of_the_next_blocks_are_asked_for(spec, family):
    lines, each, blocks = asked(spec, family)
    rows = each - each // (spec.in_channels + 1) * spec.in_channels  # the bias is not among a step's weights
    wanted = {block * each + line for block in range(1, blocks) for line in range(rows, each)}
    missing = wanted - lines
    assert blocks > 1 and not missing, f"{len(missing)} of {len(wanted)} lines"
    assert max(lines) <= blocks * each + rows, "none beyond the panel but what is rounded up"


def test_all_weights_of_the_next_positions_are_asked_for():
    spec = ConvSpec(1, 14, 14, 128, 128, (3, 3), padding=SAME)
    lines, each, blocks = asked(spec, "winograd")
    position = each // 36 if each % 36 < each % 16 else each // 16
    wanted = {block * each + line for block in range(blocks) for line in range(each - each // position * position, each)}
    missing = wanted - lines
    assert len(missing) <= blocks * position, "but those of a block's first position"


def test_most_weights_are_asked_for_where_tiles_at_a_border_leave_taps_out():
    spec = ConvSpec(1, 7, 7, 32, 128, (3, 3), padding=SAME)
    lines, each, blocks = asked(spec, "direct")
    wanted = set(range(each, blocks * each))
    assert blocks > 1 and len(wanted & lines) > 0.85 * len(wanted)


def test_a_cache_without_room_for_two_blocks_is_not_asked_to_hold_them():
    spec = ConvSpec(1, 1, 28, 48, 128)
    small = replace(UNIT, memory=replace(SLOW, second_nbytes=8 * 1024))
    assert not asked(spec, "direct", small)[0] and asked(spec, "direct")[0]


def test_fast_memory_is_not_asked():
    assert not asked(ConvSpec(1, 1, 28, 48, 128), "direct", VectorUnit(16, 32))[0]


def test_nothing_is_asked_for_in_one_block_and_by_lane():
    assert not asked(ConvSpec(1, 1, 28, 48, 16), "direct")[0]
    assert not asked(ConvSpec(1, 1, 28, 48, 128), "direct", VectorUnit(4, 32, by_lane=True, memory=SLOW))[0]


def test_kernels_that_ask_wait_less():
    """By the model: as long as all tiles compute, not only the first one."""
    spec = ConvSpec(1, 7, 7, 512, 512, (3, 3), padding=SAME)
    room, none = (
        min(one.work for one in candidates(spec, replace(UNIT, memory=memory)) if one.family == "direct")
        for memory in (SLOW, replace(SLOW, second_nbytes=1 << 20))
    )
    assert room < 0.9 * none


@pytest.mark.parametrize("tiles", [1, 2, 3, 7, 33, MOST_SHARES, MOST_SHARES + 1])
def test_shares_are_all_of_a_step(tiles):
    assert share(64, tiles) * tiles >= 64 or share(64, tiles) == 0
    assert (share(64, tiles) > 0) == (1 < tiles <= MOST_SHARES)
