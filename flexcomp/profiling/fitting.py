"""Measures a device by running compiled networks on it: observations become a `DeviceProfile`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType

import numpy as np

from flexcomp.device import DelayModel, DeviceProfile, FamilyRate, KernelTime, family
from flexcomp.errors import ArtifactError
from flexcomp.plan import SLICE_S, Storage
from flexcomp.program import Layer, ValueArg, WeightArg
from flexcomp.runtime import DeviceRates

from .disturbance import disturbance_of
from .observing import LoadTime, Observations, mean

_ROUNDS = 4
_MOST_DELAYED = 0.5  # of the time of loading: the most that concurrent computing can lose
_LEAST_LEFT = 0.5  # of the time of a step, without its loss
_LEAST_OWN = 0.1  # of the time of a launch: the kernel's own time; less cannot be told from nothing
_HELP = np.linspace(1.0, 3.0, 41)  # how many times as fast loads may be while computing waits for them and helps
_CACHED = np.linspace(1.0, 2.0, 21)  # the same for loads in a cache
_SMALL_PAGES = np.linspace(1.0, 4.0, 31)  # how many times as long bytes may take into small pages


def fit(seen: Observations, cache: int = 0) -> DeviceProfile:
    """The profile that explains the observations best. Raises ArtifactError if nothing was loaded.

    `cache`: bytes of the cache where loads are copies in memory, as `copies.cache_of_copies` knows them; how much of it
    others leave to loads is found. Only such loads are helped with by computing that waits, and none of a GPU's.

    Steps of a GPU were waited for one by one; in plans they follow each other, and take a launch and the kernel's own time.
    """
    device = seen.device
    cache = 0 if device else cache
    if not seen.loads:
        raise ArtifactError("none of the plans that were run loads anything: profile a larger network")
    disturbance = disturbance_of(seen.steps.values(), cache)
    rates = storage_rates(seen.loads, cache > 0, disturbance.cache)
    per_byte = rates.per_byte
    disturbance = replace(disturbance, delay=min(disturbance.delay, _MOST_DELAYED * per_byte))
    kernels = {
        key: _kernel_time(
            (
                (one.share, _in_row(max(one.seconds - disturbance.of(one), _LEAST_LEFT * one.seconds), device))
                for one in steps
            ),
            device.launch_s if device else SLICE_S,
        )
        for key, steps in seen.steps.items()
    }
    groups: dict[str, list[str]] = {}
    for key in kernels:
        groups.setdefault(family(seen.layers[key]), []).append(key)
    families = {name: _family_rate(seen, kernels, keys, device.launch_s if device else 0.0) for name, keys in groups.items()}
    flops = max(seen.layers[key].flops / time.seconds for key, time in kernels.items())
    moved = max(operand_bytes(seen.layers[key]) / time.seconds for key, time in kernels.items())
    return DeviceProfile(
        flops_per_s=max(flops / seen.threads, 1.0),
        memory_bytes_per_s=moved,
        storage_bytes_per_s=1 / max(per_byte, 1e-15),
        copy_bytes_per_s=device.copy_bytes_per_s if device else 0.0,
        load_overhead_s=rates.per_load,
        load_disturbance=disturbance.delay / (1 - disturbance.delay / per_byte) if disturbance.delay else 0.0,
        load_cache_bytes=disturbance.cache,
        load_together=rates.together,
        load_cached=rates.cached,
        load_small_pages=rates.small_pages,
        prepare_bytes_per_s=seen.prepared_nbytes / seen.preparing_s if seen.preparing_s else 0.0,
        step_overhead_s=device.launch_s if device else DeviceProfile.step_overhead_s,
        wake_s=_wake_s(seen),
        threads=seen.threads,
        kernels=MappingProxyType(kernels),
        families=MappingProxyType(families),
        delays=_delays(seen, kernels),
    )


def _in_row(seconds: float, device: DeviceRates | None) -> float:
    """Of a step that took so long while nothing else ran, as one follows the other."""
    return device.launch_s + max(seconds - device.wait_s, _LEAST_OWN * device.launch_s) if device else seconds


def _wake_s(seen: Observations) -> float:
    """Where copies come between, streams wait for each other, and the loader reads ahead of them."""
    if seen.device and seen.device.copy_bytes_per_s:
        return seen.device.event_s
    waits = [*seen.arrivals, *seen.releases]
    return statistics.median(waits) if waits else 0.0


def operand_bytes(layer: Layer) -> int:
    """Bytes of a layer's operands and results."""
    return sum(arg.type.nbytes for arg in layer.args if isinstance(arg, ValueArg | WeightArg))


def _kernel_time(points: Iterable[tuple[float, float]], slice_s: float) -> KernelTime:
    """Seconds = a + b · share; all of it is a + b, and each further slice costs a more, or `slice_s` where that is not seen."""
    by_share: dict[float, list[float]] = {}
    for share, seconds in points:
        by_share.setdefault(share, []).append(seconds)
    means = {share: mean(times) for share, times in by_share.items()}
    if len(means) == 1:
        ((share, seconds),) = means.items()
        return KernelTime(seconds / share, slice_s)
    slope, base = _fit([(share, 1.0) for share in means], list(means.values()))
    # where whole layers were seen, they are right by themselves
    return KernelTime(means.get(1.0, base + slope), base)


@dataclass(frozen=True)
class LoadRates:
    """Rates of loads."""

    per_byte: float  # seconds
    per_load: float  # seconds
    together: float = 1.0  # as plan.Storage.together
    cached: float = 1.0  # as plan.Storage.cached
    small_pages: float = 1.0  # as plan.Storage.small_pages


def storage_rates(loads: Sequence[LoadTime], helped: bool, cache: int = 0) -> LoadRates:
    """Rates such that all loads together take the observed time.

    Where computing that waits helps (`helped`), the factor brings the loads that computing waited for and the others
    into line, with the smallest absolute error of all times; likewise the effect of going round in a `cache` of so
    many bytes, and that of small pages where nobody copies, found where some loads do and others do not.
    """
    nbytes, seconds, waited, small = (
        np.array([getattr(load, name) for load in loads]) for name in ("nbytes", "seconds", "waited", "small")
    )
    inside = Storage(1.0, 0.0, cache=cache, cached=2.0).rates_at(np.array([load.distance for load in loads]))[0] - 1
    best, least = LoadRates(0.0, 0.0), inf
    for together in _HELP.tolist() if helped else [1.0]:
        alone = seconds * (1 + (together - 1) * waited)
        places = [(cached, 1.0) for cached in _CACHED.tolist()] if np.ptp(inside) else [(1.0, 1.0)]
        if not helped and np.ptp(small):
            places = [(1.0, times) for times in _SMALL_PAGES.tolist()]
        for cached, times in places:
            per_byte = (1 + (times - 1) * small) / (1 + (cached - 1) * inside)
            facts = np.stack([nbytes * per_byte, np.ones(len(loads))], axis=1)
            fitted = facts @ (found := _fit(facts, alone))
            scale = float(alone.sum() / fitted.sum()) if fitted.sum() else 1.0
            error = float(np.abs(np.log(np.maximum(fitted * scale, 1e-12) / np.maximum(alone, 1e-12))) @ seconds)
            if error < least:
                best, least = LoadRates(found[0] * scale, found[1] * scale, together, cached, times), error
    return best


def _family_rate(seen: Observations, kernels: dict[str, KernelTime], keys: Sequence[str], launch_s: float) -> FamilyRate:
    facts = [(float(seen.layers[key].flops), float(operand_bytes(seen.layers[key]))) for key in keys]
    return FamilyRate(*_fit(facts, [max(kernels[key].seconds - launch_s, _LEAST_OWN * launch_s) for key in keys]))


def _delays(seen: Observations, kernels: dict[str, KernelTime]) -> DelayModel:
    alpha, beta = _fit([(load.nbytes, load.tensors) for load in seen.loads], [load.seconds for load in seen.loads])
    flops = [(float(seen.layers[key].flops), 0.0) for key in kernels if seen.layers[key].flops]
    seconds = [time.seconds for key, time in kernels.items() if seen.layers[key].flops]
    gamma = _fit(flops, seconds)[0] if flops else 0.0
    # Nothing is done to swap a block out: the remainder is the time until the loader learns of the release.
    eta = statistics.median(seen.releases) if seen.releases else 0.0
    return DelayModel(alpha, beta, gamma, eta)


def _fit(facts: Sequence[tuple[float, float]] | np.ndarray, seconds: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """(p, q), not negative, such that p·x + q·y explains the seconds with the smallest relative squared error.

    Errors are relative to the fit itself, found in a few rounds: relative to measurements, times that
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
