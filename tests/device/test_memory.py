"""What reading weights costs kernels, from what is known of a device."""

from dataclasses import replace
from types import MappingProxyType

import pytest

from flexcomp.device import Traffic, default_profile, guessed_profile, machine_of, rates_profile, resolve_target
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


def seconds_of(profile, traffic, threads=1, flops=0.0):
    return profile.seconds(flops, traffic, threads) - profile.step_overhead_s


def test_tensors_come_from_the_caches_that_keep_them():
    mib = 1 << 20
    own = replace(MEASURED, second_level_bytes_per_s=8.0e10)  # 2 MiB; behind it a last level with 20
    assert seconds_of(own, Traffic(mib // 2, mib // 2, mib)) == pytest.approx(mib / 2 / 1e10 + mib / 2 / 8e10)
    assert seconds_of(own, Traffic(0, 2 * mib, 2 * mib)) == pytest.approx(mib / 8e10 + mib / 2e10)
    assert seconds_of(own, Traffic(0, 3 * mib, 3 * mib)) == pytest.approx(3 * mib / 2e10)
    assert seconds_of(own, Traffic(0, mib, 8 * mib)) == pytest.approx(mib / 2e10)  # a part of a large one
    assert seconds_of(own, Traffic(0, 64 * mib, 64 * mib)) == pytest.approx(64 * mib / 1e10)
    assert seconds_of(own, Traffic(0, 2 * mib, 2 * mib), threads=2) == pytest.approx(2 * mib / 16e10)  # in two caches
    one = replace(own, last_level_bytes=float(mib))  # of all cores
    assert seconds_of(one, Traffic(0, 4 * mib, 4 * mib), threads=2) == pytest.approx(4 * mib / 1e10)


def test_computing_waits_for_tensors_that_no_cache_of_its_core_keeps():
    own, mib = replace(MEASURED, second_level_bytes_per_s=8.0e10), 1 << 20
    assert seconds_of(own, Traffic(mib // 2, mib // 2, mib), flops=1.2e9) == pytest.approx(1e-2)
    assert seconds_of(own, Traffic(mib, 7 * mib, 8 * mib), flops=1.2e9) == pytest.approx(1e-2 + 7 * mib / 2e10)


def test_all_come_from_memory_where_no_cache_is_known():
    unknown = rates_profile(1.2e11, 1.0e10, 1e9, 1e-4)
    assert seconds_of(unknown, Traffic(1000, 5000, 6000), flops=1.0) == pytest.approx(6000 / 1e10)
    old = replace(MEASURED, second_level_bytes=0.0)  # a profile of before
    assert seconds_of(old, Traffic(1000, 5000, 6000)) == pytest.approx(1000 / 1e10 + 5000 / 2e10)


def test_boards_bring_the_rates_of_their_caches():
    target = resolve_target("raspberry-pi-5")
    board, mib = guessed_profile(target), 1 << 20
    small, large = (seconds_of(board, Traffic(0, nbytes, nbytes)) / nbytes for nbytes in (mib // 4, mib))
    assert large == pytest.approx(1 / 18e9) and small < large
