"""Profiles of devices: files, and what they change."""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType

import pytest

import flexcomp
from flexcomp.device.profile import (
    DelayModel,
    DeviceProfile,
    FamilyRate,
    KernelTime,
    default_profile,
    family,
    kernel_key,
    load_profile,
)
from flexcomp.errors import InputError
from flexcomp.plan import SLICE_S
from flexcomp.program.prediction import from_program
from flexcomp.program.program import ValueArg
from tests.cli.conftest import tiny_network

MEASURED = DeviceProfile(
    flops_per_s=5e10,
    memory_bytes_per_s=2e10,
    threads=1,
    kernels=MappingProxyType({"conv2d | direct 8×32 | …": KernelTime(1e-3, 2e-6)}),
    families=MappingProxyType({"direct": FamilyRate(1e-11, 1e-10)}),
    delays=DelayModel(1e-9, 5e-5, 2e-11, 0.0),
)


def test_profiles_are_files(tmp_path):
    for profile in (MEASURED, default_profile(16)):
        profile.save(tmp_path / "device.json")
        assert load_profile(tmp_path / "device.json") == profile

TARGET = "llvm -mcpu=x86-64-v4"  # the same plans on every machine


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d.update(format="other"), "measure the device again"),
        (lambda d: d.update(flops_per_s=0), "flops_per_s = 0"),
        (lambda d: d.update(storage_bytes_per_s=float("nan")), "NaN is no number"),
        (lambda d: d.update(memory_bytes_per_s="fast"), "memory_bytes_per_s = 'fast'"),
        (lambda d: d.update(colour=1), "'colour' that is not known"),
        (lambda d: d.pop("flops_per_s"), "lacks a field.*flops_per_s"),
        (lambda d: d.update(threads=-1), "threads is -1"),
        (lambda d: d.update(kernels=[]), "kernels is not a table"),
        (lambda d: d["kernels"].update(k={"seconds": -1}), 'kernel "k" has seconds = -1'),
        (lambda d: d["families"].update(f=3), 'family "f" is not a table'),
        (lambda d: d["delays"].pop("alpha"), "delays lacks a field.*alpha"),
    ],
)
def test_wrong_profiles_are_refused(tmp_path, change, reason):
    path = tmp_path / "device.json"
    MEASURED.save(path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=reason):
        load_profile(path)


def test_what_is_no_profile_is_refused(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        load_profile(tmp_path / "none.json")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InputError, match="is not JSON"):
        load_profile(tmp_path / "text")
    for text, reason in (("[" * 10**5, "lie too deep"), ('{"flops_per_s": 1e999}', "1e999 is too large")):
        (tmp_path / "text").write_text(text)
        with pytest.raises(InputError, match=reason):
            load_profile(tmp_path / "text")


@pytest.fixture(scope="module")
def plain():
    return flexcomp.build(tiny_network(), TARGET, threads=1).program


def test_programs_carry_the_times_their_plans_assume(plain):
    assumed = from_program(plain)
    for rung in plain.rungs:
        assert assumed.timeline(plain, rung).latency == pytest.approx(rung.seconds)
    assert from_program(replace(plain, metadata={})) is None
    assert from_program(replace(plain, metadata={"prediction": '{"layers": [[1, 2]], "storage": [1, 1]}'})) is None


@pytest.mark.parametrize(
    "kernel, operations",
    [("strassen 13 pairs 13×32", 5), ("winograd F(4) 13 tiles 13×32", 20), ("im2col_gemm 2 slices 6×64", 30)],
)
def test_slices_cost_what_kernels_make_of_their_input(plain, kernel, operations):
    profile = default_profile(16)
    layer = next(layer for layer in plain.layers if layer.weights)
    image = next(arg for arg in layer.args if isinstance(arg, ValueArg) and not arg.written)
    direct, preparing = (replace(layer, implementation=name) for name in ("direct 7×48", kernel))
    assert profile.slice_seconds(direct, 1) == SLICE_S
    more = profile.slice_seconds(preparing, 1) - SLICE_S
    assert more == pytest.approx(operations * image.type.nbytes / profile.flops_per_s)
    assert profile.slice_seconds(preparing, 4) - SLICE_S == pytest.approx(more / 4)


def test_plans_are_made_for_the_measured_device(plain, tmp_path):
    kernels = {kernel_key(layer): KernelTime(0.01 * (index + 1), 1e-4) for index, layer in enumerate(plain.layers)}
    profile = replace(MEASURED, kernels=MappingProxyType(kernels), storage_bytes_per_s=1e7, load_overhead_s=1e-3, cores=1)
    profile.save(tmp_path / "device.json")
    program = flexcomp.build(tiny_network(), TARGET, threads=1, profile=tmp_path / "device.json").program
    assumed = from_program(program)
    for layer, time in zip(program.layers, assumed.layers, strict=True):
        assert (time.seconds, time.slice_s) == (kernels[kernel_key(layer)].seconds, 1e-4)
    assert (assumed.storage.bandwidth, assumed.storage.core_contention) == (1e7, 1.0)  # the only core prepares, too
    used = {step.layer for step in program.rungs[-1].steps}
    assert program.rungs[-1].seconds == pytest.approx(sum(assumed.layers[layer].seconds for layer in used))


def test_what_was_not_measured_goes_by_its_family(plain):
    direct = next(layer for layer in plain.layers if family(layer) == "direct")
    assert MEASURED.layer_seconds(direct, 1.0, 10**9, 1) == pytest.approx(direct.flops * 1e-11 + 0.1 + 1e-6)
    # at another number of threads nothing is known but the rates of one thread
    assert MEASURED.layer_seconds(direct, 1e9, 100, 2) == MEASURED.seconds(1e9, 100, 2)
