"""Choose one kernel for every layer."""

from __future__ import annotations

from collections.abc import Callable

import tvm
from tvm import relax
from tvm.ir.transform import module_pass

from ..schedules.registry import Candidate, candidates
from ..schedules.tile import VectorUnit
from .attributes import KERNEL, LAYER, WEIGHTS
from .layers import read


def _smallest(candidate: Candidate) -> tuple:
    return (candidate.scratch_nbytes, candidate.weight_nbytes, candidate.work)


# What a strategy wants little of, most important first; then the first offer wins.
STRATEGIES: dict[str, Callable[[Candidate], tuple]] = {
    "smallest": _smallest,
    "fastest": lambda candidate: (candidate.work,),
    # One family where it is on offer, elsewhere as "smallest": FlexNN's input slicing takes the finest slices.
    "im2col_gemm": lambda candidate: (candidate.family != "im2col_gemm", _smallest(candidate)),
    "winograd": lambda candidate: (
        (False, candidate.work) if candidate.family == "winograd" else (True, _smallest(candidate))
    ),
}


@module_pass(opt_level=0)
class ChooseKernels:
    """Mark every layer function with the kernel that computes it.

    flexcomp.layer = "conv2d"   →   flexcomp.layer = "conv2d", flexcomp.kernel = "direct 14×32"

    The kernel families offer candidates for the layer's spec. Strategy "smallest" takes the one with the least scratch
    and weights, "fastest" the one with the least predicted work, whatever memory it needs; "im2col_gemm" and "winograd"
    take that family where it can compute the layer.
    """

    def __init__(self, unit: VectorUnit, strategy: str = "smallest") -> None:
        assert strategy in STRATEGIES, f"no strategy {strategy!r}; there are {', '.join(STRATEGIES)}"
        self.unit, self.strategy = unit, strategy

    def transform_module(self, mod: tvm.IRModule, _ctx) -> tvm.IRModule:
        return annotate(mod, lambda func: {KERNEL: str(min(_offers(func, self.unit), key=STRATEGIES[self.strategy]))})


def _offers(func: relax.Function, unit: VectorUnit):
    weights = tuple(int(i) for i in func.attrs[WEIGHTS])
    return candidates(read(func, weights).spec, unit)


def chosen(func: relax.Function, unit: VectorUnit):
    """The candidate that ChooseKernels marked on a layer function."""
    name = str(func.attrs[KERNEL])
    return next(candidate for candidate in _offers(func, unit) if str(candidate) == name)


def annotate(mod: tvm.IRModule, attributes) -> tvm.IRModule:
    """A copy of `mod` whose layer functions carry `attributes(func)` as well."""
    result = mod.clone()
    for gv, func in mod.functions_items():
        if isinstance(func, relax.Function) and func.attrs is not None and LAYER in func.attrs:
            for key, value in attributes(func).items():
                func = func.with_attr(key, value)
            result.update_func(gv, func)
    return result
