"""The times assumed by a program's plans, kept in its metadata to be shown next to measured ones."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace

from flexcomp import plan
from flexcomp.json_text import parse, real

from .program import Program, Rung

_KEY = "prediction"
_STORED = {"core_contention": "crowded"}  # fields of Storage under other names in libraries


@dataclass(frozen=True)
class LayerTime:
    """How long a layer computes."""

    seconds: float  # the whole layer in one step
    slice_s: float = plan.SLICE_S  # more for each further step


@dataclass(frozen=True)
class Prediction:
    """The assumed times of a program's layers, in its order, and of its storage."""

    layers: tuple[LayerTime, ...]
    storage: plan.Storage
    prepare_s: float = 0.0  # that a core takes for a byte of prepared weights

    def planned_layers(self, program: Program) -> tuple[plan.Layer, ...]:
        """The program's layers for the simulator and bounds."""
        layers = []
        for layer, time in zip(program.layers, self.layers, strict=True):
            weights = layer.weights
            packed = plan.Weights(weights.offset, weights.blocks, weights.block_nbytes) if weights else None
            if weights and weights.preparation:
                packed = replace(packed, read=weights.stored_nbytes / weights.nbytes, prepare_s=self.prepare_s)
            layers.append(plan.Layer(layer.name, layer.scratch_nbytes, packed, time.seconds, time.slice_s))
        return tuple(layers)

    def timeline(self, program: Program, rung: Rung) -> plan.Timeline:
        """The simulated timeline of an inference with the plan `rung`; loads are its repeated deliveries."""
        return plan.simulate(*_as_plan(self, program, rung))


def to_metadata(prediction: Prediction) -> dict[str, str]:
    """For `Program.metadata`."""
    fields = {
        "layers": [[time.seconds, time.slice_s] for time in prediction.layers],
        "storage": {_STORED.get(name, name): value for name, value in asdict(prediction.storage).items()},
        **({"prepare_s": prediction.prepare_s} if prediction.prepare_s else {}),
    }
    return {_KEY: json.dumps(fields)}


def from_program(program: Program) -> Prediction | None:
    """The record of `to_metadata` in a program; None without one that fits the program."""
    try:
        fields = parse(program.metadata.get(_KEY, "null"))
        layers = tuple(LayerTime(real(seconds), real(more)) for seconds, more in fields["layers"])
        names = {stored: name for name, stored in _STORED.items()}
        storage = plan.Storage(**{names.get(stored, stored): value for stored, value in fields["storage"].items()})
        prepare_s = real(fields.get("prepare_s", 0.0))
        for rate in asdict(storage).values():
            real(rate)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    finite = all(0 <= time.seconds < math.inf and 0 <= time.slice_s < math.inf for time in layers) and 0 <= prepare_s < math.inf
    return Prediction(layers, storage, prepare_s) if finite and len(layers) == len(program.layers) else None


def _as_plan(prediction: Prediction, program: Program, rung: Rung) -> tuple[plan.Problem, plan.Plan]:
    """The parts of problem and plan that the simulator looks at."""
    steps = tuple(plan.Step(step.layer, step.first, step.count) for step in rung.steps)
    first: dict[int, int] = {}  # steps, by layer
    for number, step in enumerate(steps):
        first.setdefault(step.layer, number)
    plain = next((number for number, step in enumerate(steps) if not _prepares(program, step.layer)), 0)
    segments = tuple(
        plan.Segment(
            first[one.prepare.layer] if one.prepare else plain,
            0, *reversed(program.place_of(one)), one.after % (len(steps) + 1), False, ahead=one.after < 0,
            kept_at=-1 if one.read else one.brought[0],
        )
        for one in rung.tapes.repeated
    )  # fmt: skip
    scratch_at = tuple(step.scratch_at for step in rung.steps)
    planned = plan.Plan("", rung.budget, rung.arena, rung.working, steps, (), scratch_at, segments, rung.tapes.awaited)
    return plan.Problem(prediction.planned_layers(program), (), prediction.storage), planned


def _prepares(program: Program, layer: int) -> bool:
    weights = program.layers[layer].weights
    return weights is not None and weights.preparation is not None
