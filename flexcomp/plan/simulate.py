"""The loader/compute timeline of a plan, from predicted times.

Two workers, two counters (DESIGN: loads run in one fixed order, steps in another): step i waits until
`need[i]` loads are complete, load j until `after[j]` steps are computed. A load takes the storage's
overhead plus bytes over bandwidth (the delay model of SwapNet, section 4.2, without its assembly
terms: a load is ready when it has been read). A slice takes its share of the layer's time.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import PlanError
from .problem import Plan, Problem

STEP_OVERHEAD_S = 3e-6  # seconds that each further slice of a layer adds: one more call and one more barrier


@dataclass(frozen=True)
class Timeline:
    """Predicted times of one inference, in seconds from its start, and bytes."""

    latency: float
    compute: float  # sum of the steps' own times
    stall: float  # time during which computing waits for loads
    loading: float  # sum of the loads' own times
    nbytes: int  # loaded
    bound: float  # max(compute, nbytes / bandwidth): no plan of these steps and loads is faster
    steps: tuple[tuple[float, float], ...]  # (start, end) of each step
    loads: tuple[
        tuple[float, float], ...
    ]  # (start, end) of each load; empty intervals for pinned ones in the steady state

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
        layers[step.layer].seconds * step.count / layers[step.layer].blocks + (STEP_OVERHEAD_S if step.first else 0.0)
        for step in plan.steps
    ]


def simulate(problem: Problem, plan: Plan, *, cold: bool = False) -> Timeline:
    """The timeline of an inference in the steady state, or (`cold`) of the first, which reads what is pinned.

    Raises PlanError if the waits can never end.
    """
    seconds = step_seconds(problem, plan)
    storage, segments = problem.storage, plan.segments
    loads: list[tuple[float, float]] = []
    steps: list[tuple[float, float]] = []
    loaded_at = computed_at = loading = 0.0  # when the last load, the last step ended; busy time of the loader
    nbytes = 0
    for index, need in enumerate([*plan.need, len(segments)]):
        for segment in segments[len(loads) : need]:
            if segment.after > len(steps):
                raise PlanError(f"step {index} waits for a load that waits for {segment.after} steps")
            start = max(loaded_at, steps[segment.after - 1][1] if segment.after else 0.0)
            loaded_at = start
            if cold or not segment.pinned:
                duration = storage.seconds(segment.nbytes)
                loaded_at += duration
                loading += duration
                nbytes += segment.nbytes
            loads.append((start, loaded_at))
        if index < len(seconds):
            start = max(computed_at, loads[need - 1][1] if need else 0.0)
            computed_at = start + seconds[index]
            steps.append((start, computed_at))
    compute = sum(seconds)
    return Timeline(
        latency=computed_at,
        compute=compute,
        stall=max(0.0, computed_at - compute),
        loading=loading,
        nbytes=nbytes,
        bound=max(compute, nbytes / storage.bandwidth),
        steps=tuple(steps),
        loads=tuple(loads),
    )
