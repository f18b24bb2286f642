"""When a plan computes, loads and prepares weights: lanes of bars, predicted or measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from flexcomp.program import Delivery, Prepare, Program, Read, Rung, from_program
from flexcomp.runtime import Trace

_Span = tuple[float, float]  # seconds


@dataclass(frozen=True)
class Bar:
    """A step, a load or a preparation. Seconds from the start of the inference; loads ahead begin before 0."""

    name: str  # of the layer
    start: float
    end: float
    facts: dict[str, object]  # for people who click on the bar


@dataclass(frozen=True)
class Lanes:
    """One inference."""

    label: str  # "predicted" or "measured"
    computing: tuple[Bar, ...]
    loading: tuple[Bar, ...]  # without pinned weights that were there already
    latency: float  # seconds
    preparing: tuple[Bar, ...] = ()  # measured only: the simulator counts them within the loads
    core_wait_ms: float | None = None  # threads were ready while others had the core; None: not known

    @property
    def busy(self) -> float:
        """Seconds of computing."""
        return sum(bar.end - bar.start for bar in self.computing)

    @property
    def stalled(self) -> float:
        """Seconds in which steps waited, for loads or, measured, for whatever else kept the thread."""
        return self.latency - self.busy


def predicted(program: Program, rung: Rung) -> Lanes | None:
    """The steady state as the plan's simulator sees it; None for a library that does not hold the assumed times."""
    assumed = from_program(program)
    if assumed is None:
        return None
    timeline = assumed.timeline(program, rung)
    loads = zip(rung.tapes.repeated, timeline.loads, strict=True)
    return _lanes("predicted", program, rung, timeline.steps, loads, timeline.latency)


def measured(program: Program, trace: Trace) -> Lanes:
    """The runtime's measurements."""

    def seconds(spans: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
        return [
            ((begin - trace.begin_ns) * 1e-9, (end - trace.begin_ns) * 1e-9) if end else (0.0, 0.0)
            for begin, end in spans
        ]

    rung = program.rungs[trace.rung]
    loads, preparing = seconds(trace.loads), []
    deliveries = {one.load: one for one in (*rung.tapes.repeated, *rung.tapes.filled)}
    read = ((deliveries[index], loads[index]) for index in sorted(deliveries))
    lanes = _lanes("measured", program, rung, seconds(trace.steps), read, trace.latency_s)
    prepares = {one.load: one for one in rung.tapes.operations if isinstance(one, Prepare)}
    for index, (start, end) in enumerate(seconds(trace.prepares)):
        if end > start and (made := prepares.get(index)):
            facts = {"load": index, "blocks": f"{made.first} to {made.first + made.count - 1}", "address": made.to}
            preparing.append(Bar(program.layers[made.layer].name, start, end, facts))
    return replace(lanes, core_wait_ms=trace.core_wait_ms, preparing=tuple(preparing))


def _lanes(
    label: str, program: Program, rung: Rung, steps: Sequence[_Span], loads: Iterable[tuple[Delivery, _Span]], latency: float
) -> Lanes:
    computing = []
    for index, (step, (start, end)) in enumerate(zip(rung.steps, steps, strict=True)):
        layer = program.layers[step.layer]
        facts = {"step": index, "kernel": layer.implementation, "computes": layer.description}
        if layer.weights and layer.weights.blocks > step.count:
            facts["blocks"] = f"{step.first} to {step.first + step.count - 1} of {layer.weights.blocks}"
        computing.append(Bar(layer.name, start, end, facts))
    names = load_names(program, rung)
    loading = []
    for one, (start, end) in loads:
        if end > start:
            after = {
                "after step": one.after % (len(rung.steps) + 1),
                **({"of": "the inference before"} if one.after < 0 else {}),
            }
            facts = {"load": one.load, "bytes": one.brought[1], "address": one.brought[0], **after}
            loading.append(Bar(names[one.load], start, end, facts))
    return Lanes(label, tuple(computing), tuple(loading), latency)


def load_names(program: Program, rung: Rung) -> dict[int, str]:
    """For each load the layer of the plan with most of its bytes; the first of several with as many."""
    ranges: dict[tuple[int, int], str] = {}
    for step in rung.steps:
        layer = program.layers[step.layer]
        if layer.weights and not layer.weights.preparation:
            ranges.setdefault((layer.weights.offset, layer.weights.offset + layer.weights.nbytes), layer.name)
    names = {one.load: program.layers[one.layer].name for one in rung.tapes.operations if isinstance(one, Prepare)}
    for one in rung.tapes.operations:
        if isinstance(one, Read) and one.load not in names:
            start, end = one.source, one.source + one.nbytes
            names[one.load] = ranges[max(ranges, key=lambda r: min(end, r[1]) - max(start, r[0]))]
    return names
