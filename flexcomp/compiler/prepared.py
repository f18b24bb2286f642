"""A network that is lowered and ready to be planned, and the way from there to artifacts."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import tvm_ffi
from tvm import tirx

from flexcomp import plan
from flexcomp.device.profile import DeviceProfile
from flexcomp.device.target import CompileTarget
from flexcomp.network.forms import Planning
from flexcomp.network.offers import layer_offers
from flexcomp.network.used import used
from flexcomp.network.variants import Network
from flexcomp.program import choices
from flexcomp.program.prediction import LayerTime, Prediction, to_metadata
from flexcomp.program.program import PAGE, Layer, Port, Program, Rung, Value
from flexcomp.runtime.budget import Budget

from .artifact import Artifact
from .compact import drop_unused
from .machine_code import by_symbol, compile_kernels
from .rungs import plan_rungs, resident_rungs

Progress = Callable[[str, int, int], None]  # phase, done, total


@dataclass(frozen=True)
class Wish:
    """What an artifact is planned for."""

    budget: Budget
    strategy: str = "best"
    storage: plan.Storage | None = None  # None: as the device profile says


@dataclass(frozen=True)
class Prepared:
    """A network in all the forms between which plans choose."""

    name: str
    target: CompileTarget
    threads: int
    kernels: str  # a choice of kernels, by name
    profile: DeviceProfile
    planning: Planning

    def artifacts(
        self,
        wishes: Sequence[Wish],
        report: Progress = lambda phase, done, total: None,
        *,
        yardstick: bool = False,
    ) -> tuple[Artifact, ...]:
        """One for every wish; all of them share their kernels and their weights, which are those that any of them uses.

        With `yardstick` there is one more, whose rungs are all sets of kernels that the others use, everything resident.
        Raises BudgetError if a budget is too small.
        """
        ladders, storages = [], []
        for wish in wishes:
            storages.append(wish.storage or self.profile.storage)
            planning = self.planning.on(storages[-1])
            ladders.append(
                plan_rungs(planning, wish.budget, wish.strategy, lambda done, total: report("plan", done, total))
            )
        if yardstick:
            ladders.append(resident_rungs(self.planning, [rung for rungs in ladders for rung in rungs]))
            storages.append(self.profile.storage)
        network = self.planning.network
        layers, values, ports, all_rungs = used(network, [rung for rungs in ladders for rung in rungs])
        kernels, prefix = self._functions(layers)
        layers = tuple(replace(layer, kernel=prefix + layer.kernel) for layer in layers)
        functions = by_symbol(kernels, layers)
        offers = layer_offers(network, self.profile, self.threads)
        record = choices.record(self.kernels, [offers[layer.name] for layer in layers])
        costs = self.planning.costs
        seconds = {
            layer.name: LayerTime(time, slice_s)
            for layer, time, slice_s in zip(network.layers, costs.seconds, costs.slice_s, strict=True)
        }
        times = tuple(seconds[layer.name] for layer in layers)
        module = compile_kernels(functions, self.target, report)
        artifacts = []
        edges = accumulate((len(rungs) for rungs in ladders), initial=0)
        for (start, stop), storage in zip(pairwise(edges), storages, strict=True):
            program = self._program(layers, values, ports, all_rungs[start:stop])
            program.metadata.update(record)
            program.metadata.update(to_metadata(Prediction(times, storage)))
            program, weights = drop_unused(program, network.weights)
            artifacts.append(Artifact(program, module, weights, self.target))
        return tuple(artifacts)

    def _functions(self, layers: Sequence[Layer]) -> tuple[Mapping[str, tirx.PrimFunc], str]:
        """The kernels of these layers by their final names, and what was put before their names."""
        network = self.planning.network
        kernels = {layer.kernel: network.kernel(layer.kernel) for layer in layers}
        identity = hashlib.sha256(repr((str(self.target), layers)).encode())
        for label, array, _ in network.weights:
            identity.update(f"{label}:{zlib.crc32(array.reshape(-1).view('u1'))}".encode())
        # Symbols name the code: libraries of one model from two versions of flexcomp may meet in a process.
        for kernel in sorted(kernels):
            identity.update(f"{kernel}:{tvm_ffi.structural_hash(kernels[kernel])}".encode())
        prefix = f"fc{identity.hexdigest()[:12]}_"
        return {prefix + kernel: code for kernel, code in kernels.items()}, prefix

    def _program(
        self, layers: tuple[Layer, ...], values: tuple[Value, ...], ports: tuple[Port, ...], rungs: tuple[Rung, ...]
    ) -> Program:
        network: Network = self.planning.network
        return Program(
            model=self.name,
            target=str(self.target),
            features=self.target.features,
            threads=self.threads,
            values=values,
            inputs=ports[: len(network.base.inputs)],
            outputs=ports[len(network.base.inputs) :],
            layers=layers,
            rungs=rungs,
            weights_nbytes=-(-network.weights_nbytes // PAGE) * PAGE,
        )
