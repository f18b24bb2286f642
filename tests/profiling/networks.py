"""A network of known times."""

from __future__ import annotations

from flexcomp.program import Layer, Load, Program, Weights
from flexcomp.runtime.trace import Trace, Traces
from tests.by_hand import Plan, Step

PAGE = 4096


def program_of(rungs: int, pinned: tuple[bool, ...] = (False, False)) -> Program:
    """Two layers of one page each; computing the first frees the place of the second's weights."""
    layers = tuple(
        Layer(name, "conv2d", name, "direct", name, (), Weights(at * PAGE, 1, PAGE), 0, 1) for at, name in enumerate("ab")
    )
    loads = tuple(Load(at * PAGE, PAGE, at * PAGE, at, keep) for at, keep in enumerate(pinned))
    steps = tuple(Step(at, 0, 1, at + 1, 0, -1) for at in range(2))
    ladder = tuple(Plan((2 + one) * PAGE, 2 * PAGE, 0, (), steps, loads, 1e-3).rung(layers) for one in range(rungs))
    return Program("net", "llvm", (), 1, (), (), (), layers, ladder, 2 * PAGE)


class Network:
    """Notes who asks for what."""

    def __init__(self, program: Program, threads: int = 1) -> None:
        self.program, self.threads, self.asked = program, threads, []

    def traces(self, budget: int, threads: int | None, repeat: int, **options) -> Traces:
        rung = [rung.budget for rung in self.program.rungs].index(budget)
        self.asked.append((rung, repeat))
        spans = (100, 200), (250, 350)
        return Traces(rung, self.threads, (Trace(rung, 0, 400, spans, ((0, 90), (210, 240))),) * repeat)
