"""The words in a picture of a plan: which steps belong to which layers, and which step needs most at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from flexcomp.plan import extent
from flexcomp.program import Program, Rung, nodes, titled
from flexcomp.report.memory_map import Box
from flexcomp.units import human_bytes

# Kinds that a step needs: weights that stay, or are loaded ahead, are the planner's choice.
_NEEDED = ("activation", "state", "weights", "scratch")


@dataclass(frozen=True)
class Stretch:
    """Steps that belong together: those of one layer, or of layers whose bands take turns."""

    name: str
    start: int
    end: int  # exclusive


@dataclass(frozen=True)
class Neediest:
    """The step that needs most at once: no plan of these steps can do with less."""

    step: int
    smallest: bool  # whether the plan is the library's smallest
    layer: str  # with its node
    nbytes: int
    parts: dict[str, int]  # bytes by kind, as far as in _NEEDED

    def __str__(self) -> str:
        parts = ", ".join(f"{human_bytes(nbytes)} of {_PLURAL.get(kind, kind)}" for kind, nbytes in self.parts.items())
        what = "sets the smallest budget" if self.smallest else "needs most at once"
        total = f"{human_bytes(self.nbytes)}: " if len(self.parts) > 1 else ""
        return f"Step {self.step} {what}: {self.layer} cannot do without {total}{parts}."


_PLURAL = {"activation": "activations"}


def stretches(program: Program, rung: Rung) -> list[Stretch]:
    """The plan's steps by layers, in order."""
    bases = [program.layers[step.layer].band_of or program.layers[step.layer].name for step in rung.steps]
    last = {base: index for index, base in enumerate(bases)}
    result, start, end = [], 0, 0
    for index, base in enumerate(bases):
        end = max(end, last[base] + 1)
        if index + 1 == end:
            names = list(dict.fromkeys(map(_short, bases[start:end])))
            result.append(Stretch(_range(names[0], names[-1]), start, end))
            start = end
    return result


def _short(layer: str) -> str:
    """conv2d.5.winograd.F(4) → conv2d.5: the layer, by whatever kernel; fused operators by the first and the last."""
    op, _, rest = layer.partition(".")
    words = op.removeprefix("fused_").replace("tir_", "").split("_")
    op = op if len(op) <= 20 else f"{words[0]}…{words[-1]}"
    return f"{op}.{rest.partition('.')[0]}" if rest else op


def _range(first: str, last: str) -> str:
    """conv2d.1, conv2d.3 → conv2d.1–3."""
    if first == last:
        return first
    op, _, number = last.rpartition(".")
    return f"{first}–{number if first.startswith(f'{op}.') else last}"


def neediest(program: Program, rung: Rung, found: Iterable[Box]) -> Neediest:
    """The step whose activations, states, scratch and own weights are the most bytes; the first of several."""
    needs: list[dict[str, list[tuple[int, int]]]] = [{} for _ in rung.steps]
    for box in found:
        if box.kind in _NEEDED:
            for need in needs[box.start : box.end]:
                need.setdefault(box.kind, []).append((box.address, box.nbytes))
    # A result in the place of an operand needs no bytes of its own.
    parts = [{kind: extent(need[kind]) for kind in _NEEDED if need.get(kind)} for need in needs]
    step = max(range(len(parts)), key=lambda index: sum(parts[index].values()))
    index, needed = rung.steps[step].layer, {kind: nbytes for kind, nbytes in parts[step].items() if nbytes}
    smallest = rung.budget == program.rungs[0].budget
    return Neediest(step, smallest, titled(program.layers[index].name, nodes.read(program)[index]), sum(needed.values()), needed)
