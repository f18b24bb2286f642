"""How fast this machine computes and reads, seen from a few kernels of ours: the scale for predicted times of all others.

Families bring these kernels. Each that is limited by arithmetic has a rate of its own. Those that are limited by memory read
weights that no cache holds, and smaller ones from the last-level cache.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import tvm_ffi

from flexcomp.device import CompileTarget
from flexcomp.profiling import aligned
from flexcomp.schedules.family import READING, Candidate, Family
from flexcomp.schedules.registry import FAMILIES
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit

from .machine_code import compile_module

_SECONDS = 0.1  # for each kernel
_IN_TURNS = 2  # panels that kernels limited by memory read: the end of one might stay in a cache until its next turn
# Weights beyond the caches that cores have for themselves, but not beyond the last level.
_CACHED = ConvSpec(1, 1, 1, 1024, 1024)
_FEWEST, _MOST = 3, 100  # calls


@dataclass(frozen=True)
class KernelRates:
    """As in `DeviceProfile`."""

    flops_per_s: float  # of one thread, in direct kernels
    memory_bytes_per_s: float
    last_level_bytes_per_s: float = 0.0
    slowness: Mapping[str, float] = field(default_factory=dict)


def measure_kernels(target: CompileTarget, clock: Callable[[], float] = time.perf_counter) -> KernelRates:
    """The rates of this machine, for which `target` must be."""
    probes = representatives(replace(target.vector_unit, threads=1))
    (reader,) = (family for family, *_ in probes if family.bound_by == READING)
    cached = next(iter(reader.candidates(_CACHED, replace(target.vector_unit, threads=1))))
    kernels = {f"kernel{number}": kernel for number, (*_, kernel) in enumerate(probes)} | {"cached": cached}
    module = compile_module({name: kernel.build() for name, kernel in kernels.items()}, target)
    computing: dict[str, float] = {}
    reading = 0.0
    for number, (family, spec, kernel) in enumerate(probes):
        reads = family.bound_by == READING
        seconds = _seconds(module[f"kernel{number}"], spec, kernel, clock, _IN_TURNS if reads else 1)
        if reads:
            reading = kernel.weight_nbytes / seconds
        else:
            computing[family.name] = kernel.work / seconds
    last_level = cached.weight_nbytes / _seconds(module["cached"], _CACHED, cached, clock)
    direct = computing.pop("direct")
    slowness = {name: direct / rate for name, rate in computing.items()}
    return KernelRates(direct, reading, max(reading, last_level), slowness)


def representatives(unit: VectorUnit) -> list[tuple[Family, ConvSpec, Candidate]]:
    """The measured kernels: of every family that has one for this."""
    return [(family, *family.probe(unit)) for family in FAMILIES if family.probe]


def _seconds(
    function: Callable[..., object], spec: ConvSpec, kernel: Candidate, clock: Callable[[], float], panels: int = 1
) -> float:
    """The median of calls, with so many panels in turns."""
    x, y = _filled((spec.batch, spec.height, spec.width, spec.in_channels)), _filled(spec.out_shape)
    weights = [_filled(kernel.panel.shape) for _ in range(panels)]
    scratch = [*map(_filled, kernel.scratch)]
    times: list[float] = []
    end = clock() + _SECONDS
    while len(times) < _FEWEST or (len(times) < _MOST and clock() < end):
        panel = weights[len(times) % panels]
        start = clock()
        function(x, panel, 0, kernel.panel.blocks, y, *scratch)
        times.append(clock() - start)
    return statistics.median(times)


def _filled(shape: tuple[int, ...]) -> tvm_ffi.Tensor:
    """Memory that was written to: pages that were not are all the same one."""
    array = aligned(4 * math.prod(shape)).view(np.float32).reshape(shape)
    array.fill(1e-3)
    return tvm_ffi.from_dlpack(array)
