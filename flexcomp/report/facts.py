"""The parts of a compiled network, as plain data for `inspect` and other readers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from flexcomp.program import (
    CODE_NBYTES,
    CUDA,
    PINNED_NBYTES,
    Layer,
    Port,
    Prediction,
    Program,
    Rung,
    arithmetic_errors,
    choices,
    from_program,
    nodes,
    weight_errors,
)
from flexcomp.report.replanned import bound_s
from flexcomp.report.smallest import smallest_facts
from flexcomp.runtime import MINIMUM, resolve
from flexcomp.schedules.cuda import ARCHITECTURES
from flexcomp.units import enough


def describe(program: Program) -> dict:
    """The facts that `flexcomp inspect --json` prints; sizes in bytes, times in milliseconds."""
    recorded, errors, assumed = choices.read(program), weight_errors.read(program), from_program(program)
    arithmetic = arithmetic_errors.read(program)
    measured = arithmetic or errors  # the former are errors of all that has fewer bits
    return {
        "model": program.model,
        "target": program.target,
        "threads": program.threads,
        "inputs": [_port(port) for port in program.inputs],
        "outputs": [_port(port) for port in program.outputs],
        "states": [
            {"name": state.input, "output": state.output, "shape": list(state.type.shape), "dtype": state.type.dtype}
            for state in program.states
        ],
        "state_bytes": program.state_nbytes,  # of every arena
        # Host memory outside every budget: weights are copied through it to a GPU with memory of its own.
        "pinned_host_bytes": _pinned_host_nbytes(program),
        # And in the GPU's: machine code of all kernels, which the driver keeps there; null on CPUs.
        "code_bytes": int(program.metadata[CODE_NBYTES]) if CODE_NBYTES in program.metadata else None,
        "min_budget_bytes": program.rungs[0].budget,
        "default_budget_bytes": program.default_budget,
        "resident_bytes": program.rungs[-1].budget,
        "weights_bytes": program.weights_nbytes,
        "second_forms_bytes": choices.second_forms_nbytes(program),  # of these
        "error": measured.error if measured else None,  # of the outputs, by narrow weights or arithmetic; null if not measured
        "max_error": measured.max_error if measured else None,  # as requested
        "ladder": [_rung(program, rung, assumed) for rung in program.rungs],
        "smallest": smallest_facts(program),  # where the smallest budget comes from
        "kernels": recorded.by if recorded else None,
        "layers": _layers(program, recorded, errors, arithmetic),
    }


def summary(program: Program) -> str:
    """Layers, kernels, slices and budgets as text."""
    from flexcomp.report.tables import as_text, ladder_table, layer_table

    facts = describe(program)
    return "\n".join([as_text(layer_table(facts), ladder_table(facts)), *notes(facts)])


def notes(facts: dict) -> list[str]:
    """Lines on bytes that tables of the facts of a network do not show: of the file, and of memory that no budget counts."""
    lines, beside = [], []
    if facts["second_forms_bytes"]:
        every, second = enough(facts["weights_bytes"]), enough(facts["second_forms_bytes"])
        lines.append(f"{second} of the {every} of weights are second forms, for kernels whose weights take long to prepare")
    if facts["code_bytes"]:
        beside.append(f"it keeps {enough(facts['code_bytes'])} of machine code")
    if facts["pinned_host_bytes"]:
        beside.append(f"the host pins {enough(facts['pinned_host_bytes'])} for copies")
    return lines + ([f"budgets are the GPU's memory; beside them {', and '.join(beside)}"] if beside else [])


def _pinned_host_nbytes(program: Program) -> int:
    if program.space != CUDA or not program.weights_nbytes:
        return 0
    shares = any(f"-arch={gpu.name} " in f"{program.target} " and gpu.integrated for gpu in ARCHITECTURES.values())
    return 0 if shares else PINNED_NBYTES


def _port(port: Port) -> dict:
    return {"name": port.name, "shape": list(port.type.shape), "dtype": port.type.dtype}


def _arithmetic_error(error: float | None) -> float | str | None:
    return "range" if error is not None and math.isinf(error) else error


def _rung(program: Program, rung: Rung, assumed: Prediction | None) -> dict:
    return {
        "budget_bytes": rung.budget,
        "arena_bytes": rung.arena,
        "working_bytes": rung.working,
        "pinned_bytes": program.pinned_nbytes(rung),
        "streamed_bytes": program.streamed_nbytes(rung),
        "predicted_ms": rung.predicted_ms,
        # No plan of these kernels in this budget is faster; null in libraries that do not hold assumed times.
        "bound_ms": bound_s(program, rung, assumed) * 1e3 if assumed else None,
        "steps": len(rung.steps),
    }


def _layers(
    program: Program,
    recorded: choices.Choices | None,
    errors: weight_errors.WeightErrors | None,
    arithmetic: arithmetic_errors.ArithmeticErrors | None,
) -> list[dict]:
    slices = [[0] * len(program.layers) for _ in program.rungs]
    for counts, rung in zip(slices, program.rungs, strict=True):
        for step in rung.steps:
            counts[step.layer] += 1
    candidates = recorded.candidates if recorded else [()] * len(program.layers)
    origin = nodes.read(program)
    why = choices.reasons(program, recorded) if recorded else [[None] * len(program.rungs)] * len(program.layers)
    return [
        {
            "name": layer.name,
            "band_of": layer.band_of,  # the layer whose rows it computes in part; null if all
            "node": origin[index],  # of the ONNX model; null where none is known
            "op": layer.op,
            "kernel": layer.kernel,
            "implementation": layer.implementation,
            "description": layer.description,
            "flops": layer.flops,
            "weights_bytes": layer.weights.nbytes if layer.weights else 0,
            "weights_dtype": weight_errors.kept_by(layer),  # null without weights
            "weights_errors": errors.layers[index] if errors else None,  # of the outputs, by the type of these weights alone
            "arithmetic": arithmetic_errors.computed_in(layer),  # null without weights
            # Of the outputs, by fewer bits in this layer alone: null if not measured, "range" if values are beyond float16's.
            "arithmetic_error": _arithmetic_error(arithmetic.layers[index] if arithmetic else None),
            "blocks": layer.weights.blocks if layer.weights else 0,
            "scratch_bytes": layer.scratch_nbytes,
            "candidates": _candidates(candidates[index], program, layer, recorded),  # fastest first
            "why": why[index],  # one reason per rung; null where another kernel is used, or there was no choice
            "slices": [counts[index] for counts in slices],  # one number per rung; 0 where another kernel is used
            # Whether the first inference computes it instead of another, by rung: from weights as they are stored.
            "first": [any(step.layer == index for _, step in rung.tapes.first_steps) for rung in program.rungs],
        }
        for index, layer in enumerate(program.layers)
    ]


def _candidates(
    candidates: Sequence[choices.Candidate], program: Program, layer: Layer, recorded: choices.Choices | None
) -> list[dict]:
    found = [
        {
            "implementation": candidate.kernel,
            "predicted_ms": candidate.seconds * 1e3,
            "scratch_bytes": candidate.scratch_nbytes,
            "weights_bytes": candidate.weights_nbytes,
            "layer": choices.holder(program, layer, candidate),  # of this program; null if not in the library
        }
        for candidate in candidates
    ]
    # Why it is not in the library; null if it is.
    return [one | {"passed_over": None if one["layer"] else _passed_over(one, found, recorded.by)} for one in found]


def _passed_over(candidate: dict, candidates: Sequence[dict], kernels: str) -> str:
    """In relation to the kernels of the library."""
    if kernels == "flexnn":
        return "not reached in the fixed order"
    for other in candidates:
        if other["layer"] and other["predicted_ms"] <= candidate["predicted_ms"]:
            larger = any(other[key] > candidate[key] for key in ("weights_bytes", "scratch_bytes"))
            slower = "slower" if other["predicted_ms"] < candidate["predicted_ms"] else "no faster"
            if not larger:
                return f"{slower} than {other['implementation'].split()[0]}, and no smaller"
    return "between the kernels that are kept"


def select_rung(program: Program, budget: str | int | float | None) -> Rung:
    """The plan that runs under `budget`: the largest that fits. Raises BudgetError if none does."""
    smallest, largest = program.rungs[0].budget, program.rungs[-1].budget
    nbytes = resolve(budget, smallest, program.default_budget, largest, program.metadata.get(MINIMUM, ""))
    return [rung for rung in program.rungs if rung.budget <= nbytes][-1]
