"""How fast this machine computes, seen from a few kernels of ours: the scale for predicted times of all others.

Families bring these kernels: some stand for all that is limited by arithmetic, some for all that is limited by memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import tvm_ffi

from flexcomp.device import CompileTarget
from flexcomp.profiling import aligned
from flexcomp.schedules.family import READING, Candidate, Family
from flexcomp.schedules.registry import FAMILIES
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit

from .machine_code import compile_module

_SECONDS = 0.1  # for each kernel; the best call counts, as others may use the machine
_FEWEST, _MOST = 3, 100  # calls


@dataclass(frozen=True)
class KernelRates:
    """As in `DeviceProfile`."""

    flops_per_s: float  # of one thread
    memory_bytes_per_s: float


def measure_kernels(target: CompileTarget, clock: Callable[[], float] = time.perf_counter) -> KernelRates:
    """The rates of this machine, for which `target` must be."""
    probes = representatives(replace(target.vector_unit, threads=1))
    module = compile_module({f"kernel{number}": kernel.build() for number, (_, _, kernel) in enumerate(probes)}, target)
    computing, reading = [], []
    for number, (family, spec, kernel) in enumerate(probes):
        seconds = _seconds(module[f"kernel{number}"], spec, kernel, clock)
        if family.bound_by == READING:
            reading.append(kernel.weight_nbytes / seconds)
        else:
            computing.append(kernel.work / seconds)
    return KernelRates(_mean(computing), _mean(reading))


def _mean(rates: list[float]) -> float:
    """The geometric mean."""
    return math.prod(rates) ** (1 / len(rates))


def representatives(unit: VectorUnit) -> list[tuple[Family, ConvSpec, Candidate]]:
    """The measured kernels: of every family that has one for this."""
    return [(family, *family.probe(unit)) for family in FAMILIES if family.probe]


def _seconds(function: Callable[..., object], spec: ConvSpec, kernel: Candidate, clock: Callable[[], float]) -> float:
    """Of the fastest call."""
    x, y = _filled((spec.batch, spec.height, spec.width, spec.in_channels)), _filled(spec.out_shape)
    args = x, _filled(kernel.panel.shape), 0, kernel.panel.blocks, y, *map(_filled, kernel.scratch)
    times: list[float] = []
    end = clock() + _SECONDS
    while len(times) < _FEWEST or (len(times) < _MOST and clock() < end):
        start = clock()
        function(*args)
        times.append(clock() - start)
    return min(times)


def _filled(shape: tuple[int, ...]) -> tvm_ffi.Tensor:
    """Memory that was written to: pages that were not are all the same one."""
    array = aligned(4 * math.prod(shape)).view(np.float32).reshape(shape)
    array.fill(1e-3)
    return tvm_ffi.from_dlpack(array)
