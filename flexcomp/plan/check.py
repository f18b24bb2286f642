"""Checks plans, after every planning in production. Shares nothing with the planners.

Lifetimes, in steps:

- a buffer: from the first step of the layer that writes the buffer to the last step of its last layer;
- scratch: during its step;
- a segment: from the moment its load may start (as soon as `after` steps are computed, so during step `after` already) to
  the end of its last step. Steps of later layers with the same weights may use the segment again and prolong its life;
- a pinned segment: always;
- a segment loaded ahead: from its load to the end of the inference, and from the start of the next to the end of its last step.

Between two inferences, at the time after the last step, the outputs are still to be read. Two objects that are live at the
same time must not share a byte. State, pinned segments and kept stored weights stay from one inference to the next and lie
above the border of the working range, all else below. Two segments prepared from the same stored pages keep these once.

Several values may be declared to be one buffer. Then each must be over before the next one begins; or the layer that writes
the next one reads the previous one for the last time, and is known to read every element just before overwriting.
"""

from __future__ import annotations

import numpy as np

from .errors import PlanError
from .problem import ALIGN, PAGE, Plan, Problem, Value

_TOGETHER = 256  # objects that are compared with all others at once


def check(problem: Problem, plan: Plan) -> list[str]:
    """The reasons why `plan` is not a plan of `problem`; empty if the plan is right."""
    reasons = _shape(problem, plan)
    if reasons:  # the rest would index out of range
        return reasons
    return _arena(plan) + _segments(problem, plan) + _waits(plan) + _overlaps(problem, plan) + _aliases(problem)


def verify(problem: Problem, plan: Plan) -> Plan:
    """`plan` itself if right; otherwise PlanError with the first reasons."""
    reasons = check(problem, plan)
    if reasons:
        more = f" (and {len(reasons) - 5} more)" if len(reasons) > 5 else ""
        what = f"invalid plan of strategy {plan.strategy!r} for {plan.budget:,} B"
        raise PlanError(f"{what}: {'; '.join(reasons[:5])}{more}")
    return plan


def _shape(problem: Problem, plan: Plan) -> list[str]:
    """Lengths, and steps that cover every block of every layer once, in layer order."""
    reasons = []
    for name, have, want in (
        ("buffer_at", plan.buffer_at, problem.buffers),
        ("scratch_at", plan.scratch_at, plan.steps),
        ("need", plan.need, plan.steps),
    ):
        if len(have) != len(want):
            reasons.append(f"{name} has {len(have)} entries instead of {len(want)}")
    position = 0
    for index, layer in enumerate(problem.layers):
        blocks = layer.weights.blocks if layer.weights else 1
        done = 0
        while done < blocks:
            step = plan.steps[position] if position < len(plan.steps) else None
            if step is None or step.layer != index or step.first != done or not 1 <= step.count <= blocks - done:
                expected = f"blocks from {done} of layer {index} ({layer.name}, {blocks} blocks)"
                return [*reasons, f"step {position} is {step}; expected {expected}"]
            done += step.count
            position += 1
    if position != len(plan.steps):
        reasons.append(f"{len(plan.steps) - position} steps after the last layer")
    for index, segment in enumerate(plan.segments):
        for step in {segment.step, segment.step + segment.count - 1}:
            if not 0 <= step < len(plan.steps):
                reasons.append(f"load {index} is for step {step}, which does not exist")
        if segment.count < 1:
            reasons.append(f"load {index} is for {segment.count} steps")
    if any(not (0 <= step < len(plan.steps) and 0 <= load < len(plan.segments)) for step, load in plan.again):
        reasons.append("a step or a load that does not exist is used again")
    for index, need in enumerate(plan.need):
        if not 0 <= need <= len(plan.segments):
            reasons.append(f"step {index} needs {need} loads of {len(plan.segments)}")
    return reasons


def _arena(plan: Plan) -> list[str]:
    reasons = []
    if plan.arena > plan.budget:
        reasons.append(f"arena of {plan.arena} B exceeds the budget of {plan.budget} B")
    if plan.arena < 0 or plan.arena % PAGE:
        reasons.append(f"arena of {plan.arena} B is not a multiple of {PAGE}")
    if not 0 <= plan.working <= plan.arena or plan.working % PAGE:
        reasons.append(f"working range of {plan.working} B is no part of an arena of {plan.arena} B in whole pages")
    return reasons


def _segments(problem: Problem, plan: Plan) -> list[str]:
    """One segment per step with weights, aligned, covering the step's bytes, complete before the step."""
    reasons = []
    load_of: dict[int, int] = {}
    ends = _ends(plan)
    ahead_ends = False
    for index, segment in enumerate(plan.segments):
        wanted = []
        for number in range(segment.step, segment.step + segment.count):
            step = plan.steps[number]
            weights = problem.layers[step.layer].weights
            if weights is None:
                if number in (segment.step, segment.step + segment.count - 1):
                    reasons.append(f"load {index} is for step {number}, which has no weights")
                continue
            if number in load_of:
                reasons.append(f"step {number} is loaded twice, by loads {load_of[number]} and {index}")
            load_of[number] = index
            begin = weights.offset + step.first * weights.block_nbytes
            end = begin + step.count * weights.block_nbytes
            wanted.append((begin, end))
            if segment.form != weights.form:
                reasons.append(f"load {index} brings weights of form {segment.form}, but step {number} needs form {weights.form}")
            if not (segment.source <= begin and end <= segment.source + segment.nbytes):
                covered = f"[{segment.source}, {segment.source + segment.nbytes})"
                reasons.append(f"load {index} covers {covered}, but step {number} needs [{begin}, {end})")
        if not wanted:
            continue
        for name, value in (
            ("source", segment.source),
            ("nbytes", segment.nbytes),
            ("address", segment.address),
        ):
            if value < 0 or value % PAGE:
                reasons.append(f"load {index}: {name} {value} is not a multiple of {PAGE}")
        if segment.kept_at != -1:
            reasons += _kept(problem, plan, index)
        spanned = max(end for _, end in wanted) - min(begin for begin, _ in wanted)
        if segment.nbytes >= spanned + 2 * PAGE:
            reasons.append(f"load {index}: {segment.nbytes} B for {spanned} B of weights")
        if segment.ahead:
            reasons += _ahead(plan, index, ahead_ends, ends[index])
        elif not 0 <= segment.after <= segment.step:
            reasons.append(f"load {index} starts after {segment.after} steps, but step {segment.step} waits for it")
        ahead_ends |= not (segment.ahead or segment.pinned)
    for number, load in plan.again:
        reasons += _again(problem, plan, number, load)
        if number in load_of:
            reasons.append(f"step {number} is loaded by load {load_of[number]}, and uses load {load} again")
        load_of[number] = load
    for index, step in enumerate(plan.steps):
        if problem.layers[step.layer].weights is None:
            continue
        if index not in load_of:
            reasons.append(f"step {index} has weights that are never loaded")
        elif load_of[index] >= plan.need[index]:
            reasons.append(f"step {index} needs {plan.need[index]} loads, but its weights are load {load_of[index]}")
    return reasons


def _ends(plan: Plan) -> list[int]:
    """Per load the number of the last step that uses its weights, plus one."""
    again = [0] * len(plan.segments)
    for number, load in plan.again:
        again[load] = max(again[load], number + 1)
    return [max(segment.step + segment.count, end) for segment, end in zip(plan.segments, again, strict=True)]


def _again(problem: Problem, plan: Plan, number: int, load: int) -> list[str]:
    """Errors of a step that uses a load for another layer with the same weights."""
    segment, step = plan.segments[load], plan.steps[number]
    weights = problem.layers[step.layer].weights
    if weights is None:
        return [f"step {number} uses load {load} again, but has no weights"]
    reasons = []
    if segment.form != weights.form or (problem.layers[plan.steps[segment.step].layer].weights != weights and weights.prepare_s):
        reasons.append(f"step {number} uses load {load} again, which prepares other weights")
    begin = weights.offset + step.first * weights.block_nbytes
    end = begin + step.count * weights.block_nbytes
    if not (segment.source <= begin and end <= segment.source + segment.nbytes):
        covered = f"[{segment.source}, {segment.source + segment.nbytes})"
        reasons.append(f"load {load} covers {covered}, but step {number}, which uses it again, needs [{begin}, {end})")
    if number < segment.step:
        reasons.append(f"step {number} uses load {load} again, which is for step {segment.step}")
    return reasons


def _kept(problem: Problem, plan: Plan, index: int) -> list[str]:
    """Errors of a load whose stored weights stay."""
    segment = plan.segments[index]
    layers = {plan.steps[number].layer for number in range(segment.step, segment.step + segment.count)}
    weights = problem.layers[min(layers)].weights
    reasons = []
    if len(layers) > 1 or weights is None or weights.stored is None:
        reasons.append(f"load {index} keeps stored weights, but is not prepared from those of one layer")
    if segment.pinned:
        reasons.append(f"load {index} is pinned, and keeps what it is prepared from")
    if segment.kept_at < 0 or segment.kept_at % PAGE:
        reasons.append(f"load {index}: kept_at {segment.kept_at} is not a multiple of {PAGE}")
    return reasons


def _ahead(plan: Plan, index: int, late: bool, end: int) -> list[str]:
    """Errors of a load that starts in the previous inference, used up to `end`; `late`: an earlier load does not."""
    segment = plan.segments[index]
    reasons = []
    if segment.pinned:
        reasons.append(f"load {index} is pinned and loaded ahead")
    if late:
        reasons.append(f"load {index} is loaded ahead, but not the load before it")
    if not end <= segment.after <= len(plan.steps):
        reasons.append(f"load {index} starts after {segment.after} steps of the inference before, which use its place")
    return reasons


def _waits(plan: Plan) -> list[str]:
    """Let the two counters run: each only ever helps the other, so counters that get stuck once always do.

    Loads that later start ahead may start at once in the first inference. In a later one such a load waits for steps
    of the previous inference, and none of these steps waits for the load.
    """
    loaded = computed = 0
    while True:
        if loaded < len(plan.segments) and (plan.segments[loaded].ahead or computed >= plan.segments[loaded].after):
            loaded += 1
        elif computed < len(plan.steps) and loaded >= plan.need[computed]:
            computed += 1
        else:
            break
    if loaded == len(plan.segments) and computed == len(plan.steps):
        return []
    done = f"{loaded} of {len(plan.segments)} loads and {computed} of {len(plan.steps)} steps"
    return [f"the waits never end: {done} done"]


def _overlaps(problem: Problem, plan: Plan) -> list[str]:
    """Every pair of objects, explicitly; also that each is aligned and inside the arena."""
    first_step: dict[int, int] = {}
    last_step: dict[int, int] = {}
    for index, step in enumerate(plan.steps):
        first_step.setdefault(step.layer, index)
        last_step[step.layer] = index

    names: list[str] = []
    rows: list[tuple[int, int, int, int]] = []  # live [start, end) in steps, bytes [low, high)
    reasons = []

    def add(name: str, start: int, end: int, address: int, nbytes: int, stays: bool = False) -> None:
        if address % ALIGN or address < 0 or address + nbytes > plan.arena:
            where = f"[{address}, {address + nbytes})"
            reasons.append(f"{name} at {where}: outside the arena of {plan.arena} B or not aligned")
        elif address < plan.working if stays else address + nbytes > plan.working:
            where = f"[{address}, {address + nbytes})"
            range_ = "what stays" if stays else "what inferences work in"
            reasons.append(f"{name} at {where}: outside the range of {range_}, with the border at {plan.working}")
        if nbytes:
            names.append(name)
            rows.append((start, end, address, address + nbytes))

    for buffer, address in zip(problem.buffers, plan.buffer_at, strict=True):
        end = last_step[buffer.end - 1] + 1
        if buffer.end == len(problem.layers):  # perhaps an output
            end += 1
        if buffer.stays and address % PAGE:
            reasons.append(f"buffer {buffer.name}, which stays, at {address}: not a multiple of {PAGE}")
        add(f"buffer {buffer.name}", first_step[buffer.start], end, address, buffer.nbytes, stays=buffer.stays)
    for index, (step, address) in enumerate(zip(plan.steps, plan.scratch_at, strict=True)):
        scratch = problem.layers[step.layer].scratch
        if scratch:
            add(f"scratch of step {index}", index, index + 1, address, scratch)
        elif address != -1:
            reasons.append(f"step {index} has no scratch, but a place for it at {address}")
    kept: set[tuple[int, int, int]] = set()
    for index, (segment, end) in enumerate(zip(plan.segments, _ends(plan), strict=True)):
        name, between = f"load {index} (for step {segment.step})", len(plan.steps) + 1
        weights = problem.layers[plan.steps[segment.step].layer].weights
        if segment.kept_at >= 0 and weights and weights.stored:
            source, stored = plan.kept(problem, segment)
            if (segment.kept_at, source, stored) not in kept:
                add(f"what load {index} is prepared from", 0, between, segment.kept_at, stored, stays=True)
            kept.add((segment.kept_at, source, stored))
        if segment.pinned or segment.ahead:
            add(name, 0, between if segment.pinned else end, segment.address, segment.nbytes, stays=segment.pinned)
            if segment.ahead and not segment.pinned:
                add(name, segment.after, between, segment.address, segment.nbytes)
        else:
            add(name, segment.after, end, segment.address, segment.nbytes)

    if rows:
        start, end, low, high = np.array(rows, dtype=np.int64).T
        for begin in range(0, len(rows), _TOGETHER):
            some = slice(begin, begin + _TOGETHER), None
            together = (start < end[some]) & (start[some] < end)
            shared = (low < high[some]) & (low[some] < high)
            for index, other in np.argwhere(np.triu(together & shared, begin + 1)).tolist():
                index += begin
                first, last = max(start[index], start[other]), min(end[index], end[other], len(plan.steps)) - 1
                when = f"in steps {first} to {last}" if first <= last else "between inferences"
                reasons.append(f"{names[index]} and {names[other]} overlap in bytes and {when}")
    return reasons


def _aliases(problem: Problem) -> list[str]:
    """Every value lies in its buffer, is written before reading, and is not overwritten before the end of its life."""
    reasons = []
    count = len(problem.layers)
    together: dict[int, list[tuple[int, int, int]]] = {}  # by buffer: life and index of its values
    for index, value in enumerate(problem.values):
        start, end = value.life(count)
        if not 0 <= value.buffer < len(problem.buffers):
            reasons.append(f"{value.name} is in buffer {value.buffer}, which does not exist")
            continue
        buffer = problem.buffers[value.buffer]
        if value.nbytes > buffer.nbytes:
            reasons.append(f"{value.name} has {value.nbytes} B, buffer {buffer.name} only {buffer.nbytes} B")
        if not buffer.start <= start < end <= buffer.end:
            life = f"lives in layers [{start}, {end})"
            reasons.append(f"{value.name} {life}, buffer {buffer.name} in [{buffer.start}, {buffer.end})")
        if not value.given and (not value.written or min(value.read, default=count) <= min(value.written)):
            reasons.append(f"{value.name} is read before a layer has written it")
        together.setdefault(value.buffer, []).append((start, end, index))
    for lives in together.values():
        lives.sort()
        for position, (start, end, index) in enumerate(lives):
            for begin, _, other in lives[position + 1 :]:
                old, new = problem.values[index], problem.values[other]
                if begin < end and not (begin == end - 1 > start and _may_replace(old, index, new, begin)):
                    reasons.append(f"{new.name} is written over {old.name} in layer {begin}, which is needed until {end - 1}")
    return reasons


def _may_replace(old: Value, index: int, new: Value, layer: int) -> bool:
    """Whether a layer may write one value over another that the layer reads for the last time."""
    begins = new.written[:1] == (layer,) and not new.given
    return begins and index in new.over and not old.kept and layer not in old.written and old.nbytes == new.nbytes
