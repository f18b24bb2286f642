"""The machine that kernels are chosen for, with what is known of its memory and of the speeds of families."""

from __future__ import annotations

from dataclasses import replace

from flexcomp.schedules.cuda.unit import Gpu
from flexcomp.schedules.tiles.memory import USUAL, Memory
from flexcomp.schedules.tiles.tile import VectorUnit

from .profile import DeviceProfile
from .target import CompileTarget

# Operations of a core while it reads a byte, with more of which its memory is slow. Zen 4 and 5 do 3.6 to 4.2, an Intel server
# core 11.
_SLOW = 6


def machine_of(target: CompileTarget, profile: DeviceProfile, threads: int) -> VectorUnit | Gpu:
    """The target's machine, for kernels that so many threads share."""
    machine = replace(target.machine, threads=threads)
    if isinstance(machine, Gpu):
        return machine
    return replace(machine, memory=memory_of(profile, threads), slowness=tuple(sorted(profile.slowness.items())))


def memory_of(profile: DeviceProfile, threads: int) -> Memory:
    """What reading weights costs so many threads, which share memory and have caches of their own: by rates of kernels that read
    nothing else, or a usual memory where these are not known."""
    if not profile.last_level_bytes_per_s:
        return replace(USUAL, far=threads * USUAL.far)
    return Memory(
        threads * profile.flops_per_s / profile.memory_rate(threads),
        threads * profile.flops_per_s / profile.last_level_rate(threads),
        int(profile.second_level_bytes) or USUAL.second_nbytes,
        int(profile.last_level_bytes) or USUAL.last_nbytes,
        has_slow_memory(profile.flops_per_s, profile.memory_bytes_per_s),
    )


def has_slow_memory(flops_per_s: float, memory_bytes_per_s: float) -> bool:
    """Whether a core waits so long for weights that kernels ask for them while others are multiplied."""
    return flops_per_s > _SLOW * memory_bytes_per_s
