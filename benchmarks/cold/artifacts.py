"""The files of a network, in folders named after their inputs: its model, inputs, the engines' conversions, our artifacts."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx

import flexcomp
from benchmarks import models
from benchmarks.cold.networks import parameters, raw_nbytes
from benchmarks.peers.measure import ROOT, Workplace
from flexcomp.compiler import probed_profile
from flexcomp.device.profile import DeviceProfile
from flexcomp.device.target import resolve_target

MODELS = ("benchmarks/networks", "benchmarks/models.py", "flexcomp/demo/zoo.py")
COMPILER = ("flexcomp", "passes", "schedules", "runtime_ext")  # folders that artifacts depend on
_LIBRARY, _FACTS = "model.so", "facts.json"
_ENDINGS = (".py", ".cc", ".h", ".c")


def digest(sources: Sequence[str], root: Path, *more: str) -> str:
    """Twelve letters of a hash of the source files in folders of `root`, or files there, and of `more`."""
    return hashlib.sha256("\0".join((_of_files(tuple(sources), root), *more)).encode()).hexdigest()[:12]


@cache
def _of_files(sources: tuple[str, ...], root: Path) -> str:
    found = hashlib.sha256()
    for source in sources:
        place = root / source
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.suffix in _ENDINGS:
                found.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return found.hexdigest()


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


def built(model: Path, threads: int, weights: str | None, folder: Path) -> Built:
    """Build a model for so many threads, with such weights, inside `folder`, unless that has been done. Raises FlexcompError."""
    profile = _profile(folder.parent)
    stem = f"flexcomp-{weights or 'float32'}-{threads}-"
    place = folder / (stem + digest(COMPILER, ROOT, repr(profile)))
    if not (place / _FACTS).exists():
        for outdated in folder.glob(stem + "????????????"):
            shutil.rmtree(outdated)
        place.mkdir(parents=True)
        clock = _Clock()
        artifact = flexcomp.build(str(model), threads=threads, progress=clock, profile=profile, weights=weights)
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


@dataclass(frozen=True)
class Facts:
    """Facts of a network, without loading the model."""

    parameters: int
    raw_nbytes: int  # of its weights in float32
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """A folder inside another, named after the inputs of the network."""

    name: str  # of the network
    folder: Path

    @classmethod
    def of(cls, name: str, folder: Path) -> Place:
        """The place of a network in `folder`, made if missing."""
        place = cls(name, folder.resolve() / f"{name}-{digest(MODELS, ROOT)}")
        if not place._facts.exists():
            for outdated in folder.glob(f"{name}-????????????"):
                shutil.rmtree(outdated)
            place._write()
        return place

    @property
    def facts(self) -> Facts:
        """Of the network."""
        return Facts(**json.loads(self._facts.read_text()))

    @property
    def inputs(self) -> dict[str, Path]:
        """Files that the runner reads, by the names of inputs."""
        return {name: self.folder / f"input{index}.npy" for index, name in enumerate(self.facts.inputs)}

    def workplace(self, threads: int) -> Workplace:
        """The network for the engines."""
        return Workplace(self.folder, threads)

    @property
    def _facts(self) -> Path:
        return self.folder / "facts.json"

    def _write(self) -> None:
        network = models.load(self.name)
        workplace = self.workplace(1)
        self.folder.mkdir(parents=True)
        onnx.save(network.model, workplace.model)
        inputs = network.example(0)
        np.savez(workplace.inputs, **inputs)
        for index, value in enumerate(inputs.values()):
            np.save(self.folder / f"input{index}.npy", value)
        outputs = tuple(output.name for output in network.model.graph.output)
        facts = Facts(parameters(network.model), raw_nbytes(network.model), tuple(inputs), outputs)
        self._facts.write_text(json.dumps(asdict(facts)))
