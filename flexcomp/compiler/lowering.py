"""From an imported network to layers with kernels, for the target or, to try something, for this machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import tvm
from tvm import tirx

from flexcomp.cache import KernelCache
from flexcomp.deferred import Array, Deferred
from flexcomp.device import CompileTarget, guessed_profile, resolve_target
from flexcomp.errors import InputError
from flexcomp.frontend import Imported
from flexcomp.network import Lowered, Network, PaddedRows, ValidRows, kernel_sets, lower, merge
from flexcomp.passes.choose_kernels import Alike, Measured, chosen_kernels
from flexcomp.passes.integers import counts_in_floats
from flexcomp.program import Layer
from flexcomp.program import Weights as StoredWeights
from flexcomp.runtime import Padding
from flexcomp.schedules.registry import Machine

from . import pipeline
from .artifact import Artifact
from .code import Code
from .kernel_compiler import KernelCompiler
from .known import DEFAULT_STORE, KERNELS
from .prepared import Prepared, Progress
from .state_types import StateTypes
from .weight_types import WeightTypes
from .weights import evaluate, evaluate_later

Begin = Callable[[Mapping[str, tirx.PrimFunc], Sequence[Layer]], None]


def fuse_layers(
    imported: Imported,
    target: CompileTarget,
    measured: Measured | None,
    report: Progress,
    types: WeightTypes,
    rounded_for: CompileTarget | None = None,
    states: StateTypes | None = None,
    padded: bool = False,
    served: Sequence[tuple[int, int]] = (),
) -> tvm.IRModule:
    """Layers without kernels; with `rounded_for` in float32, rounded where that target would have 16 bits.

    Where inputs are `padded`, kernels may be told how many rows are valid; `served` as for `lowered_here`.
    """
    report("passes", 0, 1)
    simple = pipeline.run(imported.mod, pipeline.simplify(), "simplify")
    on_weights = partial(evaluate, weights=imported.weights)
    narrowed = (states.slots, states.refused) if states is not None else ()
    unit = replace(target.machine, padded=tuple(served)) if served else target.machine
    passes = pipeline.transformers(unit, on_weights, types.of, measured, *narrowed, padded=padded)
    simple = pipeline.run(simple, passes, "transformers")
    if states is not None:
        states.require_granted()
    half = (rounded_for or target).half
    if half and counts_in_floats(simple["main"]):
        raise InputError(f"arithmetic={half!r} is not for quantised networks, whose sums need more bits: leave arithmetic out")
    fused = pipeline.run(simple, pipeline.fuse(target.machine, types.of, rounded_for and rounded_for.machine), "fuse")
    types.require_granted()
    return fused


def lower_layers(
    imported: Imported,
    fused: tvm.IRModule,
    target: CompileTarget,
    unit: Machine,
    kernels: str,
    measured: Measured | None,
    report: Progress,
    store: str,
    expensive: Callable[[StoredWeights], bool],
    begin: Begin | None = None,
    state: Mapping[str, str] | None = None,
    alike: Alike | None = None,
    fetch: bool = True,
    padded: PaddedRows | None = None,
    made: dict[bytes, Deferred] | None = None,
) -> Network:
    """Layers with all their kernels; rows that are looked up may be fetched, if `fetch`.

    `made`: packed weights of other shapes of the network, as for `evaluate_later`.

    Kernels are told how many rows are valid where inputs are `padded`. `begin` is told of the smallest and of the fastest
    kernels, as soon as there are layers that call them; `expensive` is as for `merge`.
    """
    preferences = KERNELS[kernels]
    if target.gpu:  # families offer two kernels for a layer at most
        preferences = tuple(one for one in preferences if one != "balanced")
    total = 1 + 2 * len(preferences)
    valid = ValidRows(padded) if padded else None
    pack = pipeline.pack(unit, padded is not None)  # one for all choices: equal kernels are built once
    report("passes", 1, total)

    def lowerings() -> Iterator[Lowered]:
        """None that has nothing new."""
        seen: set[tuple[str, str]] = set()
        for done, preference in enumerate(preferences):
            stored = alike if not done else None  # other kernels' weights are prepared from these: every shape has its fastest
            mod = pipeline.run(fused, pipeline.choose(unit, preference, measured, stored), "choose")
            chosen = {(gv.name_hint, kernel) for gv, kernel in chosen_kernels(mod).items()}
            if not done or chosen - seen:
                seen |= chosen
                mod = pipeline.run(mod, pack, "pack")
                mod, weights = _separate_weights(mod, imported.weights, target, unit, made)
                report("passes", 2 + 2 * done, total)
                ports = imported.input_names, imported.output_names, imported.output_nodes
                lowered = lower(mod, weights, target, *ports, state, valid)
                if begin is not None and not done:
                    begin(lowered.kernels, lowered.layers)
                yield lowered
            report("passes", 3 + 2 * done, total)

    # A fixed order takes a kernel because of its family, fast or not.
    if kernels == "flexnn":
        return merge(lowerings(), "prepared", expensive, worthwhile=math.inf)
    # A GPU reads no files: a table lies in its memory, or the slices that a step needs.
    network = merge(lowerings(), store, expensive, width=target.vector_unit.width if fetch and not target.gpu else None)
    if begin is not None:  # while other shapes are lowered; everything resident takes the last alternatives
        fastest = list({other.base: other.layer for other in network.alternatives}.values())
        begin(network.kernels_of(fastest), fastest)
    return network


def _separate_weights(
    mod: tvm.IRModule, weights: Sequence[Array], target: CompileTarget, unit: Machine, made: dict[bytes, Deferred] | None
) -> tuple[tvm.IRModule, list[Array]]:
    """A module of kernel calls, of one with packed weights, and these."""
    mod = pipeline.run(mod, pipeline.separate_weights(), "separate_weights")
    transform = [gv for gv in mod.get_global_vars() if gv.name_hint == "main_transform_params"]
    transformed = evaluate_later(mod[transform[0]], weights, mod, made) if transform else list(weights)
    kept = {gv: func for gv, func in mod.functions_items() if gv not in transform}
    with target.tvm_target:
        return pipeline.run(tvm.IRModule(kept), pipeline.operators(unit), "operators"), transformed


def lowered_here(
    imported: Imported, types: WeightTypes, *, rounded_for: CompileTarget | None = None, padded: PaddedRows | None = None,
    threads: int | None = None, served: Sequence[tuple[int, int]] = (),
) -> Network:  # fmt: skip
    """A network for this machine, with one kernel a layer; `rounded_for` as for `fuse_layers`, `padded` for `lower_layers`.

    With the `threads` of a library (None: a thread a core), and the rows that its shapes have and are `served` for, the kernels
    are the smallest of the library, where that is for this machine; those of lengths between are of the same kinds.
    """
    target = resolve_target("native")
    unit = replace(target.machine, threads=_threads(threads, target), padded=tuple(served))
    late = guessed_profile(target).prepared_late
    fused = fuse_layers(imported, target, None, _quiet, types, rounded_for, padded=padded is not None, served=served)
    return lower_layers(imported, fused, target, unit, "smallest", None, _quiet, DEFAULT_STORE, late, fetch=False, padded=padded)


def compiled_here(
    name: str, cache: bool, network: Network, padding: Padding | None = None, threads: int | None = None
) -> Artifact:
    """An artifact for this machine with one plan, to see the network's outputs; its sessions pad, if `padding` says how.

    `threads` as for `lowered_here`.
    """
    target, kept = resolve_target("native"), KernelCache() if cache else None
    threads, profile = _threads(threads, target), guessed_profile(target)
    planned = kernel_sets.planning(network, profile, threads)
    code, compiler = Code(target, kept), KernelCompiler(kept)
    return Prepared(name, code, threads, "smallest", profile, planned, compiler, padding=padding).resident()


def _threads(asked: int | None, target: CompileTarget) -> int:
    return target.num_cores if asked is None else min(asked, target.num_cores)


def _quiet(phase: str, done: int, total: int) -> None:
    pass
