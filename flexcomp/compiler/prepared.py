"""A network that is lowered and ready to be planned, and the way from there to artifacts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from flexcomp import plan
from flexcomp.device import CompileTarget, DeviceProfile
from flexcomp.network import Network, Planning, layer_candidates, used
from flexcomp.printable import printable
from flexcomp.program import (
    CODE_NBYTES,
    CUDA,
    DEFAULT,
    EXTENTS,
    HOST,
    PAGE,
    Layer,
    LayerTime,
    Port,
    Prediction,
    Prepare,
    Program,
    Rung,
    Value,
    choices,
    nodes,
    to_metadata,
)
from flexcomp.runtime import MINIMUM, Padding, note_minimum

from .artifact import Artifact
from .auto_arithmetic import ChosenArithmetic
from .auto_weights import Chosen
from .code import Code, Kernel
from .compact import drop_unused
from .device_code import code_nbytes
from .kernel_compiler import KernelCompiler
from .options import Request
from .rungs import plan_rungs, resident_rungs

Progress = Callable[[str, int, int], None]  # phase, done, total


@dataclass(frozen=True)
class _Planned:
    """Of every artifact the rungs, the budget of the usual one, and the storage they are planned for."""

    ladders: list[tuple[Rung, ...]] = field(default_factory=list)
    usual: list[int] = field(default_factory=list)
    storages: list[plan.Storage] = field(default_factory=list)

    def add(self, rungs: tuple[Rung, ...], storage: plan.Storage, usual: int | None = None) -> None:
        self.ladders.append(rungs)
        self.usual.append(usual or rungs[-1].budget)
        self.storages.append(storage)


@dataclass(frozen=True)
class Prepared:
    """A network in all the forms between which plans choose."""

    name: str
    code: Code
    threads: int
    kernels: str  # a choice of kernels, by name
    profile: DeviceProfile
    planning: Planning
    compiler: KernelCompiler
    chosen: tuple[Chosen | ChosenArithmetic, ...] = ()  # how types were chosen, by their errors
    extents: Mapping[str, int] = field(default_factory=dict)  # of its shape, by name
    padding: Padding | None = None  # of a library whose first shape this is

    @property
    def target(self) -> CompileTarget:
        """What it is compiled for."""
        return self.code.target

    def artifacts(
        self,
        requests: Sequence[Request],
        report: Progress = lambda phase, done, total: None,
        *,
        yardstick: bool = False,
    ) -> tuple[Artifact, ...]:
        """One for every request; all of them share their kernels and their weights, which are those that any of them uses.

        With `yardstick` there is one more, whose rungs are all sets of kernels that the others use, everything resident.
        Raises BudgetError if a budget is too small.
        """
        programs, objects = self.programs(requests, report, yardstick=yardstick)
        return tuple(artifact_of([program], objects, self) for program in programs)

    def resident(self) -> Artifact:
        """One whose only plan has everything resident and the smallest kernels: to try outputs, in the shortest time."""
        planned = _Planned()
        planned.add(resident_rungs(self.planning, [self.planning.whole[0].layers]), self.planning.costs.storage)
        with self.compiler as compiler:
            programs, objects = self._programs(planned, compiler, lambda phase, done, total: None)
        return artifact_of(programs, objects, self)

    def programs(
        self, requests: Sequence[Request], report: Progress, *, yardstick: bool = False, thorough: bool = True,
        usual_from: int = 0,
    ) -> tuple[list[Program], dict[str, bytes]]:  # fmt: skip
        """As `artifacts`: programs on all weights of the network, and the object files of their kernels.

        `thorough` and `usual_from` as for `plan.ladder_of`.
        """
        with self.compiler as compiler:
            compiler.begin(self._code(self.planning.network.base.layers)[1], self.target)  # every ladder needs most of them
            ladders = self._ladders(requests, report, yardstick, thorough, usual_from)
            return self._programs(ladders, compiler, report)

    def _programs(
        self, planned: _Planned, compiler: KernelCompiler, report: Progress
    ) -> tuple[list[Program], dict[str, bytes]]:
        network = self.planning.network
        ladders = planned.ladders
        layers, values, ports, states, all_rungs = used(network, [rung for rungs in ladders for rung in rungs])
        layers, code = self._code(layers)
        objects = compiler.finish(code, self.target, lambda done, total: report("compile", done, total))
        candidates = layer_candidates(network, self.profile, self.threads)
        origins = network.nodes
        record = choices.record(self.kernels, [candidates[layer.name] for layer in layers])
        record |= nodes.record([origins.get(layer.name) for layer in layers])
        for one in self.chosen:
            record |= one.record(network, layers).metadata()
        costs = self.planning.costs
        seconds = {
            layer.name: LayerTime(time, slice_s)
            for layer, time, slice_s in zip(network.layers, costs.seconds, costs.slice_s, strict=True)
        }
        times = tuple(seconds[layer.name] for layer in layers)
        least = plan.minimum_budget(self.planning.forms[0].problem)
        minimum = note_minimum(network.titled(least.layer), least.needs)  # for refusals by the library
        programs = []
        edges = accumulate((len(rungs) for rungs in ladders), initial=0)
        for (start, stop), default, storage in zip(pairwise(edges), planned.usual, planned.storages, strict=True):
            program = replace(self._program(layers, values, ports, all_rungs[start:stop]), states=states)
            program.metadata.update(record)
            program.metadata[MINIMUM] = minimum
            program.metadata[DEFAULT] = str(default)
            prepares = any(isinstance(one, Prepare) for rung in program.rungs for one in rung.tapes.operations)
            program.metadata.update(to_metadata(Prediction(times, storage, costs.prepare_s if prepares else 0.0)))
            if self.extents:
                program.metadata[EXTENTS] = json.dumps(dict(self.extents))
            if self.padding is not None:
                program.metadata.update(self.padding.to_metadata())
            programs.append(program)
        return programs, objects

    @property
    def least(self) -> int:
        """The smallest budget that can be planned for, in bytes."""
        return plan.rounded_up(plan.minimum_budget(self.planning.forms[0].problem).nbytes, self.target.memory_unit)

    def _ladders(
        self, requests: Sequence[Request], report: Progress, yardstick: bool, thorough: bool, usual_from: int
    ) -> _Planned:
        planned = _Planned()
        for request in requests:
            planning = self.planning.on(request.storage or self.profile.storage)
            rungs, default = plan_rungs(
                planning, request.budget, request.strategy, lambda done, total: report("plan", done, total),
                self.target.memory_unit, thorough, usual_from=usual_from,
            )  # fmt: skip
            planned.add(rungs, planning.costs.storage, default)
        if yardstick:
            orders = [rung.order for rungs in planned.ladders for rung in rungs]
            planned.add(resident_rungs(self.planning, orders), self.planning.costs.storage)
        return planned

    def _code(self, layers: Sequence[Layer]) -> tuple[tuple[Layer, ...], dict[str, Kernel]]:
        """The layers with the names that their kernels have in a library, and these kernels by their symbols."""
        return self.code.of(self.planning.network.kernels_of(layers), layers)

    def _program(
        self, layers: tuple[Layer, ...], values: tuple[Value, ...], ports: tuple[Port, ...], rungs: tuple[Rung, ...]
    ) -> Program:
        network: Network = self.planning.network
        return Program(
            model=printable(self.name),
            target=str(self.target),
            features=() if self.target.gpu else self.target.features,
            threads=self.threads,
            values=values,
            inputs=ports[: len(network.base.inputs)],
            outputs=ports[len(network.base.inputs) :],
            layers=layers,
            rungs=rungs,
            weights_nbytes=-(-network.weights_nbytes // PAGE) * PAGE,
            space=CUDA if self.target.gpu else HOST,
        )


def artifact_of(programs: Sequence[Program], objects: dict[str, bytes], of: Prepared) -> Artifact:
    """An artifact of programs for one network, each in another shape, on the weights that any of them uses."""
    if of.target.gpu:
        for one in programs:
            one.metadata[CODE_NBYTES] = str(sum(map(code_nbytes, objects.values())))
    (first, *others), weights = drop_unused(programs, of.planning.network.weights)
    return Artifact(first, objects, weights, of.target, tuple(others))


def artifact_of_shapes(prepared: Sequence[Prepared], request: Request, report: Progress) -> Artifact:
    """The artifact of a network in several shapes, each of which has plans of its own. Raises BudgetError as `artifacts`."""
    programs, objects = [], {}
    usual_from = max(one.least for one in prepared)  # of a session, whose budget is enough for every shape
    for one in prepared:
        effort = {"thorough": not programs, "usual_from": usual_from}  # or each costs as much as the largest
        (program,), of = one.programs([request], report, **effort)
        programs.append(program)
        objects |= of
    return artifact_of(programs, objects, prepared[0])
