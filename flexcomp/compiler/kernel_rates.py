"""How fast this machine computes, seen from three kernels of ours: the scale for predicted times of all others.

A direct and a Winograd convolution stand for all that is limited by arithmetic, a matrix that is multiplied with a vector for
all that is limited by memory.
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
from flexcomp.schedules.registry import Candidate, candidates
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit

from .machine_code import compile_module

# On a Zen 4 core both kinds of kernels do as much work in a second on this layer as on most others, in a network of either
# kind: at 28×28 pixels and 128 channels F(2) does 0.75 of that, and would make all other kernels look 15 % slower.
_DEEP = ConvSpec(1, 14, 14, 256, 256, kernel=(3, 3), padding=(1, 1, 1, 1))
_READ = ConvSpec(1, 1, 1, 4096, 4096)  # 64 MiB of weights: more than caches hold
_SECONDS = 0.1  # for each kernel; the best call counts, as others may use the machine
_FEWEST, _MOST = 3, 100  # calls


@dataclass(frozen=True)
class KernelRates:
    """As in `DeviceProfile`."""

    flops_per_s: float  # of one thread
    memory_bytes_per_s: float


def measure_kernels(target: CompileTarget, clock: Callable[[], float] = time.perf_counter) -> KernelRates:
    """The rates of this machine, for which `target` must be."""
    kernels = representatives(replace(target.vector_unit, threads=1))
    module = compile_module({f"kernel{number}": kernel.build() for number, (_, kernel) in enumerate(kernels)}, target)
    seconds = [_seconds(module[f"kernel{number}"], *one, clock) for number, one in enumerate(kernels)]
    (_, direct), (_, winograd), (_, read) = kernels
    computing = math.sqrt(direct.work / seconds[0] * winograd.work / seconds[1])
    return KernelRates(computing, read.weight_nbytes / seconds[2])


def representatives(unit: VectorUnit) -> list[tuple[ConvSpec, Candidate]]:
    """The measured kernels: a direct kernel, one of Winograd's, and one that waits for memory. Small ones are compiled soon."""
    winograd = [one for one in candidates(_DEEP, unit) if one.family == "winograd" and one.variant.startswith("F(2)")]
    return [
        (_DEEP, candidates(_DEEP, unit)[0]),
        (_DEEP, min(winograd, key=lambda one: one.work)),
        (_READ, candidates(_READ, unit)[0]),
    ]


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
