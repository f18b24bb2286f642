"""Measures a device by running compiled networks on it: the runtime's own traces become a `DeviceProfile`.

Everything is taken from whole inferences, so kernels find their weights as cold as they are in use, and loads go the
loader's way while kernels compute.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from . import runner
from .artifact import decode_program
from .device import DelayModel, DeviceProfile, FamilyRate, KernelTime, family, kernel_key
from .errors import ArtifactError
from .plan import SLICE_S, Storage, extent
from .program import Layer, Program, Rung, ValueArg, WeightArg
from .session import read_program
from .trace import Trace, Traces

_ROUNDS = 4
_MOST_DELAYED = 0.25  # of the time that loading takes, what computing beside it can lose; where others used the memory it was 0.2
RUNGS = 6  # budgets of each library that are run, from the smallest to the largest


@dataclass(frozen=True)
class LoadTime:
    """One load of a plan: the mean over inferences, since latencies are sums, and sums of medians are too small."""

    nbytes: int
    tensors: int
    seconds: float


@dataclass(frozen=True)
class StepTime:
    """One step of a plan: means over inferences."""

    share: float  # of its layer
    seconds: float
    nbytes: float  # loaded while it ran
    plan: int  # which of those observed it is of
    extent: int  # bytes of the arena that loads of that plan write in every inference


@dataclass
class Observations:
    """What was seen of a device."""

    threads: int = 0
    plans: int = 0  # that were run
    layers: dict[str, Layer] = field(default_factory=dict)  # by kernel key
    steps: dict[str, list[StepTime]] = field(default_factory=dict)  # by kernel key
    loads: list[LoadTime] = field(default_factory=list)
    releases: list[float] = field(default_factory=list)  # seconds from the end of a step to the load that waited for it
    arrivals: list[float] = field(default_factory=list)  # seconds from the end of a load to the step that waited for it


class Runnable(Protocol):
    """A compiled network where it is to be measured."""

    @property
    def program(self) -> Program:
        """The program inside the library."""

    def traces(self, budget: int, threads: int | None, repeat: int, **options: Any) -> Traces:
        """Traces of `repeat` inferences in a row."""


@dataclass(frozen=True)
class Library:
    """A library on this machine, run by the C++ runner."""

    path: Path

    @property
    def program(self) -> Program:
        return decode_program(read_program(self.path))

    def traces(self, budget: int, threads: int | None, repeat: int, **options: Any) -> Traces:
        """`options` are further ones of `runner.run`, such as `weights` and `read_bandwidth`."""
        return runner.traces(self.path, budget=budget, threads=threads, repeat=repeat, **options)


def observe(
    networks: Sequence[Runnable],
    threads: int | None = None,
    repeat: int = 7,
    report: Callable[[str, int, int], None] = lambda name, done, total: None,
    **options,
) -> Observations:
    """Run every network in several of its budgets. All must be run with the same number of threads.

    `options` are further ones of the networks' `traces`.
    """
    seen = Observations()
    for network in networks:
        program = network.program
        rungs = _spread(program.rungs)
        for done, rung in enumerate(rungs):
            report(program.model, done, len(rungs))
            traces = network.traces(rung.budget, threads, repeat, **options)
            _note(seen, program, program.rungs[traces.rung], traces.inferences)
            if seen.threads not in (0, traces.threads):
                raise ArtifactError(
                    f"{program.model} runs on {traces.threads} threads, others on {seen.threads}: give --threads"
                )
            seen.threads = traces.threads
        report(program.model, len(rungs), len(rungs))
    return seen


def fit(seen: Observations, cache: int = 0) -> DeviceProfile:
    """The profile that explains the observations best. Raises ArtifactError if nothing was loaded.

    `cache`: as Storage.cache, where it is known.
    """
    if not seen.loads:
        raise ArtifactError("none of the plans that were run loads anything: profile a larger network")
    per_byte, per_load = _storage(seen.loads)
    delay = min(_delay(seen.steps.values()), _MOST_DELAYED * per_byte)
    undisturbed = Storage(1.0, 0.0, disturbance=delay, cache=cache)
    kernels = {
        key: _kernel_time((one.share, one.seconds - undisturbed.disturbance_of(one.extent) * one.nbytes) for one in steps)
        for key, steps in seen.steps.items()
    }
    groups: dict[str, list[str]] = {}
    for key in kernels:
        groups.setdefault(family(seen.layers[key]), []).append(key)
    families = {name: _family_rate(seen, kernels, keys) for name, keys in groups.items()}
    flops = max(seen.layers[key].flops / time.seconds for key, time in kernels.items())
    moved = max(operand_bytes(seen.layers[key]) / time.seconds for key, time in kernels.items())
    return DeviceProfile(
        flops_per_s=max(flops / seen.threads, 1.0),
        memory_bytes_per_s=moved,
        storage_bytes_per_s=1 / max(per_byte, 1e-15),
        load_overhead_s=per_load,
        load_disturbance=delay / (1 - delay / per_byte) if delay else 0.0,
        load_cache_bytes=cache,
        wake_s=statistics.median(waits) if (waits := [*seen.arrivals, *seen.releases]) else 0.0,
        threads=seen.threads,
        kernels=MappingProxyType(kernels),
        families=MappingProxyType(families),
        delays=_delays(seen, kernels),
    )


def operand_bytes(layer: Layer) -> int:
    """Bytes of a layer's operands and results."""
    return sum(arg.type.nbytes for arg in layer.args if isinstance(arg, ValueArg | WeightArg))


def _spread(rungs: Sequence[Rung]) -> list[Rung]:
    """Some of the rungs, both ends included."""
    places = np.linspace(0, len(rungs) - 1, min(RUNGS, len(rungs)))
    return [rungs[round(place)] for place in places]


def _note(seen: Observations, program: Program, rung: Rung, traces: Sequence[Trace]) -> None:
    seen.plans += 1
    loaded = _bytes_between(rung, traces)
    written = extent((load.target, load.nbytes) for load in rung.loads if not load.pinned)
    for index, step in enumerate(rung.steps):
        layer = program.layers[step.layer]
        key = kernel_key(layer)
        seconds = _mean((t.steps[index][1] - t.steps[index][0]) * 1e-9 for t in traces)
        seen.layers[key] = layer
        share = step.count / (layer.weights.blocks if layer.weights else 1)
        nbytes = statistics.fmean(loaded(*trace.steps[index]) for trace in traces)
        seen.steps.setdefault(key, []).append(StepTime(share, seconds, nbytes, seen.plans, written))
    for index, load in enumerate(rung.loads):
        spans = [t.loads[index] for t in traces if t.loads[index][1]]
        if not load.pinned and spans:
            # All of them: a load that ends late makes the one behind it seem short.
            seconds = statistics.fmean((end - begin) * 1e-9 for begin, end in spans)
            seen.loads.append(LoadTime(load.nbytes, _tensors(program, load.source, load.nbytes), seconds))
    for index, step in enumerate(rung.steps):
        for trace in traces if step.need and index else ():
            loaded, begin = trace.loads[step.need - 1][1], trace.steps[index][0]
            if loaded > trace.steps[index - 1][1]:  # the step had to wait
                seen.arrivals.append((begin - loaded) * 1e-9)
    for index, load in enumerate(rung.loads):
        if load.pinned or load.ahead or load.after == 0 or index == 0:
            continue
        for trace in traces:
            freed, begin = trace.steps[load.after - 1][1], trace.loads[index][0]
            if trace.loads[index - 1][1] < freed:  # the loader had nothing else to do
                seen.releases.append((begin - freed) * 1e-9)


def _bytes_between(rung: Rung, traces: Sequence[Trace]) -> Callable[[int, int], float]:
    """Bytes that were loaded from one nanosecond to another, in inferences in a row."""
    loads = [
        (*span, load.nbytes) for trace in traces for load, span in zip(rung.loads, trace.loads, strict=True) if span[1]
    ]
    loads.sort()
    times = [time for begin, end, _ in loads for time in (begin, end)]
    sums = [total for end in np.cumsum([0, *(nbytes for *_, nbytes in loads)]) for total in (end, end)][1:-1]
    return lambda begin, end: float(np.diff(np.interp((begin, end), times, sums))[0]) if times else 0.0


def _delay(kernels: Collection[Sequence[StepTime]]) -> float:
    """Seconds that a step takes longer for each byte that is loaded while it runs.

    Steps that do the same are compared with each other: whole layers with the same kernel in one plan, which ran at about the
    same time, because chance differences between runs are larger than what is looked for. Where there are none, steps of
    the same kernel and share in all plans.
    """
    of_plan: dict[tuple[int, int], list[StepTime]] = {}
    of_all: dict[tuple[int, float], list[StepTime]] = {}
    for number, steps in enumerate(kernels):
        for step in steps:
            of_all.setdefault((number, step.share), []).append(step)
            if step.share == 1:
                of_plan.setdefault((number, step.plan), []).append(step)
    repeated = any(len(same) > 1 for same in of_plan.values())
    return _slope(of_plan.values() if repeated else of_all.values())


def _slope(groups: Iterable[Sequence[StepTime]]) -> float:
    """Seconds per byte within groups, the same in all of them, by least squares; not negative."""
    product = square = 0.0
    for steps in groups:
        same = np.array([(step.nbytes, step.seconds) for step in steps])
        nbytes, seconds = (same - same.mean(axis=0)).T
        product += float(nbytes @ seconds)
        square += float(nbytes @ nbytes)
    return max(0.0, product / square) if square else 0.0


def _mean(values: Iterable[float]) -> float:
    """Without the slowest tenth, which others on the machine may have caused."""
    ordered = sorted(values)
    return statistics.fmean(ordered[: max(1, len(ordered) - len(ordered) // 10)])


def _tensors(program: Program, source: int, nbytes: int) -> int:
    """Weights, whole or in part, that a load brings."""
    return sum(
        layer.weights is not None
        and layer.weights.offset < source + nbytes
        and source < layer.weights.offset + layer.weights.nbytes
        for layer in program.layers
    )


def _kernel_time(points: Iterable[tuple[float, float]]) -> KernelTime:
    """Seconds = a + b · share; all of it is a + b, and each further slice costs a more."""
    by_share: dict[float, list[float]] = {}
    for share, seconds in points:
        by_share.setdefault(share, []).append(seconds)
    means = {share: _mean(times) for share, times in by_share.items()}
    if len(means) == 1:
        ((share, seconds),) = means.items()
        return KernelTime(seconds / share, SLICE_S)
    slope, base = _fit([(share, 1.0) for share in means], list(means.values()))
    # where whole layers were seen, they are right by themselves
    return KernelTime(means.get(1.0, base + slope), base)


def _storage(loads: Sequence[LoadTime]) -> tuple[float, float]:
    """Seconds per byte and per load, such that all loads together take what they took."""
    per_byte, per_load = _fit([(load.nbytes, 1.0) for load in loads], [load.seconds for load in loads])
    fitted = sum(per_byte * load.nbytes + per_load for load in loads)
    scale = sum(load.seconds for load in loads) / fitted if fitted else 1.0
    return per_byte * scale, per_load * scale


def _family_rate(seen: Observations, kernels: dict[str, KernelTime], keys: Sequence[str]) -> FamilyRate:
    facts = [(float(seen.layers[key].flops), float(operand_bytes(seen.layers[key]))) for key in keys]
    return FamilyRate(*_fit(facts, [kernels[key].seconds for key in keys]))


def _delays(seen: Observations, kernels: dict[str, KernelTime]) -> DelayModel:
    alpha, beta = _fit([(load.nbytes, load.tensors) for load in seen.loads], [load.seconds for load in seen.loads])
    flops = [(float(seen.layers[key].flops), 0.0) for key in kernels if seen.layers[key].flops]
    seconds = [time.seconds for key, time in kernels.items() if seen.layers[key].flops]
    gamma = _fit(flops, seconds)[0] if flops else 0.0
    # Nothing is done to swap a block out: what is left is the time until the loader learns of it.
    eta = statistics.median(seen.releases) if seen.releases else 0.0
    return DelayModel(alpha, beta, gamma, eta)


def _fit(facts: Sequence[tuple[float, float]], seconds: Sequence[float]) -> tuple[float, float]:
    """(p, q), not negative, such that p·x + q·y explains the seconds with the smallest relative squared error.

    Errors are relative to what the fit itself says, found in a few rounds: relative to what was measured, times that
    scatter would come out too small.
    """
    time, known = np.asarray(seconds), np.asarray(facts, float)
    scale, found = time, (0.0, 0.0)
    for _ in range(_ROUNDS):
        found = _not_negative(known / scale[:, None], time / scale)
        scale = np.maximum(known @ found, 1e-12)
    return found


def _not_negative(facts: np.ndarray, wanted: np.ndarray) -> tuple[float, float]:
    """Least squares in two unknowns that may not be negative."""

    def error(choice: tuple[float, float]) -> float:
        return float(np.sum((facts @ choice - wanted) ** 2))

    def alone(column: int) -> float:
        square = float(facts[:, column] @ facts[:, column])
        return float(facts[:, column] @ wanted) / square if square else 0.0

    p, q = map(float, np.linalg.lstsq(facts, wanted, rcond=None)[0])
    return min([(alone(0), 0.0), (0.0, alone(1)), *([(p, q)] if p >= 0 and q >= 0 else [])], key=error)
