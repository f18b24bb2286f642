"""`build`: the way from a model to an artifact."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx
import tvm

from . import pipeline, plan
from .budget import parse_budget, resolve
from .compiled import Artifact
from .device import DeviceProfile, default_profile
from .errors import BudgetError
from .frontend import load_model
from .kernels import compile_kernels
from .lower import Lowered, lower, operand_bytes
from .program import PAGE, Layer, Load, Program, Rung, Step
from .schedules.tile import VectorUnit
from .target import CompileTarget, resolve_target
from .weights import evaluate

Progress = Callable[[str, int, int], None]  # phase, done, total


def build(
    model: str | Path | onnx.ModelProto | tvm.IRModule,
    target: str | dict | tvm.target.Target = "native",
    budget: int | float | str | None = None,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    params: Mapping[str, object] | Sequence[object] | None = None,
    threads: int | None = None,
    strategy: str = "best",
    device: DeviceProfile | None = None,
    progress: Progress | None = None,
) -> Artifact:
    """Compile a network for a target and a memory budget.

    `model` is a path to an ONNX file, an `onnx.ModelProto`, or a Relax module (its weights as constants, or as
    `params`). `budget` is in bytes, `"64MB"`, `"64MiB"`, a fraction of the fully resident size, `"min"`, or None
    for everything resident; the artifact holds a ladder of budgets besides. `threads` is the number of compute
    threads that plans are made for. `progress(phase, done, total)` is called as the work goes on.

    Raises ModelError, UnsupportedModelError, TargetError or BudgetError.
    """
    report = progress or (lambda phase, done, total: None)
    parsed = parse_budget(budget)
    resolved = resolve_target(target)
    threads = threads or resolved.num_cores

    report("import", 0, 1)
    imported = load_model(model, input_shapes, params)
    report("import", 1, 1)
    lowered = _compile_graph(imported, resolved, report)
    profile = device or default_profile(resolved.vector_width)
    problem = planning_problem(lowered, profile, threads)
    rungs = _plan_ladder(problem, parsed, strategy, report)
    program = _program(lowered, rungs, imported.name, resolved, threads)
    kernels = compile_kernels(lowered.kernels, program, resolved, report)
    return Artifact(program, kernels, tuple(lowered.weights), resolved)


def _compile_graph(imported, target: CompileTarget, report: Progress) -> Lowered:
    unit = VectorUnit(target.vector_width, target.vector_registers)
    report("passes", 0, 4)
    mod = pipeline.run(imported.mod, pipeline.simplify(), "simplify")
    report("passes", 1, 4)
    mod = pipeline.run(mod, pipeline.layers(unit), "layers")
    mod = pipeline.run(mod, pipeline.separate_weights(), "separate_weights")
    report("passes", 2, 4)
    transform = [gv for gv in mod.get_global_vars() if gv.name_hint == "main_transform_params"]
    weights = evaluate(mod[transform[0]], imported.weights) if transform else list(imported.weights)
    report("passes", 3, 4)
    kept = {gv: func for gv, func in mod.functions_items() if gv not in transform}
    with target.tvm_target:
        mod = pipeline.run(tvm.IRModule(kept), pipeline.operators(unit), "operators")
    lowered = lower(mod, weights, target, imported.input_names, imported.output_names)
    report("passes", 4, 4)
    return lowered


def planning_problem(lowered: Lowered, profile: DeviceProfile, threads: int) -> plan.Problem:
    """What the planner is given of a lowered network."""
    layers = tuple(
        plan.Layer(
            layer.name,
            layer.scratch_nbytes,
            plan.Weights(layer.weights.offset, layer.weights.blocks, layer.weights.block_nbytes) if layer.weights else None,
            profile.seconds(layer.flops, operand_bytes(layer), threads),
        )
        for layer in lowered.layers
    )
    tensors = tuple(
        plan.Tensor(value.name, value.nbytes, start, end)
        for value, (start, end) in zip(lowered.values, lowered.lifetimes(), strict=True)
    )
    return plan.Problem(layers, tensors, plan.Storage(profile.storage_bytes_per_s, profile.load_overhead_s))


def _plan_ladder(problem: plan.Problem, budget, strategy: str, report: Progress) -> tuple[Rung, ...]:
    report("plan", 0, 1)
    minimum = plan.minimum_budget(problem)
    resident = max(plan.resident_budget(problem), minimum.nbytes)
    try:
        # More memory than everything takes is of no use: the rung would be the last one again.
        asked = min(resolve(budget, minimum.nbytes, resident), resident)
    except BudgetError as error:
        raise BudgetError(f"{error}; {minimum}") from None
    try:
        plans = plan.ladder(problem, extra=(asked,), strategy=strategy)
    except plan.InfeasibleError as error:
        raise BudgetError(str(error)) from error
    rungs = tuple(_rung(problem, one) for one in plans)
    report("plan", 1, 1)
    return rungs


def _rung(problem: plan.Problem, planned: plan.Plan) -> Rung:
    weights_at = [-1] * len(planned.steps)
    loads = []
    for segment in planned.segments:
        step = planned.steps[segment.step]
        weights = problem.layers[step.layer].weights
        inside = weights.offset + step.first * weights.block_nbytes - segment.source
        weights_at[segment.step] = segment.address + inside
        loads.append(Load(segment.source, segment.nbytes, segment.address, segment.after, segment.pinned))
    steps = tuple(
        Step(step.layer, step.first, step.count, need, weights, scratch)
        for step, need, weights, scratch in zip(
            planned.steps, planned.need, weights_at, planned.scratch_at, strict=True
        )
    )
    seconds = plan.simulate(problem, planned).latency
    return Rung(planned.budget, planned.arena, planned.tensor_at, steps, tuple(loads), seconds)


def _program(lowered: Lowered, rungs, name: str, target: CompileTarget, threads: int) -> Program:
    identity = hashlib.sha256(repr((str(target), lowered.layers)).encode())
    for label, array, _ in lowered.weights:
        identity.update(f"{label}:{zlib.crc32(memoryview(array.reshape(-1)).cast('B'))}".encode())
    prefix = f"fc{identity.hexdigest()[:12]}_"
    layers = tuple(_renamed(layer, prefix) for layer in lowered.layers)
    lowered.kernels = {prefix + symbol: func for symbol, func in lowered.kernels.items()}
    return Program(
        model=name,
        target=str(target),
        features=target.features,
        threads=threads,
        values=tuple(lowered.values),
        inputs=tuple(lowered.inputs),
        outputs=tuple(lowered.outputs),
        layers=layers,
        rungs=rungs,
        weights_nbytes=-(-lowered.weights_nbytes // PAGE) * PAGE,
    )


def _renamed(layer: Layer, prefix: str) -> Layer:
    return replace(layer, kernel=prefix + layer.kernel)
