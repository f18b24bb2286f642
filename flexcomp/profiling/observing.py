"""Runs compiled networks to see how a device computes and loads: the runtime's own traces become `Observations`.

Everything is taken from whole inferences, so kernels find their weights as cold as they are in use, and loads go the
loader's way while kernels compute.

A machine that others use too has faster and slower seconds. So plans run in turns, a few inferences of each at a time:
slow seconds then strike all of them, and not one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from flexcomp.device import kernel_key
from flexcomp.errors import ArtifactError, InputError
from flexcomp.plan import HUGE_PAGE, reuse_distances
from flexcomp.program import CUDA, Layer, Program, Rung, decode_shapes
from flexcomp.runtime import DeviceRates, TensorInfo, Trace, Traces, read_program, runner

RUNGS = 6  # budgets of each library that are run, from the smallest to the largest
_TURNS = 4


@dataclass(frozen=True)
class LoadTime:
    """One load of a plan: the mean over inferences, since latencies are sums, and sums of medians are too small."""

    nbytes: int
    tensors: int
    seconds: float
    waited: float = 0.0  # the part of the seconds in which computing waited, for this load or another
    distance: float = 0.0  # reuse distance of its place in the arena, bytes
    small: float = 0.0  # the part of the bytes that is read into small pages


@dataclass(frozen=True)
class StepTime:
    """One step of a plan: means over inferences."""

    share: float  # of its layer
    seconds: float
    nbytes: float  # loaded meanwhile
    plan: int  # number of the observed plan
    distance: float  # bytes in which these come round in the arena, in the mean


@dataclass
class Observations:
    """Observations of a device."""

    threads: int = 0
    plans: int = 0  # that were run
    layers: dict[str, Layer] = field(default_factory=dict)  # by kernel key
    steps: dict[str, list[StepTime]] = field(default_factory=dict)  # by kernel key
    loads: list[LoadTime] = field(default_factory=list)
    prepared_nbytes: float = 0.0  # of weights, in an inference of each plan
    preparing_s: float = 0.0  # for these
    releases: list[float] = field(default_factory=list)  # seconds from the end of a step to the load that waited
    arrivals: list[float] = field(default_factory=list)  # seconds from the end of a load to the step that waited
    device: DeviceRates | None = None  # where a GPU computed


class Runnable(Protocol):
    """A compiled network on the measured device."""

    @property
    def program(self) -> Program:
        """The program inside the library."""

    def traces(self, budget: int, threads: int | None, repeat: int, **options: Any) -> Traces:
        """Traces of `repeat` inferences in a row."""

    def rates(self) -> DeviceRates:
        """Costs of the GPU besides kernels."""


@dataclass(frozen=True)
class Library:
    """A library on this machine, in one of its shapes, run by the C++ runner."""

    path: Path
    shape: int = 0  # the number of it, from the largest

    @classmethod
    def shapes_of(cls, path: Path) -> list[Library]:
        """The library in each of its shapes."""
        return [cls(path, number) for number in range(len(decode_shapes(read_program(path))))]

    @cached_property
    def _programs(self) -> tuple[Program, ...]:
        return tuple(decode_shapes(read_program(self.path)))

    @property
    def program(self) -> Program:
        return self._programs[self.shape]

    def traces(self, budget: int, threads: int | None, repeat: int, **options: Any) -> Traces:
        """In the plan of a session with this budget, or with the smallest that is enough for all shapes.

        `options` are further ones of `runner.run`, such as `weights` and `read_bandwidth`.
        """
        budget = max(budget, *(one.rungs[0].budget for one in self._programs))
        inputs = [] if len(self._programs) == 1 else self.program.inputs
        ports = [TensorInfo(port.name, port.type.shape, port.type.dtype) for port in inputs]
        return runner.traces(self.path, ports, budget=budget, threads=threads, repeat=repeat, **options)

    def rates(self) -> DeviceRates:
        """As `runner.rates`."""
        return runner.rates(self.path)


class Runs:
    """Inferences of several plans, gathered in any order."""

    def __init__(self) -> None:
        self._threads = 0
        self._traces: dict[tuple[int, int], tuple[Program, list[Trace]]] = {}  # by program and rung

    def add(self, program: Program, traces: Traces) -> None:
        """More inferences of a plan of `program`. Raises ArtifactError for another number of threads."""
        if self._threads not in (0, traces.threads):
            raise ArtifactError(f"{program.model} runs on {traces.threads} threads, others on {self._threads}: give --threads")
        self._threads = traces.threads
        self._traces.setdefault((id(program), traces.rung), (program, []))[1].extend(traces.inferences)

    def observations(self) -> Observations:
        """Observations in all inferences."""
        seen = Observations(self._threads)
        for (_, rung), (program, traces) in self._traces.items():
            note(seen, program, program.rungs[rung], traces)
        return seen


def observe(
    networks: Sequence[Runnable],
    threads: int | None = None,
    repeat: int = 8,
    report: Callable[[str, int, int], None] = lambda stage, done, total: None,
    **options,
) -> Observations:
    """Run every network in several of its budgets, `repeat` inferences of each or a few more, in turns.

    All must be run with the same number of threads. `options` are further ones of the networks' `traces`. Raises InputError
    where some are for a GPU and some for CPUs, or for threads of a GPU.
    """
    programs = [network.program for network in networks]
    on_gpu = {program.space == CUDA for program in programs}
    if len(on_gpu) > 1:
        raise InputError("some of the libraries are for a GPU and some for CPUs: a profile is of one of them")
    if True in on_gpu and threads not in (None, 1):
        raise InputError(f"threads={threads}: a GPU computes, whose threads are not chosen; leave threads out")
    plans = [
        (network, program, rung)
        for network, program in zip(networks, programs, strict=True)
        for rung in spread(program.rungs)
    ]
    runs, turns = Runs(), min(_TURNS, repeat)
    for turn in range(turns):
        for done, (network, program, rung) in enumerate(plans):
            report(f"turn {turn + 1} of {turns}", done, len(plans))
            runs.add(program, network.traces(rung.budget, threads, -(-repeat // turns), **options))
        report(f"turn {turn + 1} of {turns}", len(plans), len(plans))
    seen = runs.observations()
    seen.device = networks[0].rates() if True in on_gpu else None
    return seen


def spread(rungs: Sequence[Rung]) -> list[Rung]:
    """Some of the rungs, both ends included."""
    places = np.linspace(0, len(rungs) - 1, min(RUNGS, len(rungs)))
    return [rungs[round(place)] for place in places]


def note(seen: Observations, program: Program, rung: Rung, traces: Sequence[Trace]) -> None:
    """Add observations of one plan's inferences."""
    seen.plans += 1
    repeated = rung.tapes.repeated
    streamed = [one for one in repeated if one.read]
    ways = reuse_distances([one.brought for one in streamed]).tolist()
    distances = {one.load: distance for one, distance in zip(streamed, ways, strict=True)}
    loaded, waited = _bytes_between(rung, traces), _waiting_between(traces)
    gone = _bytes_between(rung, traces, distances)
    for index, step in enumerate(rung.steps):
        layer = program.layers[step.layer]
        key = kernel_key(layer)
        seconds = mean((t.steps[index][1] - t.steps[index][0]) * 1e-9 for t in traces)
        seen.layers[key] = layer
        share = step.count / (layer.weights.blocks if layer.weights else 1)
        nbytes = statistics.fmean(loaded(*trace.steps[index]) for trace in traces)
        distance = statistics.fmean(gone(*trace.steps[index]) for trace in traces) / nbytes if nbytes else 0.0
        seen.steps.setdefault(key, []).append(StepTime(share, seconds, nbytes, seen.plans, distance))
    # The loader prepares before it takes note of reads that have ended meanwhile. The first is read ahead after the last.
    for before, one in zip((*repeated[-1:], *repeated), repeated, strict=False):
        spans = [t.loaded(one.load) for t in traces if t.loads[one.load][1]]
        if one.read and spans and not one.prepare and not before.prepare:
            # All of them: a load that ends late makes the next one seem short.
            seconds = statistics.fmean((end - begin) * 1e-9 for begin, end in spans)
            waits = statistics.fmean(waited(*span) * 1e-9 for span in spans)
            tensors, distance = _tensors(program, one.read.source, one.read.nbytes), distances[one.load]
            beyond = one.read.to + one.read.nbytes - rung.arena // HUGE_PAGE * HUGE_PAGE
            small = min(max(beyond / one.read.nbytes, 0.0), 1.0)
            seen.loads.append(LoadTime(one.read.nbytes, tensors, seconds, waits / seconds if seconds else 0.0, distance, small))
    for one in repeated:
        spans = [trace.prepares[one.load] for trace in traces if trace.prepares and trace.prepares[one.load][1]]
        if spans and one.prepare:
            seen.prepared_nbytes += program.prepared_nbytes(one.prepare)
            seen.preparing_s += mean((end - begin) * 1e-9 for begin, end in spans)
    _note_waking(seen, rung, traces)


def mean(values: Iterable[float]) -> float:
    """Without the slowest tenth, which others on the machine may have caused."""
    ordered = sorted(values)
    return statistics.fmean(ordered[: max(1, len(ordered) - len(ordered) // 10)])


def _note_waking(seen: Observations, rung: Rung, traces: Sequence[Trace]) -> None:
    first = rung.tapes.first
    for index, need in enumerate(first.need):
        for trace in traces if need and index else ():
            load = rung.tapes.operations[first.turns[need - 1][0]].load
            loaded, begin = trace.loaded(load)[1], trace.steps[index][0]
            if loaded > trace.steps[index - 1][1]:  # the step had to wait
                seen.arrivals.append((begin - loaded) * 1e-9)
    for before, one in pairwise(rung.tapes.repeated):  # what the loader did last, and does now
        for trace in traces if one.read and one.after > 0 else ():
            freed, begin = trace.steps[one.after - 1][1], trace.loads[one.load][0]
            if trace.loaded(before.load)[1] < freed:  # the loader had nothing else to do
                seen.releases.append((begin - freed) * 1e-9)


def _bytes_between(
    rung: Rung, traces: Sequence[Trace], factors: Mapping[int, float] | None = None
) -> Callable[[int, int], float]:
    """Bytes that were loaded from one nanosecond to another, those of each load times its factor."""
    deliveries = (*rung.tapes.filled, *rung.tapes.repeated)
    nbytes = {one.load: one.read.nbytes * (factors.get(one.load, 0) if factors else 1) for one in deliveries if one.read}
    spans = [(*trace.loaded(load), each) for trace in traces for load, each in nbytes.items() if trace.loads[load][1]]
    return _between(sorted(spans))


def _waiting_between(traces: Sequence[Trace]) -> Callable[[int, int], float]:
    """Nanoseconds in which computing waited, from one to another."""
    waits = []
    for trace in traces:
        at = trace.begin_ns
        for begin, end in trace.steps:
            if begin > at:
                waits.append((at, begin, begin - at))
            at = end
    return _between(sorted(waits))


def _between(amounts: Sequence[tuple[int, int, float]]) -> Callable[[int, int], float]:
    """How much there is from one time to another of amounts that come evenly from their (begin, end), in order."""
    times = [time for begin, end, _ in amounts for time in (begin, end)]
    sums = [total for end in np.cumsum([0, *(amount for *_, amount in amounts)]) for total in (end, end)][1:-1]
    return lambda begin, end: float(np.diff(np.interp((begin, end), times, sums))[0]) if times else 0.0


def _tensors(program: Program, source: int, nbytes: int) -> int:
    """Weights, whole or in part, that a load brings."""
    found = {
        (layer.weights.offset, layer.weights.nbytes)  # once, whoever reads them
        for layer in program.layers
        if layer.weights is not None
        and layer.weights.preparation is None  # the layer whose weights are stored there is counted
        and layer.weights.offset < source + nbytes
        and source < layer.weights.offset + layer.weights.nbytes
    }
    return len(found)
