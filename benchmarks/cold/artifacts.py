"""Artifacts of a network, in folders named after their inputs: a later run finds them."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import flexcomp
from benchmarks.cold.sources import ROOT, digest
from flexcomp.compiler import probed_profile
from flexcomp.compiler.known import DEFAULT_STORE
from flexcomp.device.profile import DeviceProfile
from flexcomp.device.target import resolve_target

COMPILER = ("flexcomp", "passes", "schedules", "runtime_ext")  # folders that artifacts depend on
_LIBRARY, _FACTS = "model.so", "facts.json"


@dataclass(frozen=True)
class Recipe:
    """Options of a build."""

    store: str = DEFAULT_STORE
    kernels: str = "auto"
    strategy: str = "best"
    weights: str | None = None

    def __str__(self) -> str:
        return "-".join(filter(None, asdict(self).values()))


@dataclass(frozen=True)
class Built:
    """An artifact on a disk."""

    library: Path
    build_s: float  # with kernels from the cache
    plan_s: float  # of that, until all plans were made; kernels are compiled meanwhile
    library_nbytes: int
    weights_nbytes: int

    @property
    def files(self) -> tuple[Path, Path]:
        """The files that the page cache shall forget."""
        return self.library, self.library.with_suffix(".weights")


def built(model: Path, threads: int, recipe: Recipe, folder: Path) -> Built:
    """Build a model for so many threads inside `folder`, unless that has been done. Raises FlexcompError."""
    profile = _profile(folder.parent)
    stem = f"flexcomp-{recipe}-{threads}-"
    place = folder / (stem + digest(COMPILER, ROOT, repr(profile)))
    if not (place / _FACTS).exists():
        for outdated in folder.glob(stem + "????????????"):
            shutil.rmtree(outdated)
        place.mkdir(parents=True)
        clock = _Clock()
        artifact = flexcomp.build(str(model), threads=threads, progress=clock, profile=profile, **asdict(recipe))
        artifact.export_library(place / _LIBRARY)
        facts = {"build_s": time.perf_counter() - clock.start, "plan_s": clock.taken("plan")}
        (place / _FACTS).write_text(json.dumps(facts))
    library = place / _LIBRARY
    sizes = (path.stat().st_size for path in (library, library.with_suffix(".weights")))
    return Built(library, *json.loads((place / _FACTS).read_text()).values(), *sizes)


class _Clock:
    """Notes how long the phases of a build take."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self._phases: list[tuple[str, float]] = []  # and when each was first heard of after another

    def __call__(self, phase: str, done: int, total: int) -> None:
        if not self._phases or self._phases[-1][0] != phase:
            self._phases.append((phase, time.perf_counter()))

    def taken(self, phase: str) -> float:
        """Seconds from when a phase began until the next one did."""
        ends = [start for _, start in self._phases[1:]] + [time.perf_counter()]
        return sum(end - start for (name, start), end in zip(self._phases, ends, strict=True) if name == phase)


@cache
def _profile(folder: Path) -> DeviceProfile:
    """Of this machine and the disk of a folder, as in builds of users."""
    return probed_profile(folder, resolve_target("native"))[0]
