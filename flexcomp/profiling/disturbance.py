"""How much concurrent loads slow computing, estimated from steps that were seen with more and with fewer bytes loaded.

A step of a kernel that computes the part `share` of a layer takes a + b·share + delay·bytes seconds, a and b of the kernel,
the delay of the device. Resident plans compute whole layers without loads and streaming plans slices during loads, so the
delay shows in most kernels. Chance differences between plans are as large as the effect. Therefore the estimate is
taken only as far as it does not depend on single plans or kernels: its standard error is that of the jackknife (leaving out
one plan, or one kernel, at a time), and it is shrunk towards nothing by the positive-part rule of James and Stein (1961).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from flexcomp.plan import Storage

from .observing import StepTime

_PARTS = (1, 2, 4, 8)  # of the cache that may be left for loads; others use the cache too


@dataclass(frozen=True)
class Disturbance:
    """The slowdown of computing by loads."""

    delay: float  # seconds for each byte loaded meanwhile
    cache: int  # bytes; loads that come round in so many take a fifth of it. 0: all count in full

    def counted(self, distance: float) -> float:
        """The part of the delay that loads have which come round in so many bytes."""
        return float(Storage(1.0, 0.0, disturbance=1.0, cache=self.cache).rates_at(np.array([distance]))[1][0])

    def of(self, step: StepTime) -> float:
        """Seconds that a step lost."""
        return self.delay * self.counted(step.distance) * step.nbytes


def disturbance_of(kernels: Collection[Sequence[StepTime]], cache: int = 0) -> Disturbance:
    """The best explanation of each kernel's steps; a cache of that size may hide some of the loads."""
    found = [_Steps(kernels, Disturbance(1.0, part)) for part in dict.fromkeys(cache // part for part in _PARTS)]
    best = min(found, key=lambda steps: steps.unexplained)
    return Disturbance(best.delay, best.kind.cache)


@dataclass(frozen=True)
class _Line:
    """Steps of one kernel in one plan with the same share of the layer."""

    kernel: int
    plan: int
    share: float
    seconds: float
    nbytes: float  # counted ones
    weight: float  # steps take chance times: their variance goes with the time


class _Steps:
    """Least squares over the steps of all kernels, for one kind of disturbance."""

    def __init__(self, kernels: Collection[Sequence[StepTime]], kind: Disturbance) -> None:
        self.kind = kind
        lines = [line for number, steps in enumerate(kernels) for line in _lines(number, steps, kind)]
        by_kernel: dict[int, list[_Line]] = {}
        for line in lines:
            by_kernel.setdefault(line.kernel, []).append(line)
        plans = {line.plan for line in lines}
        whole = _sums(by_kernel.values())
        estimate = _slope(whole)
        without_plan = [
            _slope(_sums([[line for line in group if line.plan != plan] for group in by_kernel.values()])) for plan in plans
        ]
        of_kernel = [_sums([group]) for group in by_kernel.values()]
        without_kernel = [_slope(whole - one) for one in of_kernel if one[1]]
        error = max(_jackknife(without_plan), _jackknife(without_kernel))
        self.delay = max(0.0, estimate - error**2 / estimate) if estimate > 0 else 0.0
        self.unexplained = float(whole[2] - 2 * self.delay * whole[0] + self.delay**2 * whole[1])


def _lines(number: int, steps: Sequence[StepTime], kind: Disturbance) -> list[_Line]:
    groups: dict[tuple[int, float], list[StepTime]] = {}
    for step in steps:
        groups.setdefault((step.plan, step.share), []).append(step)
    lines = []
    for (plan, share), same in groups.items():
        # Layers with the same kernel differ in the loads meanwhile, slices of one layer in nothing that matters.
        for part in [[step] for step in same] if share == 1 else [same]:
            seconds = float(np.mean([step.seconds for step in part]))
            nbytes = float(np.mean([step.nbytes * kind.counted(step.distance) for step in part]))
            if seconds > 0:
                lines.append(_Line(number, plan, share, seconds, nbytes, len(part) / seconds))
    return lines


def _sums(groups: Collection[Sequence[_Line]]) -> np.ndarray:
    """(bytes·seconds, bytes², seconds²), weighted, of the residuals of a + b·share."""
    return sum((_left(group) for group in groups if len(group) > 1), start=np.zeros(3))


def _left(lines: Sequence[_Line]) -> np.ndarray:
    root = np.sqrt([line.weight for line in lines])
    shares = [line.share for line in lines]
    known = np.stack([np.ones(len(lines)), shares][: 1 + (len(set(shares)) > 1)], axis=1) * root[:, None]
    wanted = np.array([(line.nbytes, line.seconds) for line in lines]) * root[:, None]
    basis, _ = np.linalg.qr(known)
    nbytes, seconds = (wanted - basis @ (basis.T @ wanted)).T
    return np.array([nbytes @ seconds, nbytes @ nbytes, seconds @ seconds])


def _slope(sums: np.ndarray) -> float:
    """Seconds per byte."""
    return float(sums[0] / sums[1]) if sums[1] > 1e-9 else 0.0


def _jackknife(estimates: Sequence[float]) -> float:
    """The standard error of an estimate, from those that each leave out one group of the data."""
    count = len(estimates)
    return float(np.sqrt((count - 1) * np.var(estimates))) if count > 1 else 0.0
