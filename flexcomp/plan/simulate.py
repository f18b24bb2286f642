"""The loader/compute timeline of a plan, from predicted times.

Two workers, two counters (DESIGN: loads run in one fixed order, steps in another): step i waits until
`need[i]` loads are complete, load j until `after[j]` steps are computed. A load takes the storage's
overhead plus bytes over bandwidth (the delay model of SwapNet, section 6.1, without its assembly
terms: a load is ready when it has been read). A slice takes its share of the layer's time. Whoever has waited
begins a little later, when it has woken up.

Inferences follow each other without a pause. Where loads begin in the inference before, several are played,
until each is as long as the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .errors import PlanError
from .problem import Plan, Problem

MOST_LAPS = 8  # inferences played to reach the steady state
SAME_S = 1e-9  # seconds


@dataclass(frozen=True)
class Timeline:
    """Predicted times of one inference, in seconds from its start, and bytes."""

    latency: float  # to the end of the last step
    compute: float  # sum of the steps' own times
    stall: float  # time during which computing waits for loads
    loading: float  # sum of the loads' own times
    nbytes: int  # loaded for it
    bound: float  # max(compute, nbytes / bandwidth): no plan of these steps and loads is faster
    steps: tuple[tuple[float, float], ...]  # (start, end) of each step
    # (start, end) of each load: before 0 if it began ahead, empty for pinned ones in the steady state
    loads: tuple[tuple[float, float], ...]

    def __str__(self) -> str:
        return (
            f"{self.latency * 1e3:.2f} ms (bound {self.bound * 1e3:.2f}): "
            f"computing {self.compute * 1e3:.2f}, stalled {self.stall * 1e3:.2f}, "
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


def simulate(problem: Problem, plan: Plan, *, cold: bool = False) -> Timeline:
    """The timeline of an inference in the steady state, or (`cold`) of the first, which reads what is pinned.

    Raises PlanError if the waits can never end.
    """
    seconds = step_seconds(problem, plan)
    storage, segments = problem.storage, plan.segments
    durations = [storage.seconds(segment.nbytes) if cold or not segment.pinned else 0.0 for segment in segments]
    lap = _play(plan, seconds, durations, storage.wake_s, None)
    if not cold and any(segment.ahead for segment in segments):
        for _ in range(MOST_LAPS):
            before, lap = lap, _play(plan, seconds, durations, storage.wake_s, lap)
            if abs(lap.end - before.end) < SAME_S:
                break
    compute = sum(seconds)
    nbytes = sum(segment.nbytes for segment in segments if cold or not segment.pinned)
    return Timeline(
        latency=lap.end,
        compute=compute,
        stall=max(0.0, lap.end - compute),
        loading=sum(durations),
        nbytes=nbytes,
        bound=max(compute, nbytes / storage.bandwidth),
        steps=tuple(lap.steps),
        loads=tuple(lap.loads),
    )


@dataclass(frozen=True)
class _Lap:
    """One inference; times from its start."""

    end: float
    steps: list[tuple[float, float]]
    loads: list[tuple[float, float]]


def _play(plan: Plan, seconds: Sequence[float], durations: Sequence[float], wake: float, before: _Lap | None) -> _Lap:
    """The inference behind `before`, or the first."""
    segments = plan.segments
    loads: list[tuple[float, float]] = []
    steps: list[tuple[float, float]] = []
    loaded_at = computed_at = 0.0  # when the last load, the last step ended
    if before is not None and before.loads:
        loaded_at = before.loads[-1][1] - before.end
    for index, need in enumerate([*plan.need, len(segments)]):
        for number in range(len(loads), need):
            after, ahead = segments[number].after, segments[number].ahead
            if ahead:
                start = _begin(loaded_at, before.steps[after - 1][1] - before.end, wake) if before else loaded_at
            elif not durations[number]:
                start = loaded_at  # nothing to do
            elif after > len(steps):
                raise PlanError(f"step {index} waits for a load that waits for {after} steps")
            else:
                start = _begin(loaded_at, steps[after - 1][1], wake) if after else max(loaded_at, 0.0)
            loaded_at = start + durations[number]
            loads.append((start, loaded_at))
        if index < len(seconds):
            start = _begin(computed_at, loads[need - 1][1], wake) if need else computed_at
            computed_at = start + seconds[index]
            steps.append((start, computed_at))
    return _Lap(computed_at, steps, loads)


def _begin(free: float, awaited: float, wake: float) -> float:
    """When a worker begins that is free at one time and waits for another: sleepers need time to wake up."""
    return free if awaited <= free else awaited + wake
