"""What reading weights costs kernels, from what is known of a device."""

from dataclasses import replace
from types import MappingProxyType

import pytest

from flexcomp.device import default_profile, guessed_profile, machine_of, rates_profile, resolve_target
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.memory import USUAL, Memory
from flexcomp.schedules.tiles.spec import ConvSpec

TARGET = resolve_target("llvm -mcpu=x86-64-v4")
MEASURED = replace(
    rates_profile(1.2e11, 1.0e10, 1e9, 1e-4),
    last_level_bytes_per_s=2.0e10,
    second_level_bytes=float(2 << 20),
    last_level_bytes=float(20 << 20),
    slowness=MappingProxyType({"winograd": 1.5}),
)
SQUARE = ConvSpec(1, 14, 14, 256, 256, (3, 3), padding=(1, 1, 1, 1))


def test_rates_become_operations():
    unit = machine_of(TARGET, MEASURED, 1)
    assert unit.memory == Memory(12.0, 6.0, 2 << 20, 20 << 20, is_slow=True) and unit.slowness == (("winograd", 1.5),)
    assert machine_of(TARGET, MEASURED, 4).memory == Memory(48.0, 6.0, 2 << 20, 20 << 20, is_slow=True)  # threads share memory
    both = replace(MEASURED, all_memory_bytes_per_s=3.0e10, all_last_level_bytes_per_s=7.0e10)
    assert machine_of(TARGET, both, 1).memory == unit.memory
    assert machine_of(TARGET, both, 2).memory == unit.memory  # each has a rate of its own
    assert machine_of(TARGET, both, 4).memory == Memory(4 * 1.2e11 / 3.0e10, 4 * 1.2e11 / 7.0e10, 2 << 20, 20 << 20, is_slow=True)
    assert not machine_of(TARGET, replace(MEASURED, memory_bytes_per_s=3.0e10), 4).memory.is_slow  # whatever threads share
    unknown = default_profile(16, None)
    assert machine_of(TARGET, unknown, 1).memory == USUAL
    assert machine_of(TARGET, unknown, 2).memory == replace(USUAL, far=2 * USUAL.far)
    assert Memory.decoded(str(unit.memory)) == unit.memory


def test_boards_bring_their_memory():
    target = resolve_target("raspberry-pi-5")
    memory = machine_of(target, guessed_profile(target), 1).memory
    assert memory == Memory(pytest.approx(38.4 / 9), pytest.approx(38.4 / 18), 512 << 10, 1 << 20)
    assert machine_of(target, guessed_profile(target), 4).memory.far == pytest.approx(4 * 38.4 / 11)


def test_a_pass_hides_as_much_reading_as_its_first_tile_computes():
    memory = Memory(5.0, 2.5, 1000, 10_000)
    assert 0 < memory.waiting(2000, 1, 50_000.0, 2, 0.0) < 0.06 * 10_000  # computing hides most of it
    assert memory.waiting(2000, 1, 50_000.0, 2, 0.1) == 1000  # loads start late
    assert 10_000 - 5000 < memory.waiting(2000, 1, 50_000.0, 10, 0.0) < 1.1 * (10_000 - 5000)  # of ten tiles one waits
    assert memory.waiting(2000, 1, 10_000.0, 1, 0.0) == pytest.approx((2 ** (1 / 3) - 1) * 10_000)  # neither hides the other
    slow = replace(memory, far=50.0, is_slow=True)
    assert slow.waiting(200, 1, 10_000.0, 1, 0.0) == pytest.approx((2 ** (1 / 2) - 1) * 10_000)
    # The second time from the last level.
    twice, once = (memory.waiting(2000, passes, 2500.0 * passes, 1, 0.0) for passes in (2, 1))
    assert 5000 - 2500 < twice - once < 1.1 * (5000 - 2500)
    assert memory.waiting(20_000, 2, 0.0, 1, 0.0) == pytest.approx(2 * 100_000)  # which holds no more than this
    assert memory.waiting(1000, 9, 0.0, 1, 0.0) == pytest.approx(5_000)  # a core's own cache costs nothing


def test_slow_memory_takes_kernels_with_fewer_weights():
    def fastest(profile):
        return min(candidates(SQUARE, machine_of(TARGET, profile, 1)), key=lambda one: one.work)

    same = replace(MEASURED, slowness=MappingProxyType({}))
    fast = replace(same, memory_bytes_per_s=4.0e10, last_level_bytes_per_s=8.0e10)
    assert fastest(same).weight_nbytes < fastest(fast).weight_nbytes
    assert fastest(replace(same, slowness=MappingProxyType({"winograd": 3.0}))).family != "winograd"


def test_values_come_from_caches_where_they_fit():
    per_byte = [(MEASURED.seconds(0.0, n + (1 << 20), 1, 1 << 20) - MEASURED.step_overhead_s) for n in (1 << 20, 64 << 20)]
    assert per_byte[0] == pytest.approx((1 << 20) / 1e10 + (1 << 20) / 2e10)
    assert per_byte[1] == pytest.approx((65 << 20) / 1e10)
    both = replace(MEASURED, all_memory_bytes_per_s=3.0e10, all_last_level_bytes_per_s=7.0e10)
    together = both.seconds(0.0, 2 << 20, 4, 1 << 20) - both.step_overhead_s
    assert together == pytest.approx((1 << 20) / 3e10 + (1 << 20) / 7e10)
