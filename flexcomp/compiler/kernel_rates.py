"""How fast this machine computes and reads, seen from a few kernels of ours: the scale for predicted times of all others.

Families bring these kernels. Each kind that is limited by arithmetic has a rate of its own. Those that are limited by memory read
weights that no cache holds, and smaller ones from the last-level cache, in one thread and in all.

All run as in a network: weights come from memory, for other layers' weights were read meanwhile, and loops over tasks are loops
of the calling thread. TVM's pool would take some ten microseconds for each loop, hundreds in one call of a Winograd kernel.

Other work on the machine only slows kernels down: a time is the least of a round's, and rounds go on until two agree.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import numpy as np
import tvm_ffi
from tvm import tirx

from flexcomp.device import CompileTarget, cache_sizes, has_slow_memory
from flexcomp.profiling import aligned
from flexcomp.schedules import preparation
from flexcomp.schedules.direct import FAMILY as DIRECT
from flexcomp.schedules.family import READING, Candidate, Family
from flexcomp.schedules.preparation import Preparation, WeightForm
from flexcomp.schedules.registry import FAMILIES
from flexcomp.schedules.tiles.memory import USUAL
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit

from .machine_code import compile_module

_SECONDS = 0.05  # for each kernel in a round
_MOST_ROUNDS = 6
VARYING = 1.2  # the least times of two rounds may differ by so many times
# Of panels that a kernel reads in turns: at least and at most, and of the last-level cache, which keeps none until its next turn.
_IN_TURNS_NBYTES = 256 << 20, 1 << 30
_IN_TURNS_CACHES = 2
_SHARED_IN_TURNS = 16  # threads for which there is another panel: cores have up to 4 MiB of cache each for themselves
_TOGETHER_NBYTES = 256 << 20  # at least, that threads read together: starting them takes less than a tenth of a millisecond
# Weights beyond the caches that cores have for themselves, but not beyond the last level.
_CACHED = ConvSpec(1, 1, 1, 1024, 1024)
_FEWEST, _MOST = 3, 100  # calls
_PASSES = 3  # in which rates of kernels, and how many operations fit into reading a byte, follow from each other


@dataclass(frozen=True)
class KernelRates:
    """As in `DeviceProfile`."""

    flops_per_s: float  # of one thread, in direct kernels
    memory_bytes_per_s: float
    last_level_bytes_per_s: float = 0.0
    slowness: Mapping[str, float] = field(default_factory=dict)
    all_memory_bytes_per_s: float = 0.0
    all_last_level_bytes_per_s: float = 0.0
    prepare_bytes_per_s: float = 0.0  # of one thread that makes weights for kernels of several families; 0: none are made
    varying: float = 1.0  # by how many times the two best rounds differ, of the kernel with which they differ most


def measure_kernels(
    target: CompileTarget,
    clock: Callable[[], float] = time.perf_counter,
    thread_clock: Callable[[], float] = time.thread_time,
) -> KernelRates:
    """The rates of this machine, for which `target` must be. Seconds of a `thread_clock` are those in which its thread runs."""
    rates = _measured(target, clock, thread_clock)
    if has_slow_memory(rates.flops_per_s, rates.memory_bytes_per_s):  # for which kernels are others
        rates = _measured(target, clock, thread_clock, slow=True)
    return rates


def _measured(
    target: CompileTarget, clock: Callable[[], float], thread_clock: Callable[[], float], slow: bool = False
) -> KernelRates:
    """Those of kernels for slow memory, or for usual one."""
    threads, sizes = target.num_cores, cache_sizes()
    second, last = sizes.get(2, USUAL.second_nbytes), max(sizes.values(), default=USUAL.last_nbytes)
    unit = replace(target.vector_unit, threads=1, memory=replace(USUAL, second_nbytes=second, last_nbytes=last, is_slow=slow))
    probes = representatives(unit)
    (reader,) = (family for family, *_ in probes if family.bound_by == READING)
    cached = next(iter(reader.candidates(_CACHED, unit)))
    kernels = {kernel.measured_as: kernel for *_, kernel in probes} | {"cached": cached}
    specs = {kernel.measured_as: spec for _, spec, kernel in probes} | {"cached": _CACHED}
    symbols = {name: name.replace(" ", "_") for name in kernels}
    ways = {name: way for name in specs if (way := _preparation(specs[name], kernels[name], unit))}
    code = {symbols[name]: _serial(kernel.build()) for name, kernel in kernels.items()}
    module = compile_module(code | {f"prepare_{symbols[name]}": preparation.function(way) for name, way in ways.items()}, target)
    least, most = _IN_TURNS_NBYTES
    nbytes = min(most, max(least, _IN_TURNS_CACHES * last))
    memory = _filled((nbytes // 4,))
    calls = {
        name: _Calls(module[symbols[name]], specs[name], kernel, memory, 1 if name == "cached" else None)
        for name, kernel in kernels.items()
    }
    with ThreadPoolExecutor(threads) as pool:
        measured: dict[str, Callable[[], float]] = {name: lambda one=one: one.seconds(clock) for name, one in calls.items()}
        for name, way in ways.items():
            preparing = _preparing(module[f"prepare_{symbols[name]}"], way, memory)
            measured[f"prepare {name}"] = lambda calls=preparing: _least_seconds(calls, clock)
        if threads > 1:
            shared = calls[reader.name].shared(threads)
            near = [calls["cached"].again() for _ in range(threads)]
            for name, jobs in (("far", shared), ("near", near)):
                measured[name] = lambda jobs=jobs: _together(pool, jobs, clock, thread_clock)
        seconds, varying = _agreed(measured)
    far_rate = kernels[reader.name].weight_nbytes / seconds[reader.name]
    last_level = max(far_rate, cached.weight_nbytes / seconds["cached"])
    rates: dict[str, float] = {}
    for _ in range(_PASSES):
        rates = {
            kernel.measured_as: _work(family, spec, kernel, unit) / seconds[kernel.measured_as]
            for family, spec, kernel in probes
            if family is not reader
        }
        found = replace(unit.memory, far=rates[DIRECT.name] / far_rate, near=rates[DIRECT.name] / last_level)
        unit = replace(unit, memory=found)
    direct = rates.pop(DIRECT.name)
    slowness = {name: direct / rate for name, rate in rates.items()}
    prepared = {name: way.prepared.blocks * way.prepared.block_nbytes for name, way in ways.items()}
    prepare_rate = sum(prepared.values()) / sum(seconds[f"prepare {name}"] for name in ways) if ways else 0.0
    if threads == 1:
        return KernelRates(direct, far_rate, last_level, slowness, prepare_bytes_per_s=prepare_rate, varying=varying)
    all_memory = max(far_rate, calls[reader.name].read_together(threads) / seconds["far"])
    all_last_level = max(last_level, all_memory, threads * calls["cached"].read_together(1) / seconds["near"])
    return KernelRates(direct, far_rate, last_level, slowness, all_memory, all_last_level, prepare_rate, varying)


def _work(family: Family, spec: ConvSpec, kernel: Candidate, unit: VectorUnit) -> float:
    """The work of the same kernel on another machine."""
    return next((one.work for one in family.candidates(spec, unit) if str(one) == str(kernel)), kernel.work)


def _agreed(measured: Mapping[str, Callable[[], float]]) -> tuple[dict[str, float], float]:
    """The least seconds of each in several rounds, and by how many times the two least differ at most."""
    rounds: list[dict[str, float]] = []
    varying = math.inf
    while len(rounds) < _MOST_ROUNDS and varying > VARYING:
        rounds.append({name: seconds() for name, seconds in measured.items()})
        two = [sorted(times[name] for times in rounds)[:2] for name in measured]
        known = len(rounds) > 1 and all(math.isfinite(least[-1]) for least in two)
        varying = max(least[-1] / least[0] for least in two) if known else math.inf
    return {name: min(times[name] for times in rounds) for name in measured}, varying


def representatives(unit: VectorUnit) -> list[tuple[Family, ConvSpec, Candidate]]:
    """The measured kernels: one of every kind that families have for this."""
    return [(family, spec, kernel) for family in FAMILIES if family.probe for spec, kernel in family.probe(unit)]


def _serial(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel without launches."""

    def serial(loop: tirx.For) -> tirx.For:
        if loop.kind != tirx.ForKind.PARALLEL:
            return loop
        kept = loop.thread_binding, loop.annotations, loop.step, loop.span
        return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body, *kept)

    return kernel.with_body(tvm_ffi.structural_map(kernel.body, (tirx.For, serial)))


class _Calls:
    """Calls of a kernel, with panels of weights in turns, so many or all that fit memory that other kernels use, too."""

    def __init__(
        self, function: Callable[..., object], spec: ConvSpec, kernel: Candidate, memory: tvm_ffi.Tensor, panels: int | None
    ) -> None:
        self.function, self.spec, self.kernel = function, spec, kernel
        self.x = _filled((spec.batch, spec.height, spec.width, spec.in_channels))
        self.panels = _in_a_row(np.from_dlpack(memory), kernel.panel.shape)[:panels]
        self.scratch = [*map(_filled, kernel.scratch)]

    def seconds(self, clock: Callable[[], float]) -> float:
        """The least of a round."""
        y, blocks = _filled(self.spec.out_shape), self.kernel.panel.blocks
        calls = [partial(self.function, self.x, panel, 0, blocks, y, *self.scratch) for panel in self.panels]
        return _least_seconds(calls, clock)

    def again(self) -> Callable[[], None]:
        """Reads all panels, as often as `read_together` says of one thread."""
        return self._part(0, self.kernel.panel.blocks, self.panels)

    def shared(self, threads: int) -> list[Callable[[], None]]:
        """Each reads a part of all panels, which no cache holds all of."""
        panels = [_filled(self.kernel.panel.shape) for _ in range(threads // _SHARED_IN_TURNS)] + self.panels
        blocks = self.kernel.panel.blocks
        ends = [blocks * number // threads for number in range(threads + 1)]
        return [self._part(first, end - first, panels) for first, end in pairwise(ends)]

    def read_together(self, threads: int) -> int:
        """Bytes that so many threads read together in a call."""
        panels = len(self.panels) + (threads // _SHARED_IN_TURNS if threads > 1 else 0)
        return self._turns(panels) * panels * self.kernel.weight_nbytes

    def _turns(self, panels: int) -> int:
        return math.ceil(_TOGETHER_NBYTES / (panels * self.kernel.weight_nbytes))

    def _part(self, first: int, count: int, panels: list[tvm_ffi.Tensor]) -> Callable[[], None]:
        parts = [tvm_ffi.from_dlpack(np.from_dlpack(panel)[first : first + count]) for panel in panels]
        y, turns = _filled(self.spec.out_shape), self._turns(len(panels))

        def call() -> None:
            for _ in range(turns if count else 0):
                for part in parts:
                    self.function(self.x, part, first, count, y, *self.scratch)

        return call


def _preparation(spec: ConvSpec, kernel: Candidate, unit: VectorUnit) -> Preparation | None:
    """How a kernel's weights are made of those of a direct kernel; None where they are the same."""
    if kernel.transform is None:
        return None
    stored = next(iter(DIRECT.candidates(spec, unit)))
    forms = (WeightForm(one.panel, spec.kernel, spec.group_in, one.transform) for one in (stored, kernel))
    return preparation.preparation(*forms)


def _preparing(function: Callable[..., object], way: Preparation, memory: tvm_ffi.Tensor) -> list[Callable[[], object]]:
    """Calls that prepare weights at one place after the other, from one place after the other."""
    low, high = np.split(np.from_dlpack(memory), 2)
    places = zip(_in_a_row(low, way.stored.shape), _in_a_row(high, way.prepared.shape), strict=False)
    return [partial(function, stored, 0, way.prepared.blocks, prepared) for stored, prepared in places]


def _in_a_row(floats: np.ndarray, shape: tuple[int, ...]) -> list[tvm_ffi.Tensor]:
    """As many tensors as there is room for."""
    size = math.prod(shape)
    return [tvm_ffi.from_dlpack(floats[at : at + size].reshape(shape)) for at in range(0, len(floats) - size + 1, size)]


def _least_seconds(calls: Sequence[Callable[[], object]], clock: Callable[[], float]) -> float:
    """The least of a round, in which the calls take turns."""
    times: list[float] = []
    end = clock() + _SECONDS
    while len(times) < _FEWEST or (len(times) < _MOST and clock() < end):
        call = calls[len(times) % len(calls)]
        start = clock()
        call()
        times.append(clock() - start)
    return min(times)


def _together(
    pool: ThreadPoolExecutor,
    jobs: list[Callable[[], None]],
    clock: Callable[[], float],
    thread_clock: Callable[[], float],
) -> float:
    """The least seconds of a round in which every job has a thread; infinite if other work had their cores each time."""

    def seconds_of(job: Callable[[], None]) -> float:
        start = thread_clock()
        job()
        return thread_clock() - start

    times: list[float] = []
    for _ in range(_FEWEST):
        start = clock()
        running = max([done.result() for done in [pool.submit(seconds_of, job) for job in jobs]])
        seconds = clock() - start
        times.append(seconds if seconds <= VARYING * running else math.inf)
    return min(times)


def _filled(shape: tuple[int, ...]) -> tvm_ffi.Tensor:
    """Memory that was written to: pages that were not are all the same one."""
    array = aligned(4 * math.prod(shape)).view(np.float32).reshape(shape)
    array.fill(1e-3)
    return tvm_ffi.from_dlpack(array)
