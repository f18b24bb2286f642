"""Which kernels can compute a layer: every family of the list brings candidates, the caller chooses."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from . import byte_products, depthwise, direct, grouped, in_blocks, matmul
from .amx import family as amx
from .cuda import families as cuda
from .cuda.unit import Gpu
from .family import Candidate, Family
from .im2col import family as im2col
from .integer import family as integer
from .recurrent import family as recurrent
from .recurrent.spec import RecurrentSpec
from .strassen import family as strassen
from .tiles import epilogue
from .tiles.spec import ConvSpec, Spec
from .tiles.tile import VectorUnit
from .winograd import family as winograd

# Of equal candidates the first is taken: families without scratch come before the others that take the same layers.
FAMILIES: tuple[Family, ...] = (
    direct.FAMILY,
    direct.ONE_PIXEL,
    depthwise.FAMILY,
    grouped.FAMILY,
    winograd.FAMILY,
    strassen.FAMILY,
    im2col.FAMILY,
    amx.FAMILY,
    integer.FAMILY,
    in_blocks.FAMILY,
    in_blocks.ONE_ROW,
    byte_products.FAMILY,
    byte_products.ONE_ROW,
    matmul.FAMILY,
    recurrent.FAMILY,
    *cuda.FAMILIES,
)
Machine = VectorUnit | Gpu
AnySpec = Spec | RecurrentSpec


def candidates(spec: AnySpec, machine: Machine) -> tuple[Candidate, ...]:
    """The kernels for a layer that are best by the families' models of a machine, the first with the least scratch."""
    return tuple(candidate for offers in _fastest(spec, machine, FAMILIES).values() for candidate in offers)


def space(spec: AnySpec, machine: Machine) -> list[Candidate]:
    """Every kernel worth measuring, the candidates first; their names are unique.

    Candidates are the best by a model. The best on a given processor depends on caches, latencies and prefetchers that no
    model describes, so the space has many more register tiles and sizes of scratch: tens to a few hundred for a layer.
    """
    found: dict[str, Candidate] = {}
    for candidate in (*candidates(spec, machine), *_trials(spec, machine)):
        found.setdefault(str(candidate), candidate)
    return list(found.values())


def named(spec: AnySpec, machine: Machine, name: str) -> Candidate | None:
    """The kernel of that name; None if the space has none."""
    offers = (candidate for some in (candidates, _trials) for candidate in some(spec, machine))
    return next((candidate for candidate in offers if str(candidate) == name), None)


def family(name: str) -> Family | None:
    """The first family of that name: on several machines families of one name are alike, but for their kernels."""
    return next((one for one in FAMILIES if one.name == name), None)


@functools.lru_cache(maxsize=1024)  # every choice of kernels reads the candidates of every layer
def _fastest(spec: AnySpec, machine: Machine, families: tuple[Family, ...]) -> dict[Family, tuple[Candidate, ...]]:
    """The candidates by family, of the arithmetic with the least work."""
    found: dict[str, dict[Family, tuple[Candidate, ...]]] = {}
    dtype, machine = _computing(spec, machine)
    for one in families:
        if one.is_for(spec, machine) and dtype in one.dtypes:
            offers = (_fitted(candidate, spec, machine) for candidate in one.candidates(spec, machine))
            found.setdefault(one.arithmetic, {})[one] = one.worthwhile(offers)
    return min(found.values(), key=_least_work, default={})


def _least_work(offers: Mapping[Family, tuple[Candidate, ...]]) -> float:
    return min((candidate.work for some in offers.values() for candidate in some), default=math.inf)


def _trials(spec: AnySpec, machine: Machine) -> Iterator[Candidate]:
    _, fitted = _computing(spec, machine)
    offers = (candidate for one in _fastest(spec, machine, FAMILIES) for candidate in one.trials(spec, fitted))
    return (_fitted(candidate, spec, fitted) for candidate in offers)


def _fitted(candidate: Candidate, spec: AnySpec, machine: Machine) -> Candidate:
    """The candidate with its work on this machine, and where inputs are padded."""
    if isinstance(machine, VectorUnit):
        known = dict(machine.slowness)
        times = known.get(candidate.measured_as, known.get(candidate.family, 1.0))
        candidate = replace(candidate, work=candidate.work * times + _epilogue_work(spec))
    padded = dict(machine.padded) if isinstance(machine, VectorUnit) and isinstance(spec, ConvSpec) else {}
    pixels = math.prod(spec.out_shape[:-1]) if padded else 0
    return candidate.for_lengths(padded[pixels], pixels) if pixels in padded else candidate


def _epilogue_work(spec: AnySpec) -> float:
    """Operations that functions of a layer's results take."""
    return 0.0 if isinstance(spec, RecurrentSpec) else epilogue.flops(spec.epilogue) * math.prod(spec.out_shape)


def _computing(spec: AnySpec, machine: Machine) -> tuple[str, Machine]:
    """The element type that a layer is computed in, and the machine with vectors of these."""
    dtype = spec.dtype if isinstance(spec, Spec) else "float32"
    return dtype, machine.of(dtype) if isinstance(machine, VectorUnit) else machine
