"""A build for this machine measures its storage and kernels, where nobody says otherwise."""

from dataclasses import replace

import pytest

import flexcomp
from flexcomp.compiler import builder, probing
from flexcomp.compiler.kernel_rates import KernelRates
from flexcomp.device import default_profile, resolve_target
from flexcomp.errors import InputError
from flexcomp.profiling.storage_rates import StorageRates
from tests.compiler.small import network


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """The folders whose storage was measured."""
    monkeypatch.setenv("FLEXCOMP_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FLEXCOMP_PROBE")
    folders = []
    monkeypatch.setattr(
        probing, "measure_storage", lambda folder: folders.append(folder.resolve()) or StorageRates(2e8, 1e-3)
    )
    monkeypatch.setattr(probing, "measure_kernels", lambda target: KernelRates(2e11, 3e10))
    return folders


@pytest.fixture
def planned(monkeypatch):
    """The profiles that networks are planned for; nothing is planned."""
    profiles = []

    def stop(network, profile, threads):
        profiles.append(profile)
        raise StopIteration

    monkeypatch.setattr(builder.kernel_sets, "planning", stop)
    return profiles


def guessed(target: str = "native"):
    resolved = resolve_target(target)
    return default_profile(resolved.vector_width, resolved.preset)


def rates(planned):
    """The profiles without the cores, which are the target's."""
    assert all(profile.cores > 0 for profile in planned)
    return [replace(profile, cores=0) for profile in planned]


def build(**options):
    with pytest.raises(StopIteration):
        flexcomp.build(network(), **options)


def test_plans_are_made_for_the_storage_of_a_folder_and_for_this_machine(measured, planned, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    said = []
    for probe in (None, True, tmp_path, str(tmp_path / "other")):
        build(probe=probe, progress=lambda phase, done, total: said.append(phase) if phase.startswith("storage") else None)
    assert measured == [tmp_path]  # remembered: all of them are one storage
    assert {profile.storage_bytes_per_s for profile in planned} == {probing.rounded(2e8)}
    assert {profile.flops_per_s for profile in planned} == {probing.rounded(2e11)}
    assert "(measured; " in said[0] and all("(remembered; " in one for one in said[1:]) and len(said) == 4


def test_nothing_is_measured_where_rates_are_known_or_for_others(measured, planned, monkeypatch):
    profile = replace(guessed(), storage_bytes_per_s=1e9)
    build(profile=profile)
    build(probe=False)
    build(target="llvm -mcpu=x86-64-v3")
    monkeypatch.setenv("FLEXCOMP_PROBE", "0")
    build()
    assert not measured and rates(planned) == [profile, guessed(), guessed("llvm -mcpu=x86-64-v3"), guessed()]
    build(probe=True)
    assert len(measured) == 1


def test_what_is_wrong_is_said_before_anything_is_measured(measured, tmp_path):
    for wrong in ({"threads": 0}, {"kernels": "best"}, {"weights": {"*": "int7"}}):
        with pytest.raises(flexcomp.errors.FlexcompError):
            flexcomp.build(network(), **wrong)
    with pytest.raises(flexcomp.errors.FlexcompError):
        flexcomp.build(tmp_path / "none.onnx")
    assert not measured


def test_storage_that_cannot_be_measured(measured, planned, tmp_path, monkeypatch, caplog):
    with pytest.raises(InputError, match=r"cannot measure the storage of .*none: No such file"):
        flexcomp.build(network(), probe=tmp_path / "none")
    with pytest.raises(InputError, match='this machine: it is for target="native"'):
        flexcomp.build(network(), probe=True, target="llvm -mcpu=x86-64-v3")
    with pytest.raises(InputError, match="probe must be a path, not 3"):
        flexcomp.build(network(), probe=3)

    def fails(*_):
        raise InputError("cannot measure the storage of .: Read-only file system")

    monkeypatch.setattr(probing, "probed_profile", fails)
    build()
    assert rates(planned) == [guessed()] and "Read-only file system; planned for guessed rates" in caplog.text
