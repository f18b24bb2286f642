"""A build does once what its choices of kernels share, and nothing that has no effect."""

import gc
import sys
from collections import Counter
from dataclasses import replace
from types import ModuleType

import pytest
import tvm
from tvm import s_tir, tirx

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp.compiler import kernel_compiler, machine_code
from flexcomp.gc_threshold import high_gc_threshold
from flexcomp.lazy_exports import lazy_exports
from flexcomp.passes import fuse_layers, pretransform_weights
from flexcomp.passes.choose_kernels import layer_spec

from ..uncompiled import planned

TARGET = "llvm -mcpu=x86-64-v3"


def network(depth: int):
    """Convolutions for which small, balanced and fast kernels differ, and a depthwise one, for which they do not."""
    g = Graph("alike", seed=2)
    x = g.relu(g.conv(g.input("x", (1, 64, 32, 32)), 64, 1))
    for _ in range(depth):
        x = g.relu(g.op("Add", g.conv(x, 64, 3), x, channels=64))
    x = g.relu(g.conv(g.max_pool(x, 2, 2), 64, 3, groups=64))
    return g.model(g.conv(x, 64, 3), (1, 64, 16, 16))


def test_layers_are_found_once_and_each_kernel_is_built_once(monkeypatch):
    searches, built = [], Counter()
    groups, chosen = fuse_layers._groups, pretransform_weights.chosen

    def watched(layer, unit):
        candidate = chosen(layer, unit)
        name = f"{layer_spec(layer)}: {candidate}"
        return replace(candidate, build=lambda: built.update([name]) or candidate.build())

    monkeypatch.setattr(fuse_layers, "_groups", lambda main: searches.append(main) or groups(main))
    monkeypatch.setattr(pretransform_weights, "chosen", watched)
    program = planned(network(3), TARGET, threads=1)
    assert {layer.implementation.split()[0] for layer in program.layers} >= {"direct", "winograd", "depthwise"}
    assert len(searches) == 1
    assert len(built) >= 4 and set(built.values()) == {1}


@pytest.mark.parametrize("depth", [4, 16])
def test_the_search_for_epilogues_looks_at_what_reads_a_layer(depth, monkeypatch):
    """Not at all that follows: networks of a thousand operators took seconds."""
    looked = []
    fits = fuse_layers._fits
    monkeypatch.setattr(fuse_layers, "_fits", lambda *args: looked.append(args) or fits(*args))
    planned(network(depth), TARGET, threads=1, kernels="smallest")
    assert len(looked) <= 5 * (depth + 2)


def test_passes_that_are_left_out_would_change_nothing(monkeypatch):
    """Of kernels of all kinds: TVM's and our families', with branches and without."""
    g = Graph("kinds", seed=4)
    x = g.relu(g.conv(g.input("x", (1, 32, 16, 16)), 32, 3))
    x = g.op("Erf", g.max_pool(g.relu(g.conv(x, 32, 3, groups=32)), 2, 2), channels=32)
    model = g.model(g.conv(x, 32, 3), (1, 32, 8, 8))
    needs, seen = machine_code._needs, []
    monkeypatch.setattr(machine_code, "_needs", lambda mod: seen.append(needs(mod)) or seen[-1])
    monkeypatch.setattr(kernel_compiler, "_WORTH_PROCESSES", 1 << 40)  # in this process
    target = "llvm -opt-level=0 -mcpu=x86-64-v3"  # under which LLVM keeps what a pass changes
    fewer = flexcomp.build(model, target=target, threads=1, cache=False).kernels
    assert {is_foreign for _, is_foreign, _ in seen} == {False, True}
    monkeypatch.setattr(machine_code, "_hoist_branches", s_tir.transform.HoistIfThenElse())
    monkeypatch.setattr(machine_code, "_needs", lambda mod: (True, True, needs(mod)[2]))  # of flat ones see test_flat.py
    assert flexcomp.build(model, target=target, threads=1, cache=False).kernels == fewer


def test_branches_leave_loops():
    x, i, n = tirx.decl_buffer((16,), "float32"), tirx.Var("i", "int64"), tirx.Var("n", "int64")
    store = tirx.BufferStore(x, tirx.const(1, "float32"), [i])
    branch = tirx.IfThenElse(n > 3, store, None)
    kernel = tirx.PrimFunc([x, n], tirx.For(i, tirx.const(0, "int64"), tirx.const(16, "int64"), tirx.ForKind.SERIAL, branch))
    hoisted = machine_code._hoist_branches(tvm.IRModule({"k": kernel.with_attr("global_symbol", "k")}))["k"]
    assert isinstance(hoisted.body, tirx.IfThenElse)


def test_cycles_are_looked_for_seldom_while_something_is_built():
    usual, within = gc.get_threshold(), []

    def progress(phase, done, total):
        within.append(gc.get_threshold())
        if len(within) == 1:
            flexcomp.build(tiny(), target=TARGET, progress=lambda phase, done, total: within.append(gc.get_threshold()))
        if phase == "plan":
            raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        flexcomp.build(tiny(), target=TARGET, progress=progress)
    assert len(within) > 3 and min(within)[0] > usual[0] and gc.get_threshold() == usual


def tiny():
    g = Graph("tiny", seed=1)
    return g.model(g.relu(g.input("x", (1, 8))), (1, 8))


def test_importing_what_is_exported_raises_the_threshold(tmp_path, monkeypatch):
    (tmp_path / "late.py").write_text("import gc\nthreshold = gc.get_threshold()")
    package = ModuleType("package")
    package.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "package", package)
    find, _, _ = lazy_exports("package", late="threshold")
    usual = gc.get_threshold()
    assert find("threshold")[0] > usual[0] and gc.get_threshold() == usual


def test_a_collector_that_is_turned_off_stays_so():
    before = gc.get_threshold()
    try:
        gc.set_threshold(0)
        with high_gc_threshold():
            assert gc.get_threshold()[0] == 0
        assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
