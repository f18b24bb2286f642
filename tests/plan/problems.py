"""Random planning problems, and an executor that runs a plan on tagged memory."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from flexcomp.plan import ALIGN, PAGE, Buffer, Layer, Plan, Problem, Segment, Storage, Stored, Value, Weights


@st.composite
def problems(draw: st.DrawFn, most_layers: int = 10) -> Problem:
    """A graph of up to `most_layers` layers: chains, skip connections, several inputs and outputs, sliceable or not.

    Some have layers with the same weights.
    """
    count = draw(st.integers(1, most_layers))
    sharing = draw(st.booleans())
    layers, buffers, offset = [], [], 0
    for index in range(count):
        weights = None
        before = [layer.weights for layer in layers if layer.weights]
        if sharing and before and draw(st.booleans()):
            weights = draw(st.sampled_from(before))
        elif draw(st.booleans()):
            blocks = draw(st.integers(1, 9))
            prepare_s = draw(st.sampled_from([0.0, 0.0, 1e-10, 1e-8]))
            weights = Weights(offset, blocks, ALIGN * draw(st.integers(1, 200)))
            if prepare_s:
                weights = replace(weights, offset=0, form=index + 1, prepare_s=prepare_s, **draw(stored_for(weights)))
            else:
                offset += -(-weights.nbytes // ALIGN) * ALIGN + draw(st.sampled_from([0, ALIGN, PAGE]))
        scratch = ALIGN * draw(st.sampled_from([0, 0, 1, 7, 100]))
        layers.append(Layer(f"layer{index}", scratch, weights, draw(st.floats(0, 1e-3))))
    starts = [0] * draw(st.integers(1, 2)) + list(range(count))
    for index, start in enumerate(starts):
        end = draw(st.one_of(st.just(min(start + 2, count)), st.integers(start + 1, count)))
        buffers.append(Buffer(f"buffer{index}", ALIGN * draw(st.integers(0, 300)), start, end))
    if draw(st.sampled_from([False, False, True])):
        buffers.insert(0, Buffer("state", PAGE * draw(st.integers(1, 3)), 0, count, stays=True))
    bandwidth = draw(st.sampled_from([1e7, 1e8, 1e9]))
    disturbance = draw(st.sampled_from([0.0, 0.3, 2.0])) / bandwidth
    overhead_s, cache = draw(st.sampled_from([0.0, 1e-4])), draw(st.sampled_from([0, 4 * PAGE]))
    together, latency_s = draw(st.sampled_from([1.0, 1.0, 1.8])), draw(st.sampled_from([0.0, 2e-5, 1e-3]))
    storage = Storage(
        bandwidth,
        overhead_s,
        disturbance=disturbance,
        cache=cache,
        together=together,
        latency_s=latency_s,
        cached=draw(st.sampled_from([1.0, 1.5])),
        core_contention=draw(st.sampled_from([0.0, 0.5])),
        small_pages=draw(st.sampled_from([1.0, 2.5])),
    )
    values = draw(aliases(buffers, count)) if draw(st.booleans()) else ()
    return Problem(tuple(layers), tuple(buffers), storage, values)


@st.composite
def stored_for(draw: st.DrawFn, weights: Weights) -> dict[str, object]:
    """What `weights` are prepared from, blocks of other widths, and how many of its bytes are read for each of theirs."""
    prepared = draw(st.integers(1, 3))
    channels = weights.blocks * prepared - (draw(st.integers(0, prepared - 1)) if weights.blocks > 1 else 0)
    width = draw(st.integers(1, channels))
    block_nbytes = ALIGN * draw(st.integers(1, 100))
    stored = Stored(weights.offset + ALIGN * draw(st.integers(0, 100)), block_nbytes, channels, width, prepared)
    return {"stored": stored, "read": -(-channels // width) * block_nbytes / weights.nbytes}


@st.composite
def aliases(draw: st.DrawFn, buffers: list[Buffer], count: int) -> tuple[Value, ...]:
    """Values for buffers: in each one or several in a row, every one after the one before, or over it."""
    values: list[Value] = []
    for number, buffer in enumerate(buffers):
        start, previous, given = buffer.start, -1, buffer.start == 0
        while True:
            last = draw(st.integers(start, buffer.end - 1))
            ends = last == buffer.end - 1
            written = () if given and draw(st.booleans()) else (start, *([last] if last > start and draw(st.booleans()) else []))
            given = given and not written
            read = () if last == start and not given else tuple(sorted({last, draw(st.integers(start + (not given), last))}))
            over = (previous,) if previous >= 0 else ()
            kept = ends and buffer.end == count and draw(st.booleans())
            name = f"{buffer.name}.{len(values)}"
            values.append(Value(name, buffer.nbytes, number, written, read, given, kept, over))
            if ends:
                break
            # The next one is written over this one where that is read for the last time, or later.
            may_replace = last > start and last not in written
            start, given = (last, False) if may_replace and draw(st.booleans()) else (last + 1, False)
            previous = len(values) - 1 if start == last else -1
    return tuple(values)


def values_of(problem: Problem) -> tuple[Value, ...]:
    """The problem's own, or one for every buffer, which is needed in every layer of its life."""
    count = len(problem.layers)
    if problem.values:
        return problem.values
    lives = [(tuple(range(t.start, t.end)), t.start == 0, t.end == count) for t in problem.buffers]
    return tuple(
        Value(t.name, t.nbytes, i, () if given else life[:1], life, given, kept)
        for i, (t, (life, given, kept)) in enumerate(zip(problem.buffers, lives, strict=True))
    )


def run_tagged(problem: Problem, plan: Plan, *, eager: bool) -> bool:
    """Whether three inferences of `plan` find in memory what was put there.

    Memory is a table of 64-byte granules that hold the name of their last writer. With `eager` a load
    runs as soon as it may, in the midst of a step; without, only when a step waits for it. What a layer writes
    is written when it begins, before it reads anything; only what it may write over an operand comes after that is read.
    The ranges of the arena are apart in memory. Without `eager` nothing is read ahead, and somebody else uses the
    working range after each inference.
    """
    values = values_of(problem)
    if not all(0 <= value.buffer < len(plan.buffer_at) for value in values):
        return False
    place = [plan.buffer_at[value.buffer] for value in values]
    memory: dict[int, object] = {}

    def granules(address: int, nbytes: int) -> range:
        return range(address // ALIGN, -(-(address + nbytes) // ALIGN))

    def write(tag: object, address: int, nbytes: int) -> bool:
        if address < 0 or address + nbytes > plan.arena or address < plan.working < address + nbytes:
            return False
        memory.update(dict.fromkeys(granules(address, nbytes), tag))
        return True

    def holds(tag: object, address: int, nbytes: int) -> bool:
        return all(memory.get(granule) == tag for granule in granules(address, nbytes))

    def begin_layer(layer: int, begun: list[Value], replaced: set[int]) -> bool:
        """Write what a layer begins; what comes over operands that it reads element by element comes last."""
        last = [c for c in begun if any(old in replaced for old in c.over)]
        for value in begun:
            if value not in last and not write(value.name, place[values.index(value)], value.nbytes):
                return False
        for number in replaced:
            old = values[number]
            if layer in old.read and not holds(old.name, place[number], old.nbytes):
                return False
        return all(write(value.name, place[values.index(value)], value.nbytes) for value in last)

    segment_of = {step: segment for segment in plan.segments for step in range(segment.step, segment.step + segment.count)}
    if any(not (0 <= load < len(plan.segments) and 0 <= step < len(plan.steps)) for step, load in plan.again):
        return False
    segment_of |= {step: plan.segments[load] for step, load in plan.again}
    if any(problem.layers[plan.steps[step].layer].weights is None for step, _ in plan.again):
        return False
    for segment in plan.segments:
        layers = {step.layer for step in plan.steps[segment.step : segment.step + segment.count]}
        weights = problem.layers[min(layers, default=0)].weights
        if segment.kept_at >= 0 and (len(layers) != 1 or weights is None or weights.stored is None):
            return False
    ahead = max((i + 1 for i, segment in enumerate(plan.segments) if segment.ahead), default=0)
    begun = 0  # loads that were done in the inference before
    for inference in range(3):
        loaded, begun = begun, 0

        def read(number: int, again: bool) -> bool:
            segment = plan.segments[number]
            if segment.kept_at >= 0 and not ((again or eager or keep(segment)) and kept(segment)):
                return False
            return (segment.pinned and again) or write(("load", segment.step), segment.address, segment.nbytes)

        def keep(segment: Segment) -> bool:
            return write(("stored", *plan.kept(problem, segment)), segment.kept_at, plan.kept(problem, segment)[1])

        def kept(segment: Segment) -> bool:
            return holds(("stored", *plan.kept(problem, segment)), segment.kept_at, plan.kept(problem, segment)[1])

        if eager and inference == 0 and not all(keep(segment) for segment in plan.segments if segment.kept_at >= 0):
            return False

        def load(upto: int, computed: int, inference: int = inference) -> bool:
            nonlocal loaded
            while loaded < upto and (plan.segments[loaded].ahead or plan.segments[loaded].after <= computed):
                if not read(loaded, inference > 0):
                    return False
                loaded += 1
            return True

        def load_ahead(computed: int) -> bool:
            nonlocal begun
            while begun < ahead and plan.segments[begun].after <= computed:
                if not read(begun, True):
                    return False
                begun += 1
            return True

        for value, address in zip(values, place, strict=True):
            if value.given and not write(value.name, address, value.nbytes):
                return False
        for index, step in enumerate(plan.steps):
            layer = problem.layers[step.layer]
            if not load(plan.need[index], index) or loaded < plan.need[index]:
                return False
            begun_here = [c for c in values if c.written[:1] == (step.layer,) and not c.given]
            replaced = {old for c in begun_here for old in c.over if place[old] == place[values.index(c)]}
            if step.first == 0 and not begin_layer(step.layer, begun_here, replaced):
                return False
            if layer.scratch and not write(("scratch", index), plan.scratch_at[index], layer.scratch):
                return False
            if eager and not load(len(plan.segments), index):
                return False
            if eager and loaded == len(plan.segments) and not load_ahead(index):
                return False
            if layer.scratch and not holds(("scratch", index), plan.scratch_at[index], layer.scratch):
                return False
            for number, value in enumerate(values):
                needed = step.layer in value.read or step.layer in value.written
                if needed and number not in replaced and not holds(value.name, place[number], value.nbytes):
                    return False
            if layer.weights:
                if index not in segment_of:
                    return False
                segment = segment_of[index]
                begin = layer.weights.offset + step.first * layer.weights.block_nbytes - segment.source
                nbytes = step.count * layer.weights.block_nbytes
                if segment.form != layer.weights.form or begin < 0 or begin + nbytes > segment.nbytes:
                    return False
                if not holds(("load", segment.step), segment.address + begin, nbytes):
                    return False
        if not load(len(plan.segments), len(plan.steps)) or loaded < len(plan.segments):
            return False
        if eager and not load_ahead(len(plan.steps)):
            return False
        for value, address in zip(values, place, strict=True):
            if value.kept and not holds(value.name, address, value.nbytes):
                return False
        if not eager:
            memory = {granule: tag for granule, tag in memory.items() if granule * ALIGN >= plan.working}
    return True


@st.composite
def choices(draw: st.DrawFn, most_layers: int = 5) -> tuple[Problem, list[list[Layer]]]:
    """A problem, and faster kernels with more weights and scratch for some of its layers."""
    problem = draw(problems(most_layers))
    options = []
    for layer in problem.layers:
        others = [layer]
        while layer.weights and len(others) < 3 and draw(st.booleans()):
            slower = others[-1]
            blocks = slower.weights.blocks * draw(st.integers(2, 4))
            faster = replace(
                slower, weights=replace(slower.weights, blocks=blocks),
                seconds=slower.seconds * draw(st.floats(0.3, 0.9)), scratch=slower.scratch + draw(st.sampled_from([0, PAGE])),
            )  # fmt: skip
            others.append(faster)
        options.append(others)
    return problem, options
