"""Why a layer has its kernel: a record in the library, and its reading.

The record is the program's metadata "choices", a JSON object, unknown to the runtime:

    {"by": "auto",                                  the choice of kernels that the library was built with
     "offers": [[[kernel, µs, scratch, weights], …], …],   candidate kernels: name, predicted time, bytes, bytes
     "layers": [0, -1, 1, …]}                       per layer of the program an index into offers; -1 without a choice

Of each family and kind of kernel the fastest is recorded, and whatever the library holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from flexcomp.errors import ArtifactError
from flexcomp.json_text import parse, real, whole
from flexcomp.plan import PAGE

from .program import Layer, Program, Rung, ValueArg

KEY = "choices"


@dataclass(frozen=True)
class Candidate:
    """A kernel that can compute a layer."""

    kernel: str  # as Layer.implementation
    seconds: float  # predicted
    scratch_nbytes: int
    weights_nbytes: int

    def __str__(self) -> str:
        return self.kernel


@dataclass(frozen=True)
class Choices:
    """The contents of the record."""

    by: str  # "auto", "smallest", "fastest", "flexnn"
    candidates: tuple[tuple[Candidate, ...], ...]  # per layer of the program, fastest first; empty without a choice


def record(by: str, candidates: Sequence[Iterable[Candidate]]) -> dict[str, str]:
    """The metadata of a program whose layers have these candidates."""
    distinct: dict[tuple[Candidate, ...], int] = {}
    layers = []
    for some in candidates:
        ordered = tuple(sorted(some, key=lambda candidate: (candidate.seconds, candidate.kernel)))
        layers.append(distinct.setdefault(ordered, len(distinct)) if ordered else -1)
    rows = [[[o.kernel, round(o.seconds * 1e6, 1), o.scratch_nbytes, o.weights_nbytes] for o in row] for row in distinct]
    return {KEY: json.dumps({"by": by, "offers": rows, "layers": layers}, separators=(",", ":"), ensure_ascii=False)}


def read(program: Program) -> Choices | None:
    """The record of a program; None without one. Raises ArtifactError for a malformed one."""
    if KEY not in program.metadata:
        return None
    try:
        facts = parse(program.metadata[KEY])
        rows = [
            tuple(Candidate(str(name), real(us) * 1e-6, whole(scratch), whole(weights)) for name, us, scratch, weights in row)
            for row in facts["offers"]
        ]
        layers = [whole(index) for index in facts["layers"]]
        if len(layers) != len(program.layers) or not all(-1 <= index < len(rows) for index in layers):
            raise ValueError("layers and candidates do not match")
        return Choices(str(facts["by"]), tuple(rows[index] if index >= 0 else () for index in layers))
    except (ValueError, TypeError, KeyError) as error:
        raise ArtifactError(f"the record of the choice of kernels is malformed: {error}") from None


def reasons(program: Program, choices: Choices) -> list[list[str | None]]:
    """Per layer and rung why the layer's kernel was chosen; None where another one is used, or there was no choice."""
    result: list[list[str | None]] = [[None] * len(program.rungs) for _ in program.layers]
    kept: dict[tuple, list[int]] = {}  # layers that compute the same
    for index, layer in enumerate(program.layers):
        kept.setdefault(computed(layer), []).append(index)
    for number, rung in enumerate(program.rungs):
        live = _live(program, rung)
        for index, activations in live.items():
            others = [i for i in kept[computed(program.layers[index])] if i != index]
            if program.layers[index].band_of:
                result[index][number] = "in bands of rows, which need less memory"
            elif choices.candidates[index]:
                needs = {i: activations + _smallest(program.layers[i]) for i in others}
                result[index][number] = _reason(program, choices, index, needs, rung)
    return result


def _reason(program: Program, choices: Choices, index: int, needs: Mapping[int, int], rung: Rung) -> str:
    """Why layer `index`, and not one of the others, which need so many bytes at least."""
    own, layer, fixed = _candidate(choices, index, program), program.layers[index], choices.by == "flexnn"
    candidates = {i: _candidate(choices, i, program) for i in needs}
    preferred = [i for i, candidate in candidates.items() if _rank(choices, candidate) < _rank(choices, own)]
    if not preferred:
        if fixed:
            return "first in the fixed order"
        return "fastest" if own.seconds <= min(o.seconds for o in choices.candidates[index]) else "fastest that is kept"
    first = min(preferred, key=lambda i: _rank(choices, candidates[i]))
    family = _told_from(own.kernel, candidates[first].kernel)
    if needs[first] > rung.budget:
        return f"{family} does not fit"
    if fixed:
        return f"no plan with {family}"
    other = program.layers[first].weights
    if program.streamed_nbytes(rung):
        if other.stored_nbytes > layer.weights.stored_nbytes:
            return f"fewer bytes to load than {family}"
        if other.preparation and other.nbytes > layer.weights.nbytes:
            return f"less to prepare than {family}"
    return f"less memory than {family}"


def _told_from(own: str, other: str) -> str:
    """The other kernel's family; more of its name where both are of one family."""
    family, *words = other.split()
    return " ".join([family, *words[:-1]]) if own.split()[0] == family else family


def _rank(choices: Choices, candidate: Candidate) -> float:
    """The order of preference while memory suffices: FlexNN's order, or the fastest first."""
    if choices.by != "flexnn":
        return candidate.seconds
    order, family = ("winograd", "im2col_gemm"), candidate.kernel.split()[0]
    return order.index(family) if family in order else len(order)


def _candidate(choices: Choices, index: int, program: Program) -> Candidate:
    name = program.layers[index].implementation
    found = next((candidate for candidate in choices.candidates[index] if candidate.kernel == name), None)
    if found is None:
        raise ArtifactError(f"the record of the choice of kernels lacks {name} of layer {program.layers[index].name}")
    return found


def second_forms_nbytes(program: Program) -> int:
    """Bytes of weights that are stored in another form already, for other kernels of their layers."""
    forms: dict[tuple, dict[int, int]] = {}  # by result: bytes by place of storage
    for layer in program.layers:
        if layer.weights and not layer.weights.preparation:
            forms.setdefault(computed(layer), {})[layer.weights.offset] = layer.weights.nbytes
    second: dict[int, int] = {}
    for stored in forms.values():
        first = min(stored, key=stored.__getitem__)
        second.update((offset, nbytes) for offset, nbytes in stored.items() if offset != first)
    return sum(second.values())


def computed(layer: Layer) -> tuple:
    """The same for a layer and its alternatives: their output and description, for tensors with many writers."""
    return (layer.description, *(arg for arg in layer.args if isinstance(arg, ValueArg) and arg.written))


def _smallest(layer: Layer) -> int:
    """Bytes of scratch and of one block of weights, in whole pages."""
    block = layer.weights.block_nbytes if layer.weights else 0
    return layer.scratch_nbytes + -(-block // PAGE) * PAGE


def _live(program: Program, rung: Rung) -> dict[int, int]:
    """Bytes of the activations that are live in each layer that the rung computes."""
    order = list(dict.fromkeys(step.layer for step in rung.steps))
    first: dict[int, int] = dict.fromkeys(program.given, 0)
    last: dict[int, int] = dict.fromkeys(first, 0)
    for position, index in enumerate(order):
        for arg in program.layers[index].args:
            if isinstance(arg, ValueArg):
                first.setdefault(arg.value, position)
                last[arg.value] = position
    last.update(dict.fromkeys(program.wanted, len(order)))
    sizes = program.values
    return {
        index: sum(sizes[value].nbytes for value, start in first.items() if start <= position <= last[value])
        for position, index in enumerate(order)
    }


def holder(program: Program, layer: Layer, candidate: Candidate) -> str | None:
    """The name of the layer that does the same as `layer` by the candidate kernel; None if the library lacks it."""
    same = (other for other in program.layers if computed(other) == computed(layer))
    return next((other.name for other in same if other.implementation == candidate.kernel), None)


def worth_recording(candidates: Sequence[Candidate], held: Callable[[Candidate], bool]) -> list[Candidate]:
    """The fastest of each kind, and the kernels in the library."""
    best: dict[str, Candidate] = {}
    for candidate in candidates:
        kind = " ".join(candidate.kernel.split()[:2]) if candidate.kernel.startswith("winograd") else candidate.kernel.split()[0]
        if kind not in best or candidate.seconds < best[kind].seconds:
            best[kind] = candidate
    return [candidate for candidate in candidates if candidate in best.values() or held(candidate)]
