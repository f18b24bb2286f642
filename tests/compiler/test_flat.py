"""Kernels whose buffers are flat are compiled without FlattenBuffer, to the same instructions."""

import re

import pytest
import tvm
from tvm import tirx

from flexcomp.compiler import machine_code
from flexcomp.device.target import resolve_target
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.spec import ConvSpec

TARGET = resolve_target("llvm -mcpu=x86-64-v4")
CONV = ConvSpec(batch=1, height=7, width=7, in_channels=16, out_channels=32, kernel=(3, 3), padding=(1, 1, 1, 1))


def instructions(kernel: tirx.PrimFunc) -> list[str]:
    """Without labels, whose numbers count notes for debuggers, too."""
    text = machine_code.compile_module({"k": kernel}, TARGET).inspect_source("s")
    return re.sub(r"\.L\w+", "", "\n".join(re.findall(r"^\t[a-z].*$", text, re.MULTILINE))).splitlines()


def flattened(monkeypatch) -> list:
    """The modules that FlattenBuffer is given from now on."""
    given, flatten = [], tirx.transform.FlattenBuffer

    @tvm.transform.module_pass(opt_level=0, name="noted")
    def noted(mod: tvm.IRModule, _context: tvm.transform.PassContext) -> tvm.IRModule:
        given.append(mod)
        return flatten()(mod)

    monkeypatch.setattr(tirx.transform, "FlattenBuffer", lambda: noted)
    return given


def test_kernels_of_our_families_have_the_same_instructions_without(monkeypatch):
    given = flattened(monkeypatch)
    kernel = next(iter(candidates(CONV, TARGET.vector_unit))).build()
    without = instructions(kernel)
    assert not given
    monkeypatch.setattr(machine_code, "_is_flat", lambda mod: False)
    assert instructions(kernel) == without
    assert given


@pytest.mark.parametrize(
    ("shape", "dtype", "offset"), [((4, 4), "float32", 0), ((4,), "bool", 0), ((4,), "float32", 2)], ids=["2-D", "bool", "offset"]
)
def test_others_are_flattened(monkeypatch, shape, dtype, offset):
    given = flattened(monkeypatch)
    x = tirx.decl_buffer(shape, dtype, elem_offset=offset)
    instructions(tirx.PrimFunc([x], tirx.BufferStore(x, tirx.const(1, dtype), [1] * len(shape))))
    assert given
