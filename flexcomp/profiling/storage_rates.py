"""How fast the storage of a folder serves the runtime's loader, found out in less than a second."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flexcomp import runtime_ext
from flexcomp.errors import InputError
from flexcomp.files import beside
from flexcomp.program import PROGRAM_KIND

_NBYTES, _PIECE = 48 << 20, 4 << 20  # of the file, at most, and of one write
_SPARED = 2  # of the free bytes, the file takes one part in so many
_WRITING_S = 0.5  # after which the file is large enough for storage that is so slow
_READING_S = 0.4


@dataclass(frozen=True)
class StorageRates:
    """Rates of the loader alone."""

    bytes_per_s: float  # of large loads, past the page cache where the file system allows that
    latency_s: float  # of a small load that no other is in flight with, besides its bytes
    small_pages_bytes_per_s: float = 0.0  # as bytes_per_s, into memory that is not in huge pages; 0: not known


def measure_storage(folder: Path, clock: Callable[[], float] = time.perf_counter) -> StorageRates:
    """Write a file, let the runtime's loader read it, and remove the file. Raises InputError if that cannot be."""
    read = runtime_ext.function(PROGRAM_KIND + ".measure_storage")
    try:
        left = min(_NBYTES, shutil.disk_usage(folder).free // _SPARED)
        with beside(folder / "probe") as place, open(place / "probe", "wb") as file:
            end = clock() + _WRITING_S
            while left > 0:
                left -= file.write(os.urandom(min(_PIECE, left)))
                file.flush()
                os.fsync(file.fileno())
                if clock() > end:
                    break
            found = json.loads(read(file.name, _READING_S))
    except OSError as error:
        raise cannot_measure(folder, error.strerror or str(error)) from None
    except RuntimeError as error:  # the runtime's
        raise cannot_measure(folder, str(error).strip().splitlines()[-1]) from None
    return StorageRates(found["bytes_per_s"], found["latency_s"], found["small_pages_bytes_per_s"])


def cannot_measure(folder: Path, reason: str | None) -> InputError:
    """The error that says so, and the way out."""
    return InputError(f"cannot measure the storage of {folder}: {reason} (--no-probe, or probe=False, builds without)")
