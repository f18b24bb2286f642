"""Plans suit the machine by default: a build measures storage and kernels for a second, and remembers the figures.

The record is a device profile, one file per storage and target in the folder for caches: the next build finds the same
figures, at any load of the machine, and gives the same bytes. Figures are rounded to steps of 5 %. Those of a machine whose
load changes them while they are measured are not remembered.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from flexcomp.arguments import checked_path
from flexcomp.cache import trusted_folder
from flexcomp.device import (
    PART_OF_LAST_LEVEL,
    CompileTarget,
    DeviceProfile,
    cache_sizes,
    load_profile,
    rates_profile,
    resolve_target,
)
from flexcomp.errors import InputError
from flexcomp.profiling import StorageRates, cannot_measure, measure_storage

from .kernel_rates import VARYING, measure_kernels

STEP = 1.05  # figures are powers of this, by which least times of two probes hardly differ: builds repeat
MOST_FILES = 64
# What is measured: other measurements are not remembered as that.
_WHAT = "loader by pages, kernels of five kinds that ask slow memory ahead, preparing, memory and caches of one thread and all"
_log = logging.getLogger(__name__)
_VARIABLE = "FLEXCOMP_PROBE"
_NO = {"0", "false", "f", "no", "n", "off"}  # as on the command line


def usually() -> bool:
    """Whether anything is measured where nobody says: FLEXCOMP_PROBE=0 turns that off."""
    return os.environ.get(_VARIABLE, "").lower() not in _NO


def probed(target: object, probe: bool | str | Path | None, say: Callable[[str], None]) -> DeviceProfile | None:
    """The profile of this machine with the storage of a folder, by default the current one; None if nothing is to be measured.

    `probe` is as in `build`. Raises InputError if storage that was asked for cannot be measured.
    """
    if probe is None:
        if target != "native" or not usually():
            return None
    elif probe is False:
        return None
    folder = Path() if probe is None or probe is True else checked_path(probe, "probe")
    if target != "native":
        raise InputError('probe measures the storage of this machine: it is for target="native"')
    try:
        profile, note = probed_profile(folder, resolve_target(target))
    except InputError as error:
        if probe is not None:
            raise
        _log.warning("%s; planned for guessed rates", error)
        return None
    say(note)
    return profile


def probed_profile(folder: Path, target: CompileTarget) -> tuple[DeviceProfile, str]:
    """The profile of this machine, with the storage of `folder` and a few kernels measured; and a line that says so.

    Raises InputError if nothing can be written and read there.
    """
    try:
        path = _remembered(folder, target)
    except OSError as error:
        raise cannot_measure(folder, error.strerror) from None
    try:
        found, how = load_profile(path), f"remembered; --profile {path}"
    except InputError:  # none yet, or damaged
        found, varying = _measured(folder, target)
        how = f"measured; --profile {path}"
        if varying <= VARYING:
            _remember(path, found)
        else:
            how = "measured on a busy machine, not remembered"
            _log.warning(
                "other work on this machine: times of kernels varied by more than %g times while they were measured, so their "
                "speeds are not remembered, and the next build measures them again", VARYING,
            )  # fmt: skip
    storage = f"{found.storage_bytes_per_s / 1e6:.0f} MB/s, {found.load_latency_s * 1e6:.0f} us until a read begins"
    kernels = f"{found.flops_per_s / 1e9:.0f} GFLOP/s, {found.memory_bytes_per_s / 1e9:.0f} GB/s from memory"
    if found.last_level_bytes_per_s:
        kernels += f", {found.last_level_bytes_per_s / 1e9:.0f} from caches"
    if found.all_memory_bytes_per_s:
        kernels += f"; all: {found.all_memory_bytes_per_s / 1e9:.0f} and {found.all_last_level_bytes_per_s / 1e9:.0f}"
    return found, f"storage: {storage}; a core: {kernels} ({how})"


def rounded(value: float) -> float:
    """The nearest power of STEP, to three digits."""
    return float(f"{STEP ** round(math.log(value) / math.log(STEP)):.3g}")


def _measured(folder: Path, target: CompileTarget) -> tuple[DeviceProfile, float]:
    """And how much the times of kernels varied."""
    storage, kernels, caches = measure_storage(folder), measure_kernels(target), cache_sizes()
    profile = rates_profile(
        flops_per_s=rounded(kernels.flops_per_s),
        memory_bytes_per_s=rounded(kernels.memory_bytes_per_s),
        storage_bytes_per_s=rounded(storage.bytes_per_s),
        load_latency_s=rounded(max(storage.latency_s, 1e-6)),
    )
    known = ("last_level_bytes_per_s", "all_memory_bytes_per_s", "all_last_level_bytes_per_s")
    profile = replace(
        profile,
        **{name: rounded(rate) if (rate := getattr(kernels, name)) else 0.0 for name in known},
        load_small_pages=_times_slower(storage),
        prepare_bytes_per_s=rounded(kernels.prepare_bytes_per_s) if kernels.prepare_bytes_per_s else 0.0,
        second_level_bytes=float(caches.get(2, 0)),
        last_level_bytes=PART_OF_LAST_LEVEL * max(caches.values(), default=0),
        slowness=MappingProxyType({name: rounded(times) for name, times in kernels.slowness.items()}),
    )
    return profile, kernels.varying


def _times_slower(storage: StorageRates) -> float:
    """As `DeviceProfile.load_small_pages`."""
    known = storage.small_pages_bytes_per_s
    return max(1.0, rounded(storage.bytes_per_s / known)) if known else 1.0


def _remembered(folder: Path, target: CompileTarget) -> Path:
    """Of this machine, this file system and this target."""
    system = os.statvfs(folder)
    key = (_WHAT, STEP, platform.node(), os.stat(folder).st_dev, system.f_fsid, system.f_blocks, str(target))
    return trusted_folder("storage") / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.json"


def _remember(path: Path, profile: DeviceProfile) -> None:
    """Where that cannot be written, the next build measures again."""
    with suppress(OSError):
        profile.save(path)
        others = sorted(path.parent.glob("*.json"), key=lambda other: other.stat().st_mtime, reverse=True)
        for other in others[MOST_FILES:]:
            other.unlink()
