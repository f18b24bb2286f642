"""What the protocol of a kernel family promises: those of the list keep it, and a new one needs no other file."""

from dataclasses import replace

import numpy as np
import pytest
from tvm import tirx

import flexcomp
from benchmarks.networks.graph import Graph
from flexcomp.device import default_profile
from flexcomp.profiling.kernel_speeds import groups
from flexcomp.schedules import conv, registry
from flexcomp.schedules.cuda import ARCHITECTURES
from flexcomp.schedules.cuda.unit import Gpu
from flexcomp.schedules.family import Candidate, Family
from flexcomp.schedules.machines import decoded_rows
from flexcomp.schedules.recurrent.spec import RecurrentSpec
from flexcomp.schedules.registry import candidates, named, space
from flexcomp.schedules.row_bands import Bands, row_kernel
from flexcomp.schedules.tiles.panel import panel_of
from flexcomp.schedules.tiles.spec import ConvSpec, MatmulSpec
from flexcomp.schedules.tiles.tile import Tile, VectorUnit
from flexcomp.tuning.cost_model import features
from flexcomp.tuning.tasks import _task

UNIT = VectorUnit(8, 16, dots="vpdpbusd", tiles=True)
MACHINES = {VectorUnit: UNIT, Gpu: Gpu(ARCHITECTURES["sm_87"])}
SAME = (1, 1, 1, 1)
WINDOW = ConvSpec(1, 14, 14, 64, 64, (3, 3), padding=SAME)
LAYERS = (
    WINDOW,
    replace(WINDOW, weights="int8", integers=True),
    replace(WINDOW, weights="bfloat16", dtype="bfloat16"),
    replace(WINDOW, groups=64),
    replace(WINDOW, groups=16),
    ConvSpec(1, 14, 14, 256, 256),
    ConvSpec(1, 1, 1, 256, 256),
    ConvSpec(1, 1, 1, 256, 256, weights="int4 in blocks of 32, float16 scales"),
    ConvSpec(1, 1, 40, 256, 256, weights="int8 in blocks of 64, float32 scales, zero points"),
    ConvSpec(1, 1, 1, 256, 256, weights="int4 in blocks of 32, float16 scales, 4 together"),
    ConvSpec(1, 1, 40, 256, 256, weights="int8 in blocks of 64, float32 scales, zero points, 4 together"),
    MatmulSpec(2, 9, 24, 16),
    RecurrentSpec("GRU", 3, 1, 16, 1, 0, False, (("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0))),
)


def _machine(family: Family):
    return MACHINES[family.machine]


@pytest.mark.parametrize("family", registry.FAMILIES, ids=lambda one: f"{one.name} {one.machine.__name__}")
def test_every_family_answers_every_question(family):
    machine = _machine(family)
    known = [spec for spec in LAYERS if family.is_for(spec, machine)]
    offered = {spec: list(family.candidates(spec, machine)) for spec in known}
    spec = next(spec for spec in known if offered[spec])
    trials = list(family.trials(spec, machine))
    for one in (*offered[spec], *trials):
        assert one.family == family.name == str(one).split()[0] and one.work > 0
        assert one.transform is None or type(one.transform) is family.transform
    for one in (*offered[spec], *trials[-1:]):
        assert str(named(spec, machine, str(one))) == str(one)
        if one.rows is not None:
            assert one.rows.bands is family.bands and decoded_rows(one.rows.encode()) == one.rows
    assert isinstance(offered[spec][0].build(), tirx.PrimFunc)
    assert family.arithmetic and family.preparing_flops >= 0 and (family.group or family.name) in groups()
    if family.preferred:
        assert min(offered[spec], key=family.preferred)
    if family.probe:
        for probed, kernel in family.probe(UNIT):
            assert kernel.family == family.name and str(named(probed, UNIT, str(kernel))) == str(kernel)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=["CPU", "GPU"])
@pytest.mark.parametrize("spec", [spec for spec in LAYERS if not isinstance(spec, RecurrentSpec)], ids=str)
def test_the_arithmetic_with_the_least_work_has_the_layer(spec, machine):
    able = [one for one in registry.FAMILIES if one.is_for(spec, machine) and getattr(spec, "dtype", "float32") in one.dtypes]
    every = [(candidate.work, one.arithmetic) for one in able for candidate in one.candidates(spec, machine)]
    if not able:
        assert machine is MACHINES[Gpu] and not space(spec, machine)
        assert "blocks" in spec.weights or spec.dtype == "bfloat16"
        return
    found = {one.name for one in able if one.arithmetic == min(every)[1]}
    assert {candidate.family for candidate in space(spec, machine)} <= found
    assert min(every)[0] == min(candidate.work for candidate in candidates(spec, machine))


def _toy(spec: ConvSpec, tile: Tile, unit: VectorUnit) -> Candidate:
    """The direct kernel under another name, which says that it is faster than all others."""
    code = lambda: conv.kernel(spec, tile, unit.width)  # noqa: E731
    return Candidate("toy", tile, panel_of(spec, tile.channels), 0, 1.0, code, rows=row_kernel(_BANDS, spec, unit.width, tile))


_BANDS = Bands(ConvSpec, conv.kernel, "toy")
TOY = Family(
    "toy",
    ConvSpec,
    lambda spec, unit: [_toy(spec, Tile(1, unit.width), unit)] if not spec.depthwise else (),
    lambda spec, unit: [_toy(spec, Tile(2, unit.width), unit)],
    bands=_BANDS,
    preparing_flops=1e9,
)


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr(registry, "FAMILIES", (*registry.FAMILIES, TOY))


def test_a_new_family_is_offered_and_tried_by_the_tuner(toy):
    spec = replace(WINDOW, out_channels=48)
    assert str(candidates(spec, UNIT)[-1]) == "toy 1×8" and str(space(spec, UNIT)[-1]) == "toy 2×8"
    task = _task(spec, 1, UNIT)
    assert task.default == "toy 1×8" and {"toy 1×8", "toy 2×8"} <= task.candidates.keys()
    rows = [features(spec, task.candidates[name], UNIT) for name in ("toy 1×8", "direct 3×16") if name in task.candidates]
    assert rows[0].count(1.0) > 0 and "toy" in groups()
    assert not any(one.family == "toy" for one in candidates(spec, MACHINES[Gpu])), "it is for CPUs"


def test_a_new_family_with_arithmetic_of_its_own_has_layers_alone(monkeypatch):
    monkeypatch.setattr(registry, "FAMILIES", (*registry.FAMILIES, replace(TOY, arithmetic="bfloat16")))
    assert [str(one) for one in candidates(WINDOW, UNIT)] == ["toy 1×8"]
    assert {one.family for one in space(WINDOW, UNIT)} == {"toy"}


def test_a_new_family_computes_a_network_whole_and_in_bands(toy, tmp_path):
    g = Graph("toy", seed=5)
    x = g.relu(g.conv(g.input("x", (1, 8, 64, 64)), 32, 3))
    model = g.model(g.relu(g.conv(x, 8, 3)), (1, 8, 64, 64))
    x = np.random.default_rng(0).standard_normal((1, 8, 64, 64)).astype("f4")
    artifact = flexcomp.build(model, threads=1, kernels="fastest")
    program = artifact.program
    convolutions = [layer for layer in program.layers if layer.op == "conv2d"]
    assert {layer.implementation.split()[0] for layer in convolutions} == {"toy"}
    assert any("[" in layer.name for layer in convolutions), "bands of rows"
    assert default_profile(8).slice_seconds(convolutions[0], 1) > 1e-3, "by the family's cost of preparing the input"
    artifact.export_library(tmp_path / "toy.so")
    outputs = []
    for budget in (program.rungs[0].budget, program.rungs[-1].budget):
        with flexcomp.load(tmp_path / "toy.so", budget=budget, threads=1) as session:
            outputs.append(session(x))
    np.testing.assert_array_equal(*outputs)
