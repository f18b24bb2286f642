"""How fast the storage of a folder reads, found out in about a second and remembered, so that plans suit it without being asked.

What is remembered is a device profile, one file per storage and target in the folder for caches: the next build finds the same
figures, whatever the machine is doing then, and gives the same bytes. Figures are rounded to steps of 15 %.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from flexcomp.cache import cache_root
from flexcomp.device import CompileTarget, DeviceProfile, default_profile, guessed_overhead_s, load_profile
from flexcomp.errors import InputError

STEP = 1.15  # figures are powers of it
MOST_FILES = 64
_NBYTES = 48 << 20  # of the file that is read
_CHUNK, _IN_FLIGHT = 1 << 20, 2  # as the runtime reads
_SMALL, _SMALL_READS = 16 << 10, 64
_ROUNDS = 3  # of which the best counts
_SECONDS = 1.0  # after which reading ends


def probed_profile(folder: Path, target: CompileTarget) -> tuple[DeviceProfile, str]:
    """What is assumed of the target, with the measured storage of `folder`; and a line that says so.

    Raises InputError if nothing can be written and read there.
    """
    try:
        path = _remembered(folder, target)
    except OSError as error:
        raise _cannot(folder, error) from None
    try:
        found, how = load_profile(path), "remembered"
    except InputError:  # none yet, or damaged
        found, how = _profile(target, *measure(folder)), "measured"
        _remember(path, found)
    rates = f"{found.storage_bytes_per_s / 1e6:.0f} MB/s, {found.load_latency_s * 1e6:.0f} us until a read begins"
    return found, f"storage: {rates} ({how}; --device {path})"


def measure(folder: Path, clock: Callable[[], float] = time.perf_counter) -> tuple[float, float]:
    """(bytes per second, seconds of latency) of reads past the page cache, where the file system allows that."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".flexcomp-probe.") as file:
            for _ in range(_NBYTES // _CHUNK):
                file.write(os.urandom(_CHUNK))
            file.flush()
            os.fsync(file.fileno())
            return _rates(_opened(Path(file.name)), clock)
    except OSError as error:
        raise _cannot(folder, error) from None


def _cannot(folder: Path, error: OSError) -> InputError:
    return InputError(f"cannot measure the storage of {folder}: {error.strerror} (--no-probe, or probe=False, builds without)")


def rounded(value: float) -> float:
    """The nearest power of STEP, to three digits."""
    return float(f"{STEP ** round(math.log(value) / math.log(STEP)):.3g}")


def _opened(path: Path) -> int:
    with suppress(OSError):  # not every file system reads directly
        return os.open(path, os.O_RDONLY | os.O_DIRECT)
    return os.open(path, os.O_RDONLY)


def _rates(file: int, clock: Callable[[], float]) -> tuple[float, float]:
    chunks = range(0, _NBYTES, _CHUNK)
    end = clock() + _SECONDS
    try:
        with ThreadPoolExecutor(_IN_FLIGHT) as pool:
            rates: list[float] = []
            while len(rates) < _ROUNDS and (not rates or clock() < end):
                start = clock()
                nbytes = sum(pool.map(lambda part: _read(file, part, _CHUNK), [chunks[i::_IN_FLIGHT] for i in range(_IN_FLIGHT)]))
                rates.append(nbytes / (clock() - start))
        bandwidth = max(rates)  # others may use the storage too
        waits: list[float] = []
        for number in range(_SMALL_READS):
            start = clock()
            _read(file, [number * 7919 * _SMALL % (_NBYTES - _SMALL) // 4096 * 4096], _SMALL)
            waits.append(clock() - start)
            if start > end:
                break
        return bandwidth, max(1e-6, statistics.median(waits) - _SMALL / bandwidth)
    finally:
        os.close(file)


def _read(file: int, offsets: Sequence[int], nbytes: int) -> int:
    with mmap.mmap(-1, nbytes) as place:
        return sum(os.preadv(file, [place], offset) for offset in offsets)


def _profile(target: CompileTarget, bandwidth: float, latency: float) -> DeviceProfile:
    latency = rounded(latency)
    base = default_profile(target.vector_width, target.preset)
    return replace(
        base, storage_bytes_per_s=rounded(bandwidth), load_latency_s=latency, load_overhead_s=guessed_overhead_s(latency)
    )


def _remembered(folder: Path, target: CompileTarget) -> Path:
    """Of this machine, this file system and this target."""
    system = os.statvfs(folder)
    key = (platform.node(), os.stat(folder).st_dev, system.f_fsid, system.f_blocks, str(target))
    return cache_root() / "storage" / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.json"


def _remember(path: Path, profile: DeviceProfile) -> None:
    """Where that cannot be written, the next build measures again."""
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        profile.save(path)
        others = sorted(path.parent.glob("*.json"), key=lambda other: other.stat().st_mtime, reverse=True)
        for other in others[MOST_FILES:]:
            other.unlink()
