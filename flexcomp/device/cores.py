"""Which of a machine's cores compute and which load, as the runtime chooses them (`runtime_ext/src/threads/cores.h`)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass

from flexcomp import runtime_ext
from flexcomp.program import PROGRAM_KIND


@dataclass(frozen=True)
class CoreChoice:
    """Numbers of cores, ascending; None: threads run wherever the system likes."""

    compute: tuple[int, ...] | None
    loader: tuple[int, ...] | None


def choose_cores(
    threads: int, *, asked: bool = False, cpus: Iterable[int] | None = None, sysfs: str | os.PathLike[str] = ""
) -> CoreChoice:
    """The cores for `threads` compute threads; `asked`: not for fewer.

    `cpus` are the candidates, by default all that this thread may use; `sysfs` stands for
    /sys/devices/system/cpu.
    """
    choose = runtime_ext.function(PROGRAM_KIND + ".choose_cores")
    listed = "" if cpus is None else ",".join(map(str, cpus))
    chosen = json.loads(choose(os.fspath(sysfs), listed, threads, asked))
    return CoreChoice(*(None if (c := chosen[key]) is None else tuple(c) for key in ("compute_cpus", "loader_cpus")))


def compute_cores() -> int:
    """How many cores of this machine kernels should run on: its big ones, where cores differ."""
    allowed = len(os.sched_getaffinity(0))
    chosen = choose_cores(allowed).compute
    return allowed if chosen is None else len(chosen)
