"""What there is to tune: the layers of a network with several kernels, each shape once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

from tvm import ir, relax

from flexcomp.compiler import WeightTypes, evaluate, pipeline
from flexcomp.frontend import Imported
from flexcomp.passes import FuseLayers
from flexcomp.passes.attributes import LAYER
from flexcomp.passes.choose_kernels import STRATEGIES, default_kernel, layer_spec
from flexcomp.passes.ir import bindings
from flexcomp.schedules.registry import Candidate
from flexcomp.schedules.space import space
from flexcomp.schedules.tiles.spec import Spec, identity
from flexcomp.schedules.tiles.tile import VectorUnit


@dataclass(frozen=True)
class Task:
    """A layer to tune."""

    spec: Spec
    count: int  # how many layers of the network are like this
    candidates: dict[str, Candidate]  # by name
    defaults: tuple[str, ...]  # what is chosen without tuning, the fastest first

    @property
    def layer(self) -> str:
        """Its name in the database."""
        return identity(self.spec)

    @property
    def default(self) -> str:
        """The kernel that is fastest by prediction."""
        return self.defaults[0]


def tasks_of(imported: Imported, unit: VectorUnit, types: WeightTypes) -> list[Task]:
    """The tasks of a network whose weights have these types, in the order of its layers.

    Raises InputError for types that weights do not fit.
    """
    simple = pipeline.run(imported.mod, pipeline.simplify(), "simplify")
    on_weights = partial(evaluate, weights=imported.weights)
    simple = pipeline.run(simple, pipeline.transformers(replace(unit, threads=1), on_weights, types.of), "transformers")
    fused = pipeline.run(simple, [FuseLayers(types.of)], "layers")
    types.require_granted()
    # Layers that compute the same may share a function: it is their calls that count.
    calls = (binding.value for binding in bindings(fused["main"]))
    called = [fused[c.op] for c in calls if isinstance(c, relax.Call) and isinstance(c.op, ir.GlobalVar)]
    counts = Counter(layer_spec(func) for func in called if func.attrs is not None and LAYER in func.attrs)
    return [_task(spec, count, unit) for spec, count in counts.items()]


def _task(spec: Spec, count: int, unit: VectorUnit) -> Task:
    candidates = {str(candidate): candidate for candidate in space(spec, unit)}
    defaults = tuple(dict.fromkeys(default_kernel(spec, unit, s) for s in ("fastest", *STRATEGIES)))
    return Task(spec, count, candidates, defaults)
