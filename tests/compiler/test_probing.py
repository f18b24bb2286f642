"""A machine is measured once, remembered coarsely, and measured again where that is damaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import tvm_ffi
from tvm import tirx

from flexcomp.compiler import kernel_rates, probing
from flexcomp.compiler.kernel_rates import KernelRates, measure_kernels, representatives
from flexcomp.device import load_profile, resolve_target
from flexcomp.errors import InputError
from flexcomp.profiling import measure_storage, storage_rates
from flexcomp.profiling.storage_rates import StorageRates
from flexcomp.schedules import direct
from flexcomp.schedules.direct import ONE_PIXEL
from flexcomp.schedules.tiles.memory import USUAL, Memory


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLEXCOMP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "storage"


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Callable[[StorageRates, KernelRates], None]:
    """Lets the machine be one with these rates."""

    def is_one(storage: StorageRates, kernels: KernelRates) -> None:
        monkeypatch.setattr(probing, "measure_storage", lambda folder: storage)
        monkeypatch.setattr(probing, "measure_kernels", lambda target: kernels)

    return is_one


FAST = StorageRates(1.5e9, 80e-6, 6e8), KernelRates(2.4e11, 4.7e10, 9e10, {"winograd": 1.4}, 8e10, 2e11, 1.2e10)
SLOW = StorageRates(2e8, 1e-3), KernelRates(1e10, 5e9)


def test_figures_are_rounded_to_steps() -> None:
    assert {probing.rounded(value) for value in (1.48e9, 1.5e9, 1.52e9)} == {probing.rounded(1.5e9)}
    assert all(abs(probing.rounded(value) / value - 1) < 0.026 for value in (1e-5, 0.3, 7e6, 3e9))


def test_what_was_measured_is_remembered(cache: Path, tmp_path: Path, found) -> None:
    target = resolve_target("native")
    found(*FAST)
    first, note = probing.probed_profile(tmp_path, target)
    (kept,) = cache.iterdir()
    assert "measured" in note and str(kept) in note and load_profile(kept) == first
    assert (first.storage_bytes_per_s, first.load_latency_s) == (probing.rounded(1.5e9), probing.rounded(80e-6))
    assert (first.flops_per_s, first.memory_bytes_per_s) == (probing.rounded(2.4e11), probing.rounded(4.7e10))
    assert first.last_level_bytes_per_s == probing.rounded(9e10) and first.slowness == {"winograd": probing.rounded(1.4)}
    assert first.all_memory_bytes_per_s == probing.rounded(8e10) and first.all_last_level_bytes_per_s == probing.rounded(2e11)
    assert (first.load_small_pages, first.prepare_bytes_per_s) == (probing.rounded(2.5), probing.rounded(1.2e10))
    found(*SLOW)
    assert probing.probed_profile(tmp_path, target) == (first, note.replace("(measured", "(remembered"))
    kept.write_text("{}")
    again, _ = probing.probed_profile(tmp_path, target)
    assert (again.storage_bytes_per_s, again.flops_per_s) == (probing.rounded(2e8), probing.rounded(1e10))
    assert (again.load_small_pages, again.prepare_bytes_per_s) == (1, 0)


def test_figures_of_a_busy_machine_are_not_remembered(cache: Path, tmp_path: Path, found, caplog) -> None:
    storage, kernels = FAST
    found(storage, replace(kernels, varying=1.21))
    profile, note = probing.probed_profile(tmp_path, resolve_target("native"))
    assert profile.flops_per_s == probing.rounded(2.4e11) and note.endswith("(measured on a busy machine, not remembered)")
    assert "varied by more than 1.2 times" in caplog.text and not [*cache.iterdir()]


def test_a_time_counts_when_two_rounds_agree() -> None:
    rounds = {"busy": iter([5.0, 2.0, 9.0, 2.1]), "quiet": iter([1.0] * 9)}
    seconds, varying = kernel_rates._agreed({name: times.__next__ for name, times in rounds.items()})
    assert seconds == {"busy": 2.0, "quiet": 1.0} and varying == pytest.approx(1.05) and next(rounds["quiet"], None) == 1.0
    growing = iter(range(1, 99))
    seconds, varying = kernel_rates._agreed({"one": lambda: 2.0 ** -next(growing)})
    assert varying == 2 and next(growing) == kernel_rates._MOST_ROUNDS + 1
    assert kernel_rates._agreed({"never": lambda: float("inf")})[1] == float("inf")


def test_threads_that_wait_for_a_core_say_nothing_of_memory() -> None:
    def seconds(running: float) -> float:
        threads = iter([0.0, running] * 3)
        with ThreadPoolExecutor(1) as pool:
            return kernel_rates._together(pool, [lambda: None], iter(range(99)).__next__, threads.__next__)

    assert seconds(0.9) == 1 and seconds(0.5) == float("inf")


def test_few_storages_are_remembered(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found) -> None:
    found(*FAST)
    monkeypatch.setattr(probing, "MOST_FILES", 2)
    for number in range(4):
        monkeypatch.setattr(probing.platform, "node", lambda number=number: f"machine{number}")
        probing.probed_profile(tmp_path, resolve_target("native"))
    assert len(list(cache.iterdir())) == 2


def test_reading_leaves_nothing_behind(tmp_path: Path) -> None:
    rates = measure_storage(tmp_path)
    assert rates.bytes_per_s > 1e5 and 0 <= rates.latency_s < 10
    assert 1e4 < rates.small_pages_bytes_per_s <= rates.bytes_per_s
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match=r"none: No such file or directory \(--no-probe"):
        measure_storage(tmp_path / "none")


def test_storage_that_is_nearly_full_gets_a_small_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = shutil.disk_usage(tmp_path)._replace(free=3 << 20)
    monkeypatch.setattr(storage_rates.shutil, "disk_usage", lambda folder: free)
    sizes: list[int] = []
    real = storage_rates.runtime_ext.function

    def looked_at(name: str) -> Callable[[str, float], str]:
        read = real(name)
        return lambda path, seconds: sizes.append(os.path.getsize(path)) or read(path, seconds)

    monkeypatch.setattr(storage_rates.runtime_ext, "function", looked_at)
    assert measure_storage(tmp_path).bytes_per_s > 1e5
    assert sizes == [3 << 19] and not list(tmp_path.iterdir())


def test_slow_storage_gets_a_small_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written and read in no more time: here a second passes with every look at the clock."""
    sizes, said = [], '{"bytes_per_s": 1e6, "small_pages_bytes_per_s": 5e5, "latency_s": 0.01}'
    monkeypatch.setattr(
        storage_rates.runtime_ext,
        "function",
        lambda name: lambda path, seconds: sizes.append(os.path.getsize(path)) or said,
    )
    seconds = iter(range(100))
    assert measure_storage(tmp_path, clock=lambda: next(seconds)) == StorageRates(1e6, 0.01, 5e5)
    assert sizes == [4 << 20]


def test_what_the_loader_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_rates, "_PIECE", 4096)
    monkeypatch.setattr(storage_rates, "_NBYTES", 4096)
    with pytest.raises(InputError, match=r"cannot measure the storage of .* 4096 bytes: too few to measure storage with"):
        measure_storage(tmp_path)


def test_kernels_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_rates, "_SECONDS", 0.0)
    rates = measure_kernels(resolve_target("native"))
    assert 1e6 < rates.flops_per_s < 1e14 and 1e6 < rates.memory_bytes_per_s <= rates.last_level_bytes_per_s < 1e13
    assert 1e6 < rates.prepare_bytes_per_s < 1e13


def test_measured_kernels_launch_nothing() -> None:
    found: list[object] = []
    for *_, kernel in representatives(replace(resolve_target("native").vector_unit, threads=1)):
        tvm_ffi.structural_walk(kernel_rates._serial(kernel.build()).body, [(tirx.For, found.append)])
    assert found and not [loop for loop in found if loop.kind == tirx.ForKind.PARALLEL]


def test_rates_are_work_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which every call takes a second."""
    monkeypatch.setattr(kernel_rates, "_IN_TURNS_CACHES", 0)  # three panels, whatever the processor's caches
    unit, seconds = resolve_target("native").vector_unit, iter(range(10**6))
    target, sizes = replace(resolve_target("native"), num_cores=1), kernel_rates.cache_sizes()
    rates = measure_kernels(target, clock=lambda: next(seconds))
    read = next(iter(ONE_PIXEL.candidates(direct._READ, unit))).weight_nbytes
    # In a second, by this clock, so the smaller weights that are cached come no faster.
    assert rates.memory_bytes_per_s == rates.last_level_bytes_per_s == read
    # Work is what it is with the memory that was found.
    far = rates.flops_per_s / read
    memory = Memory(far, far, sizes.get(2, USUAL.second_nbytes), max(sizes.values(), default=USUAL.last_nbytes))
    one = replace(unit, threads=1, memory=memory)
    work = {kernel.measured_as: kernel.work for *_, kernel in representatives(one)}
    assert rates.flops_per_s == pytest.approx(work["direct"], rel=1e-3)
    slowness = {name: work["direct"] / some for name, some in work.items() if name not in ("direct", "gemv")}
    assert rates.slowness == pytest.approx(slowness, rel=0.02)
    running = iter(range(10**6))
    together = measure_kernels(replace(target, num_cores=3), lambda: next(seconds), lambda: next(running))
    assert together.flops_per_s == pytest.approx(work["direct"], rel=1e-3) and together.varying == 1
    assert together.all_memory_bytes_per_s == 6 * read  # three panels, twice


@pytest.mark.parametrize("target", ["native", "llvm -mcpu=x86-64-v2", "raspberry-pi-3b", "raspberry-pi-4b", "jetson-nx"])
def test_every_processor_has_what_is_measured(target: str) -> None:
    unit = resolve_target(target).vector_unit
    kinds = [kernel.measured_as for *_, kernel in representatives(unit)]
    on_two_levels = ["strassen on two levels"] if unit.registers >= 32 else []
    assert kinds == ["direct", "gemv", "winograd", "strassen", *on_two_levels]
