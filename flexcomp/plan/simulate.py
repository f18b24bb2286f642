"""The loader/compute timeline of a plan, from predicted times.

Two workers, two counters (docs/runtime.md: loads run in one fixed order, steps in another): step i waits until
`need[i]` loads are complete, load j until `after[j]` steps are computed. A load takes the storage's
overhead plus bytes over bandwidth (the delay model of SwapNet, section 6.1, without its assembly
terms: a load is ready when it has been read), and less while computing waits and its core copies too. An idle device begins
after its latency. A load is requested as soon as the steps before it are computed, so in a run of several loads
only the first pays the latency. A slice takes its share of the layer's time, and longer while a load runs, for both use
the memory. Loads that soon write the same place again find it in the CPU's caches: such loads are faster and slow
computing down less. A worker that has waited begins a little later, after waking up.

Inferences follow each other without a pause. Where loads begin in the previous inference, several inferences are simulated,
until two successive ones take equally long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from threading import local

import numpy as np

from .errors import PlanError
from .loops import in_python
from .native import NativeProblem
from .problem import Plan, Problem, Segment, Storage, of_problem
from .reuse import reuse_distances

FAST_COMPUTE = 0.85  # of a layer's predicted time: without measurements, kernels have been that much faster
MOST_LAPS = 8  # inferences simulated to reach the steady state
SAME_S = 1e-9  # seconds
_HELPED = 1.8  # speed-up of two cores over one in preparing weights and making pages exist

_OF_THREAD = local()


@dataclass(frozen=True)
class Timeline:
    """Predicted times of one inference, in seconds from its start, and bytes."""

    latency: float  # to the end of the last step
    compute: float  # sum of the steps' own times
    stall: float  # time during which computing waits for loads
    disturbed: float  # time that steps take longer because of concurrent loads
    loading: float  # sum of the loads' own times
    nbytes: int  # loaded for this inference
    bound: float  # max(compute, nbytes / bandwidth), or less with helping: no plan of these steps and loads is faster
    steps: tuple[tuple[float, float], ...]  # (start, end) of each step
    # (start, end) of each load: below 0 for a start ahead, empty for pinned weights in the steady state
    loads: tuple[tuple[float, float], ...]

    def __str__(self) -> str:
        return (
            f"{self.latency * 1e3:.2f} ms (bound {self.bound * 1e3:.2f}): "
            f"computing {self.compute * 1e3:.2f}, disturbed {self.disturbed * 1e3:.2f}, stalled {self.stall * 1e3:.2f}, "
            f"{self.nbytes:,} B loaded in {self.loading * 1e3:.2f}"
        )


def step_seconds(problem: Problem, plan: Plan) -> list[float]:
    """Predicted compute time of each step."""
    layers = problem.layers
    return [
        layer.seconds * step.count / layer.blocks + (layer.slice_s if step.first else 0.0)
        for step in plan.steps
        for layer in (layers[step.layer],)
    ]


def simulate(problem: Problem, plan: Plan, *, cold: bool = False, fresh_s: Sequence[float] = ()) -> Timeline:
    """The timeline of an inference in the steady state, or (`cold`) of the first, which reads pinned weights.

    `fresh_s` are the core seconds that making memory exist adds to each load of the first inference.
    Raises PlanError if the waits can never end.
    """
    work = _work_of(problem, plan, cold, fresh_s)
    lap = _play(work, None)
    if not cold and any(segment.ahead for segment in plan.segments):
        for _ in range(MOST_LAPS):
            before, lap = lap, _play(work, lap)
            if abs(lap.end - before.end) < SAME_S:
                break
    compute = sum(work.seconds)
    busy = sum(end - start for start, end in lap.steps)
    nbytes = sum(_read_nbytes(problem, plan, one) for one in plan.segments if cold or not (one.pinned or one.kept_at >= 0))
    count = len(plan.segments)
    return Timeline(
        latency=lap.end,
        compute=compute,
        stall=max(0.0, lap.end - busy),
        disturbed=max(0.0, busy - compute),
        loading=sum(end - start for start, end in lap.loads[:count]),
        nbytes=nbytes,
        bound=problem.storage.least_seconds(work.reading, compute),
        steps=tuple(lap.steps),
        loads=tuple(lap.loads[:count]),
    )


def latency_of(problem: Problem) -> Callable[[Plan], float]:
    """Only the latency that `simulate` gives in the steady state: in C++ outside of `readable`."""
    if in_python():
        return lambda plan: simulate(problem, plan).latency
    return native_problem(problem).latency


def native_problem(problem: Problem) -> NativeProblem:
    """The problem in C++, this thread's own: C++ caches intermediate results in it."""
    if not hasattr(_OF_THREAD, "problem"):
        _OF_THREAD.problem = lru_cache(maxsize=16)(partial(NativeProblem, same_s=SAME_S, most_laps=MOST_LAPS))
    return _OF_THREAD.problem(problem)


@of_problem
def fast_compute(problem: Problem) -> Problem:
    """The same with faster kernels. A plan should suit both, as predictions are no better than that."""
    return replace(problem, layers=tuple(replace(layer, seconds=FAST_COMPUTE * layer.seconds) for layer in problem.layers))


@dataclass(frozen=True)
class _Work:
    """Times of steps and loads to simulate. After the loads of an inference follow the loads of the next one that begin in it."""

    plan: Plan
    seconds: list[float]  # of each step, undisturbed
    segments: tuple[Segment, ...]
    durations: list[float]  # of each load
    paces: list[float]  # seconds that a second of computing takes while the load runs
    reading: float  # seconds that the bytes of all loads take
    together: list[float]  # speed-up of each load while computing waits for it
    storage: Storage
    disturbing: bool  # whether any pace is not 1
    cold: bool  # whether weights that stay are read

    def served(self, free: float, asked: float, number: int) -> float:
        """The time at which a load begins that is requested at `asked` of a loader that is free at `free`."""
        wake = self.storage.wake_s if asked > free else 0.0
        return max(free, asked + wake + self.latency_s(number))

    def latency_s(self, number: int) -> float:
        """The storage's latency, or 0 for a load from kept stored weights, which does not read the storage."""
        return 0.0 if self.segments[number].kept_at >= 0 and not self.cold else self.storage.latency_s


def _read_nbytes(problem: Problem, plan: Plan, segment: Segment) -> int:
    weights = problem.layers[plan.steps[segment.step].layer].weights
    return round(segment.nbytes * weights.read) if weights else segment.nbytes


def _prepare_seconds(problem: Problem, plan: Plan, segment: Segment) -> float:
    """Seconds of preparing a segment when its stored weights are in the arena."""
    weights = problem.layers[plan.steps[segment.step].layer].weights
    if weights is None:
        return 0.0
    return segment.nbytes * problem.storage.prepare_s(weights)


def _work_of(problem: Problem, plan: Plan, cold: bool, fresh_s: Sequence[float]) -> _Work:
    storage, own = problem.storage, plan.segments
    ahead = own[: max((number + 1 for number, segment in enumerate(own) if segment.ahead), default=0)]
    durations, paces = _loading(problem, plan, cold)
    together = [1.0 if one.kept_at >= 0 and not cold else storage.together for one in own]
    if fresh_s:
        durations, together = _made_fresh(problem, plan, durations, fresh_s)
    reading = sum(
        time - (0.0 if one.kept_at >= 0 and not cold else storage.overhead_s)
        for time, one in zip(durations, own, strict=True)
        if cold or not one.pinned
    )
    durations, paces, together = (some + some[: len(ahead)] for some in (durations, paces, together))
    segments = (*own, *ahead)
    for number, segment in enumerate(segments):
        if segment.pinned and not (cold and number < len(own)):
            durations[number] = 0.0
    disturbing = storage.disturbance > 0 or storage.core_contention > 0
    return _Work(plan, step_seconds(problem, plan), segments, durations, paces, reading, together, storage, disturbing, cold)


def _loading(problem: Problem, plan: Plan, cold: bool) -> tuple[list[float], list[float]]:
    """Seconds of every load, and the duration of a second of computing during the load; in the first inference, if `cold`."""
    storage, segments = problem.storage, plan.segments
    costs = np.array([problem.load_cost_of(plan.steps, segment.step) for segment in segments])
    nbytes = np.array([segment.nbytes for segment in segments])
    distances = np.full(len(segments), 2.0 * storage.cache)  # pinned segments are loaded once
    if storage.cache:
        streamed = [number for number, segment in enumerate(segments) if not segment.pinned]
        distances[streamed] = reuse_distances([(segments[number].address, segments[number].nbytes) for number in streamed])
    bandwidth, disturbance = storage.rates_at(distances)
    small = np.array([problem.small_nbytes(segment, plan.steps, plan.arena) for segment in segments])
    durations = storage.overhead_s + (nbytes * costs + (storage.small_pages - 1) * small) / bandwidth
    for number, segment in enumerate(() if cold else segments):
        if segment.kept_at >= 0:
            durations[number] = _prepare_seconds(problem, plan, segment)
    contention = np.array([storage.core_contention * _prepare_seconds(problem, plan, segment) for segment in segments])
    return durations.tolist(), (1 + (disturbance * nbytes + contention) / durations).tolist()


def _made_fresh(
    problem: Problem, plan: Plan, durations: Sequence[float], fresh_s: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Seconds of the first inference's loads into memory that does not exist yet, and their speed-up by help.

    A core prepares and makes pages exist while the device reads, unless the core itself reads; a waiting thread takes a part.
    """
    storage = problem.storage
    made = [fresh + _prepare_seconds(problem, plan, one) for fresh, one in zip(fresh_s, plan.segments, strict=True)]
    if storage.together > 1:
        return [time + fresh for time, fresh in zip(durations, fresh_s, strict=True)], [storage.together] * len(made)
    reading = [_read_nbytes(problem, plan, one) / storage.bandwidth for one in plan.segments]
    durations = [max(time, storage.overhead_s + core) for time, core in zip(durations, made, strict=True)]
    return durations, [min(_HELPED, max(core / read, 1.0)) for core, read in zip(made, reading, strict=True)]


class _Lap:
    """One simulated inference; times from its start."""

    def __init__(self, work: _Work, before: _Lap | None) -> None:
        self.work, self.before = work, before
        self.own = len(work.plan.segments)
        self.loads: list[tuple[float, float]] = []
        self.steps: list[tuple[float, float]] = []
        self.end = 0.0  # of the last step
        self.loaded_at = before.loads[self.own - 1][1] - before.end if before and self.own else 0.0
        self.over = 0  # loads that ended before the step that runs

    def wait(self, need: int) -> bool:
        """Run the first `need` loads, while computing waits; False if a load waits for a step that has not been computed."""
        if self.loads and need >= len(self.loads):
            self._help()
        while len(self.loads) < need:
            if not self.load():
                return False
            self._help()
        return True

    def _help(self) -> None:
        """Shorten the last load by the part that the thread reads that has waited since the last step."""
        start, end = self.loads[-1]
        together = self.work.together[len(self.loads) - 1]
        copying = min(end - max(start, self.end), end - start - self.work.storage.overhead_s)
        if copying > 0 and together > 1:
            self.loaded_at = end - copying * (1 - 1 / together)
            self.loads[-1] = start, self.loaded_at

    def load(self) -> bool:
        """Run the next load; False if there is none, or if the load waits for a step that has not been computed."""
        number, work, before = len(self.loads), self.work, self.before
        if number == len(work.segments):
            return False
        segment, duration = work.segments[number], work.durations[number]
        start = self.loaded_at
        if segment.ahead and number < self.own:
            if before:
                start = work.served(start, before.steps[segment.after - 1][1] - before.end, number)
            else:
                start = max(start, work.latency_s(number))
        elif duration:
            if segment.after > len(self.steps):
                return False
            asked = self.steps[segment.after - 1][1] if segment.after else 0.0
            start = work.served(start, asked, number) if asked else max(start, work.latency_s(number))
        self.loaded_at = start + duration
        self.loads.append((start, self.loaded_at))
        return True

    def compute(self, seconds: float, need: int) -> None:
        """Run the next step, after the first `need` loads."""
        start = _begin(self.end, self.loads[need - 1][1], self.work.storage.wake_s) if need else self.end
        self.end = self._disturbed(start, start + seconds) if self.work.disturbing else start + seconds
        self.steps.append((start, self.end))

    def _disturbed(self, start: float, end: float) -> float:
        """The end of a step that would end at `end` without concurrent loads."""
        while self.over < len(self.loads) or self.load():
            begin, finish = self.loads[self.over]
            begin = max(begin, start)
            if begin >= end:
                break
            if finish > begin:
                pace = self.work.paces[self.over]
                if (end - begin) * pace <= finish - begin:
                    return begin + (end - begin) * pace
                end += (finish - begin) * (1 - 1 / pace)
                start = finish
            self.over += 1
        return end


def _play(work: _Work, before: _Lap | None) -> _Lap:
    """The inference after `before`, or the first."""
    lap = _Lap(work, before)
    for index, need in enumerate([*work.plan.need, lap.own]):
        if not lap.wait(need):
            after = work.segments[len(lap.loads)].after
            raise PlanError(f"step {index} waits for a load that waits for {after} steps")
        if index < len(work.seconds):
            lap.compute(work.seconds[index], need)
    return lap


def _begin(free: float, awaited: float, wake: float) -> float:
    """The time at which a worker begins that is free at `free` and waits until `awaited`: waking up takes time."""
    return free if awaited <= free else awaited + wake
