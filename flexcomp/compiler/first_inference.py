"""The first inference of a rung, where different (NNV12, sections 3.1 and 3.5).

A layer whose weights are prepared for good may be computed once by its smallest kernel, from the stored weights:
these need not be prepared before, and most of their later memory need not exist yet. They are prepared afterwards, for the
second inference. The loader's gain is the kernels' loss, so the first inference does so where its simulated latency is
least.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flexcomp import plan
from flexcomp.network import Form, Planning, planned_layer
from flexcomp.network.preparing import pieces, source
from flexcomp.program import PAGE, Cold, Layer, ValueArg

_HUGE = 2 << 20  # bytes of the pages in which memory exists
_WORTHWHILE = 0.99  # of the latency: smaller savings are left out
_PARTS = 8  # of the candidates are tried together first


@dataclass(frozen=True)
class _Candidate:
    """A segment whose weights may be taken in stored form."""

    segment: int
    step: int
    own: int  # index into Network.layers: the layer with its smallest kernel
    at: int  # arena address of the pages of its weights
    pages: tuple[int, int]  # (offset, nbytes) in the data section
    untouched: int  # bytes that the first inference leaves alone
    saved_s: float  # of the loader
    added_s: float  # of the kernels


def cold_steps(planning: Planning, form: Form, planned: plan.Plan) -> tuple[Cold, ...]:
    """The steps of the first inference that take stored weights; layers are indices into `Network.layers`."""
    found = sorted(_candidates(planning, form, planned), key=lambda one: (one.added_s / one.saved_s, one.step))
    if not found:
        return ()
    tried: dict[int, float] = {}

    def latency(count: int) -> float:
        if count not in tried:
            tried[count] = _latency(planning, form, planned, found[:count])
        return tried[count]

    apart = max(len(found) // _PARTS, 1)
    best = min(range(0, len(found) + 1, apart), key=latency)
    while apart > 1:
        apart //= 2
        best = min((count for count in (best - apart, best, best + apart) if 0 <= count <= len(found)), key=latency)
    if not best or latency(best) > _WORTHWHILE * latency(0):
        return ()
    chosen = sorted(found[:best], key=lambda one: one.step)
    plan.verify(*_first(planning, form, planned, chosen))
    return tuple(Cold(one.step, one.own, one.at) for one in chosen)


def _candidates(planning: Planning, form: Form, planned: plan.Plan) -> Iterator[_Candidate]:
    network, costs = planning.network, planning.costs
    alternatives = range(len(network.base.layers), len(network.base.layers) + len(network.alternatives))
    shared = {number for _, number in planned.again}  # by steps that take the weights prepared
    for number, segment in enumerate(planned.segments):
        step = planned.steps[segment.step]
        index = form.layers[step.layer]
        layer = network.layers[index]
        whole = segment.count == 1 and layer.weights is not None and step.count == layer.weights.blocks
        if not (segment.pinned and whole and index in alternatives and layer.weights.preparation and number not in shared):
            continue
        own = network.base_of(index)
        place = _place(layer, network.layers[own], segment.address, form.piece)
        if place is None:
            continue
        at, pages = place
        # The first page of the memory that is prepared into, and the last one that nothing is read into, may be others' too.
        untouched = max(at // _HUGE - -(-segment.address // _HUGE), 0) * _HUGE
        saved_s = layer.weights.nbytes * costs.prepare_s + untouched * costs.fresh_s
        added_s = max(costs.seconds[own] - costs.seconds[index], 0.0)
        if saved_s > 0:
            yield _Candidate(number, segment.step, own, at, pages, untouched, saved_s, added_s)


def _place(layer: Layer, own: Layer, weights_at: int, piece: int) -> tuple[int, tuple[int, int]] | None:
    """Where the stored weights of `own` lie where those of `layer` will, at the end, and their pages in the file.

    None if there is no such place, or `own` is not the same computation on them, in no more memory.
    """
    weights, stored = layer.weights, own.weights
    assert weights is not None
    if stored is None or (stored.offset, stored.nbytes) != (weights.offset, weights.stored_nbytes):
        return None
    if not _computes_alike(layer, own) or own.scratch_nbytes > layer.scratch_nbytes:
        return None
    begin = stored.offset - stored.offset % PAGE
    nbytes = -(-(stored.offset + stored.nbytes) // PAGE) * PAGE - begin
    at = (weights_at + weights.nbytes - nbytes) // PAGE * PAGE
    made_end = weights_at
    for first, count in pieces(layer, 0, weights.blocks, piece):
        if at + source(layer, first, count)[0] - begin < made_end:  # of an earlier piece, which would be overwritten
            return None
        made_end = weights_at + (first + count) * weights.block_nbytes
    return (at, (begin, nbytes)) if at >= weights_at else None


def _computes_alike(layer: Layer, own: Layer) -> bool:
    """Whether both take the same values, and `own` may write its result over whatever `layer` may."""
    values = [[arg for arg in one.args if isinstance(arg, ValueArg)] for one in (layer, own)]
    return len(values[0]) == len(values[1]) and all(
        replace(theirs, over=mine.over) == mine and theirs.over <= mine.over for theirs, mine in zip(*values, strict=True)
    )


def _latency(planning: Planning, form: Form, planned: plan.Plan, chosen: Sequence[_Candidate]) -> float:
    """Seconds of the first inference."""
    problem, first = _first(planning, form, planned, chosen)
    fresh = [segment.nbytes if segment.pinned else 0 for segment in planned.segments]
    for one in chosen:
        fresh[one.segment] -= one.untouched
    fresh_s = [nbytes * planning.costs.fresh_s for nbytes in fresh]
    return plan.simulate(problem, first, cold=True, fresh_s=fresh_s).latency


def _first(
    planning: Planning, form: Form, planned: plan.Plan, chosen: Sequence[_Candidate]
) -> tuple[plan.Problem, plan.Plan]:
    """The first inference as a plan of its own, and its problem."""
    layers, steps = list(form.problem.layers), list(planned.steps)
    scratch_at, segments = list(planned.scratch_at), list(planned.segments)
    for one in chosen:
        own = planning.network.layers[one.own]
        step = steps[one.step]
        assert own.weights is not None
        layers[step.layer] = planned_layer(own, one.own, planning.costs)
        steps[one.step] = step._replace(count=own.weights.blocks)
        if not own.scratch_nbytes:
            scratch_at[one.step] = -1
        place = {"form": 0, "source": one.pages[0], "nbytes": one.pages[1], "address": one.at}
        segments[one.segment] = segments[one.segment]._replace(**place)
    problem = replace(form.problem, layers=tuple(layers))
    return problem, replace(planned, steps=tuple(steps), scratch_at=tuple(scratch_at), segments=tuple(segments))
