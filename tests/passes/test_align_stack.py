"""Vectors that do not fit the registers lie on the stack, each within a cache line."""

import re

import pytest
import tvm
import tvm_ffi

from flexcomp.compiler.machine_code import compile_module
from flexcomp.device.target import resolve_target
from flexcomp.passes import AlignStack
from flexcomp.schedules.direct import candidate as direct_candidate
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import Tile, fitting

CONV = ConvSpec(batch=1, height=14, width=14, in_channels=64, out_channels=64, kernel=(3, 3), padding=(1, 1, 1, 1))


def winograd(target):
    """A kernel whose transforms hold more vectors than there are registers."""
    return next(c for c in candidates(CONV, target.vector_unit) if "F(4)" in str(c)).build()


def moves(assembly: str, instruction: str, register: str) -> int:
    """Stores of a whole register to the frame."""
    return len(re.findall(rf"{instruction}\s+%{register}\d+, -?\d*\(%r[sb]p\)", assembly))


@pytest.mark.parametrize("cpu, register", [("x86-64-v3", "ymm"), ("x86-64-v4", "zmm")])
def test_vectors_on_the_stack_are_aligned(cpu, register):
    target = resolve_target(f"llvm -mcpu={cpu}")
    kernel = winograd(target)
    # Without the pass they are not; should LLVM align them by itself one day, the pass has had its day.
    plain = tvm.tirx.build(tvm.IRModule({"k": kernel.with_attr("global_symbol", "k")}), target=target.tvm_target)
    assert moves(plain.inspect_source("s"), "vmovups", register)

    assembly = compile_module({"k": kernel}, target).inspect_source("s")
    assert moves(assembly, "vmovaps", register)
    assert not moves(assembly, "vmovups", register)


def test_every_body_of_a_parallel_loop_is_aligned():
    target = resolve_target("llvm -mcpu=x86-64-v4")
    kernel = winograd(target)
    parallel = str(kernel).count("T.parallel")
    assert parallel
    changed = AlignStack(64)(tvm.IRModule({"k": kernel}))["k"]
    assert str(changed).count("llvm.prefetch") - str(kernel).count("llvm.prefetch") == parallel + 1


def test_frames_that_calls_align_stay_as_they_are():
    kernel = winograd(resolve_target("llvm -mtriple=aarch64-linux-gnu"))
    assert tvm_ffi.structural_equal(AlignStack(16)(tvm.IRModule({"k": kernel}))["k"], kernel)


@pytest.mark.parametrize("channels", [384, 768, 1024])
def test_accumulators_of_the_largest_tiles_stay_in_registers(channels):
    target = resolve_target("llvm -mcpu=znver4")  # LLVM takes two steps at a time only where it knows the core
    spec = ConvSpec(batch=1, height=1, width=197, in_channels=channels, out_channels=384)
    rows = {tile.channels: tile.rows for tile in fitting(197, 384, target.vector_unit) if tile.channels % 16 == 0}
    assert sorted(rows) == [16, 32, 48, 64]
    tiles = [Tile(most, block) for block, most in rows.items()]
    kernels = {f"k{tile.channels}": direct_candidate(spec, tile, target.vector_unit).build() for tile in tiles}
    for loop in multiplying_loops(compile_module(kernels, target).inspect_source("s")):
        assert moves(loop, "vmovaps", "zmm") <= 1, loop


def multiplying_loops(assembly: str) -> list[str]:
    """Innermost loops that multiply vectors."""
    found = []
    for match in re.finditer(r"^(\.L\w+):$", assembly, re.MULTILINE):
        label = re.escape(match[1])
        loop = re.match(rf"((?!^\.L\w+:$).*\n)*?\s+j\w+\s+{label}\n", assembly[match.end() + 1 :], re.MULTILINE)
        if loop and "vfmadd" in loop[0] and "zmm" in loop[0]:
            found.append(loop[0])
    assert found
    return found
