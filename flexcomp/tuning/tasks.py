"""Tuning tasks: the layers of a network with several kernels, each shape once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import tvm
from tvm import ir, relax

from flexcomp.compiler import WeightTypes, evaluate, pipeline
from flexcomp.frontend import Imported
from flexcomp.passes import FuseLayers
from flexcomp.passes.attributes import LAYER, RECURRENCE
from flexcomp.passes.choose_kernels import PREFERENCES, default_kernel, layer_spec
from flexcomp.passes.ir import bindings, operator
from flexcomp.schedules.recurrent.spec import RecurrentSpec
from flexcomp.schedules.registry import Candidate, space
from flexcomp.schedules.tiles.spec import identity
from flexcomp.schedules.tiles.tile import VectorUnit
from flexcomp.tuning.specs import TunedSpec


@dataclass(frozen=True)
class Task:
    """A layer to tune."""

    spec: TunedSpec
    count: int  # how many layers of the network are like this, in all shapes
    candidates: dict[str, Candidate]  # by name
    defaults: tuple[str, ...]  # chosen without tuning, the fastest first

    @property
    def layer(self) -> str:
        """Its name in the database."""
        return identity(self.spec)

    @property
    def default(self) -> str:
        """The kernel that is fastest by prediction."""
        return self.defaults[0]


def tasks_of(shapes: Iterable[tuple[Imported, WeightTypes]], unit: VectorUnit) -> list[Task]:
    """The tasks of a network, in each of its shapes, with the types of its weights; in the order of its layers.

    Raises InputError for types that weights do not fit.
    """
    counts: Counter[TunedSpec] = Counter()
    for imported, types in shapes:
        counts.update(_specs_of(imported, unit, types))
    return [_task(spec, count, unit) for spec, count in counts.items()]


def _specs_of(imported: Imported, unit: VectorUnit, types: WeightTypes) -> list[TunedSpec]:
    simple = pipeline.run(imported.mod, pipeline.simplify(), "simplify")
    on_weights = partial(evaluate, weights=imported.weights)
    simple = pipeline.run(simple, pipeline.transformers(replace(unit, threads=1), on_weights, types.of), "transformers")
    fused = pipeline.run(simple, [FuseLayers(types.of)], "layers")
    types.require_granted()
    # Layers that compute the same may share a function, so calls are counted.
    return [spec for binding in bindings(fused["main"]) if (spec := _spec_of(fused, binding.value)) is not None]


def _spec_of(mod: tvm.IRModule, value: ir.Expr) -> TunedSpec | None:
    """The spec of a layer, or of a call of a recurrent kernel; None for all else."""
    if not isinstance(value, relax.Call):
        return None
    called = value.op if isinstance(value.op, ir.GlobalVar) else value.args[0] if operator(value) == "call_tir" else None
    attributes = None if called is None else mod[called].attrs
    if attributes is not None and LAYER in attributes:
        return layer_spec(mod[called])
    return RecurrentSpec.decode(str(attributes[RECURRENCE])) if attributes is not None and RECURRENCE in attributes else None


def _task(spec: TunedSpec, count: int, unit: VectorUnit) -> Task:
    candidates = {str(candidate): candidate for candidate in space(spec, unit)}
    defaults = tuple(dict.fromkeys(default_kernel(spec, unit, s) for s in ("fastest", *PREFERENCES)))
    return Task(spec, count, candidates, defaults)
