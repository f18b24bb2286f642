"""Chains of sums are written once, and computed once, whatever TVM's analyzers know of them."""

import re
from dataclasses import replace

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from flexcomp.compiler.machine_code import compile_module
from flexcomp.device.target import resolve_target
from flexcomp.passes import HideValues, ShowValues
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit

CONV = ConvSpec(batch=1, height=14, width=14, in_channels=32, out_channels=32, kernel=(3, 3), padding=(1, 1, 1, 1))
TARGET = resolve_target("llvm -mcpu=x86-64-v4")


def winograd() -> tirx.PrimFunc:
    return next(c for c in candidates(CONV, TARGET.vector_unit) if "F(4)" in str(c)).build()


def module(kernel: tirx.PrimFunc) -> tvm.IRModule:
    return tvm.IRModule({"k": kernel.with_attr("global_symbol", "k")})


def written(mod: tvm.IRModule) -> int:
    """Additions and subtractions of floats in TIR, an expression counted wherever it is written."""
    found = []
    note = lambda node: found.append(node) if str(node.ty.dtype).startswith("float") else None  # noqa: E731
    tvm_ffi.structural_walk(mod["k"].body, ((tirx.Add, tirx.Sub), note))
    return len(found)


def divisions(mod: tvm.IRModule) -> int:
    """Quotients, remainders and minima, counted wherever they are written."""
    found = []
    tvm_ffi.structural_walk(mod["k"].body, ((tirx.FloorDiv, tirx.FloorMod, tirx.Min), found.append))
    return len(found)


def test_values_are_shown_as_they_were_hidden():
    kernel = winograd()
    hidden = HideValues()(module(kernel))
    assert str(hidden).count("flexcomp.value") > 1000
    assert tvm_ffi.structural_equal(ShowValues()(hidden)["k"], module(kernel)["k"])


def test_simplifying_writes_no_sum_out():
    plain = module(winograd())
    simplified = s_tir.transform.StmtSimplify()
    assert written(simplified(plain)) > 1.3 * written(plain)  # should TVM stop, the pass has had its day
    assert written(ShowValues()(simplified(HideValues()(plain)))) == written(plain)


def test_machine_code_keeps_fewer_vectors_on_the_stack(monkeypatch):
    def moves() -> int:
        assembly = compile_module({"k": winograd()}, TARGET).inspect_source("s")
        return len(re.findall(r"vmovaps.*zmm\d+, -?\d*\(%r[sb]p\)", assembly))

    hiding = moves()
    monkeypatch.setattr("flexcomp.compiler.machine_code.HideValues", ShowValues)
    assert hiding < 0.8 * moves()


def test_kernels_that_tvm_vectorises_are_left_alone():
    x, lane, value = tirx.decl_buffer((16,), "float32"), tirx.Var("lane", "int32"), tirx.Var("v", "float32")
    load = tirx.BufferLoad(x, [lane])
    body = tirx.SeqStmt([tirx.stmt.Bind(value, load + load), tirx.BufferStore(x, value, [lane])])
    for kind, changes in ((tirx.ForKind.VECTORIZED, False), (tirx.ForKind.SERIAL, True)):
        kernel = tirx.PrimFunc([x], tirx.For(lane, 0, 16, kind, body))
        hidden = HideValues()(module(kernel))["k"]
        assert tvm_ffi.structural_equal(hidden, module(kernel)["k"]) != changes


def test_simplifying_writes_no_position_out():
    """Of a kernel whose parts of the work are found by division."""
    spec = replace(CONV, weights="int8", integers=True)
    kernel = next(c for c in candidates(spec, VectorUnit(16, 32, dots="vpdpbusd")) if c.family == "integer").build()
    plain, simplified = module(kernel), s_tir.transform.StmtSimplify()
    assert divisions(simplified(plain)) > 2 * divisions(plain)  # should TVM stop, the pass has had its day
    assert divisions(ShowValues()(simplified(HideValues()(plain)))) <= divisions(plain)
