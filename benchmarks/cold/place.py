"""The files of one network: its model, inputs, artifacts of ours and the engines' conversions."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx

from benchmarks import models
from benchmarks.cold.networks import parameters, raw_nbytes
from benchmarks.cold.sources import ROOT, digest
from benchmarks.peers.measure import Workplace

MODELS = ("benchmarks/networks", "benchmarks/models.py", "flexcomp/demo/zoo.py")


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
