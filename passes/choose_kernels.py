"""Choose one kernel for every layer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import tvm
from tvm import relax

from ..schedules.decide import decide
from ..schedules.family import Candidate, Family
from ..schedules.registry import FAMILIES, Machine, candidates, named, space
from ..schedules.tiles.spec import ConvSpec, MatmulSpec
from .attributes import KERNEL, SECONDS, WEIGHTS
from .ir import bindings
from .layers import is_layer, read
from .module_pass import module_pass

Spec = ConvSpec | MatmulSpec
# Seconds of a layer's kernels, by name, as far as measured.
Measured = Callable[[Spec], Mapping[str, float]]
# By spec all specs of layers with the same weights, in any order that networks of all shapes have in common.
Alike = Mapping[Spec, Sequence[Spec]]

# Layers with the same weights agree on fewer forms of them for so much of their work together; on fewer that are stored for more.
_AGREEING, _STORED = 1.03, 1.15

# A corner that lies nearer to the line from the smallest to the fastest is not worth another copy of the weights.
_LEAST_BEND = 0.05


def _smallest(offers: Sequence[Candidate]) -> Candidate:
    return min(offers, key=lambda candidate: candidate.size)


def hull(offers: Sequence[Candidate]) -> list[Candidate]:
    """The candidates between the smallest and the fastest that are worth their weights, fewest bytes first.

    Corners of the lower convex hull of (bytes of weights, work), both ends included: whatever a byte costs next to an
    operation, one of them costs least. Scratch has no price here.
    """
    corners = [_smallest(offers)]
    for candidate in sorted(offers, key=lambda offer: (offer.weight_nbytes, offer.work)):
        if candidate.work >= corners[-1].work or candidate.weight_nbytes <= corners[-1].weight_nbytes:
            continue
        while len(corners) > 1 and _bend(corners[-2], corners[-1], candidate) <= 0:
            corners.pop()
        corners.append(candidate)
    return corners


def _bend(first: Candidate, middle: Candidate, last: Candidate) -> float:
    """How far the middle candidate lies below the line between the others, as a part of the triangle's rectangle."""
    part = (middle.weight_nbytes - first.weight_nbytes) / (last.weight_nbytes - first.weight_nbytes)
    return (first.work - middle.work) / (first.work - last.work) - part


def _balanced(offers: Sequence[Candidate]) -> Candidate:
    """The corner that bends the hull most; the fastest where there is none."""
    first, *between = hull(offers)
    last = between.pop() if between else first
    middle = max(between, key=lambda corner: _bend(first, corner, last), default=last)
    return middle if middle is last or _bend(first, middle, last) >= _LEAST_BEND else last


def _of_family(family: Family) -> Callable[[Sequence[Candidate]], Candidate]:
    """The family's candidate that it prefers itself; the smallest of all where it has none."""

    def pick(offers: Sequence[Candidate]) -> Candidate:
        own = [candidate for candidate in offers if candidate.family == family.name]
        return min(own, key=family.preferred) if own else _smallest(offers)

    return pick


# The candidate of a layer that each preference takes; of equal ones the first.
PREFERENCES: dict[str, Callable[[Sequence[Candidate]], Candidate]] = {
    "smallest": _smallest,
    "balanced": _balanced,
    "fastest": lambda offers: min(offers, key=lambda candidate: candidate.work),
    **{family.name: _of_family(family) for family in FAMILIES if family.preferred},
}


def agreed(
    picks: Sequence[Candidate], offers: Sequence[Sequence[Candidate]], more: float = _AGREEING
) -> list[Candidate]:
    """Kernels for layers that have the same weights, in as few forms as cost little: each form is stored, loaded and kept.

    From the `picks`, one for each layer, one form after the other is given up, each time the one that costs least, while all of
    them take no more than `more` times the work; no layer takes more scratch.
    """
    most = more * sum(pick.work for pick in picks)
    picks = list(picks)
    while len(used := dict.fromkeys(map(_form, picks))) > 1:
        fewer = [made for gone in used if (made := _without(gone, used, picks, offers))]
        best = min(fewer, key=lambda made: sum(one.work for one in made), default=picks)
        if best is picks or sum(one.work for one in best) > most:
            break
        picks = best
    return picks


def _without(
    gone: tuple, used: Collection[tuple], picks: Sequence[Candidate], offers: Sequence[Sequence[Candidate]]
) -> list[Candidate]:
    """The picks with other kernels, of the other forms in use, in place of those of a form; none if some layer has none."""
    left = [form for form in used if form != gone]
    made = list(picks)
    for index, pick in enumerate(picks):
        if _form(pick) == gone:
            fitting = [one for one in offers[index] if _form(one) in left and one.scratch_nbytes <= pick.scratch_nbytes]
            if not fitting:
                return []
            made[index] = min(fitting, key=lambda one: one.work)
    return made


def _form(candidate: Candidate) -> tuple:
    """The key that tells the forms of one weight apart."""
    return candidate.panel, candidate.transform


@module_pass(opt_level=0)
class ChooseKernels:
    """Mark every layer function with the kernel that computes it.

    flexcomp.layer = "conv2d"   →   flexcomp.layer = "conv2d", flexcomp.kernel = "direct 14×32"

    The kernel families offer candidates for the layer's spec. Preference "smallest" takes the one with the least scratch
    and weights, "fastest" the one with the least predicted work, at any memory, "balanced" one between them
    that saves much work for few more weights; the name of a family takes that family where possible. Layers with the
    same weights agree on their forms (`agreed`), together with those of other shapes of the network, which `alike` names.
    Where the fastest by prediction was `measured`, "fastest" is the choice by measured times, of all that the tuner may have
    tried (schedules/decide.py).
    """

    def __init__(
        self, unit: Machine, preference: str = "smallest", measured: Measured | None = None, alike: Alike | None = None
    ) -> None:
        assert preference in PREFERENCES, f"no preference {preference!r}; there are {', '.join(PREFERENCES)}"
        self.unit, self.preference = unit, preference
        self.measured, self.alike = measured or (lambda spec: {}), alike or {}

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        together = self._agreed(mod)
        return annotate(mod, lambda func: self._choose(func, together))

    def _agreed(self, mod: tvm.IRModule) -> dict[Spec, str]:
        """By spec the kernels of layers that have the same weights, where none was measured."""
        layers: dict[tuple, dict[Spec, None]] = {}  # specs, by the weights of the layers
        for weights, spec in layers_with_weights(mod):
            for one in (*self.alike.get(spec, ()), spec):
                if not self.measured(one):
                    layers.setdefault(weights, {})[one] = None
        result: dict[Spec, str] = {}
        for specs in layers.values():
            if len(specs) > 1:
                picks = [PREFERENCES[self.preference](candidates(spec, self.unit)) for spec in specs]
                if len(set(map(_form, picks))) > 1:
                    more = _STORED if self.preference == "smallest" else _AGREEING
                    picks = agreed(picks, [space(spec, self.unit) for spec in specs], more)
                result |= {spec: str(pick) for spec, pick in zip(specs, picks, strict=True)}
        return result

    def _choose(self, func: relax.Function, together: Mapping[Spec, str]) -> dict:
        spec = layer_spec(func)
        name = together.get(spec) or default_kernel(spec, self.unit, self.preference)
        seconds = self.measured(spec)
        if self.preference == "fastest" and name in seconds:
            name = decide({n: s for n, s in seconds.items() if named(spec, self.unit, n) is not None}, name)
        return {KERNEL: name, **({SECONDS: seconds[name]} if name in seconds else {})}


def layers_with_weights(mod: tvm.IRModule) -> Iterator[tuple[tuple[relax.Var, ...], Spec]]:
    """The weights and the spec of each layer of main that has weights."""
    for binding in bindings(mod["main"]):
        call = binding.value
        if isinstance(call, relax.Call) and isinstance(call.op, tvm.ir.GlobalVar) and is_layer(func := mod[call.op]):
            weights = tuple(call.args[int(i)] for i in func.attrs[WEIGHTS])
            yield from [(weights, layer_spec(func))] * bool(weights)


def default_kernel(spec: Spec, unit: Machine, preference: str) -> str:
    """The kernel that a preference takes where nothing was measured."""
    return str(PREFERENCES[preference](candidates(spec, unit)))


def layer_spec(func: relax.Function) -> Spec:
    """The spec of a layer function."""
    return read(func, tuple(int(i) for i in func.attrs[WEIGHTS])).spec


def chosen(func: relax.Function, unit: Machine) -> Candidate:
    """The candidate that ChooseKernels marked on a layer function."""
    candidate = named(layer_spec(func), unit, str(func.attrs[KERNEL]))
    assert candidate is not None, f"no kernel is called {func.attrs[KERNEL]}"
    return candidate


def chosen_kernels(mod: tvm.IRModule) -> dict[tvm.ir.GlobalVar, str]:
    """The names of the kernels that ChooseKernels marked, by layer function."""
    return {gv: str(func.attrs[KERNEL]) for gv, func in mod.functions_items() if is_layer(func)}


def annotate(mod: tvm.IRModule, attributes) -> tvm.IRModule:
    """A copy of `mod` whose layer functions carry `attributes(func)` as well."""
    result = mod.clone()
    for gv, func in mod.functions_items():
        if is_layer(func):
            for key, value in attributes(func).items():
                func = func.with_attr(key, value)
            result.update_func(gv, func)
    return result
