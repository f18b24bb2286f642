"""Random planning problems, and an executor that runs a plan on tagged memory."""

from __future__ import annotations

from hypothesis import strategies as st

from flexcomp.plan import ALIGN, PAGE, Layer, Plan, Problem, Storage, Tensor, Weights


@st.composite
def problems(draw: st.DrawFn, most_layers: int = 10) -> Problem:
    """A graph of up to `most_layers` layers: chains, skip connections, several inputs and outputs, sliceable or not."""
    count = draw(st.integers(1, most_layers))
    layers, tensors, offset = [], [], 0
    for index in range(count):
        weights = None
        if draw(st.booleans()):
            blocks = draw(st.integers(1, 9))
            weights = Weights(offset, blocks, ALIGN * draw(st.integers(1, 200)))
            offset += -(-weights.nbytes // ALIGN) * ALIGN + draw(st.sampled_from([0, ALIGN, PAGE]))
        scratch = ALIGN * draw(st.sampled_from([0, 0, 1, 7, 100]))
        layers.append(Layer(f"layer{index}", scratch, weights, draw(st.floats(0, 1e-3))))
    starts = [0] * draw(st.integers(1, 2)) + list(range(count))
    for index, start in enumerate(starts):
        end = draw(st.one_of(st.just(min(start + 2, count)), st.integers(start + 1, count)))
        tensors.append(Tensor(f"tensor{index}", ALIGN * draw(st.integers(0, 300)), start, end))
    storage = Storage(draw(st.sampled_from([1e7, 1e8, 1e9])), draw(st.sampled_from([0.0, 1e-4])))
    return Problem(tuple(layers), tuple(tensors), storage)


def run_tagged(problem: Problem, plan: Plan, *, eager: bool) -> bool:
    """Whether three inferences of `plan` find in memory what was put there.

    Memory is a table of 64-byte granules that hold the name of their last writer. With `eager` a load
    runs as soon as it may, in the midst of a step; without, only when a step waits for it.
    """
    memory: dict[int, object] = {}

    def granules(address: int, nbytes: int) -> range:
        return range(address // ALIGN, -(-(address + nbytes) // ALIGN))

    def write(tag: object, address: int, nbytes: int) -> bool:
        if address < 0 or address + nbytes > plan.arena:
            return False
        memory.update(dict.fromkeys(granules(address, nbytes), tag))
        return True

    def holds(tag: object, address: int, nbytes: int) -> bool:
        return all(memory.get(granule) == tag for granule in granules(address, nbytes))

    segment_of = {
        step: segment for segment in plan.segments for step in range(segment.step, segment.step + segment.count)
    }
    ahead = max((i + 1 for i, segment in enumerate(plan.segments) if segment.ahead), default=0)
    begun = 0  # loads that were done in the inference before
    for inference in range(3):
        loaded, begun = begun, 0

        def read(number: int, again: bool) -> bool:
            segment = plan.segments[number]
            return (segment.pinned and again) or write(("load", segment.step), segment.address, segment.nbytes)

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

        for tensor, address in zip(problem.tensors, plan.tensor_at, strict=True):
            if tensor.start == 0 and not write(tensor.name, address, tensor.nbytes):
                return False
        for index, step in enumerate(plan.steps):
            layer = problem.layers[step.layer]
            if not load(plan.need[index], index) or loaded < plan.need[index]:
                return False
            if step.layer and step.first == 0:
                for tensor, address in zip(problem.tensors, plan.tensor_at, strict=True):
                    if tensor.start == step.layer and not write(tensor.name, address, tensor.nbytes):
                        return False
            if layer.scratch and not write(("scratch", index), plan.scratch_at[index], layer.scratch):
                return False
            if eager and not load(len(plan.segments), index):
                return False
            if eager and loaded == len(plan.segments) and not load_ahead(index):
                return False
            if layer.scratch and not holds(("scratch", index), plan.scratch_at[index], layer.scratch):
                return False
            for tensor, address in zip(problem.tensors, plan.tensor_at, strict=True):
                if tensor.start <= step.layer < tensor.end and not holds(tensor.name, address, tensor.nbytes):
                    return False
            if layer.weights:
                if index not in segment_of:
                    return False
                segment = segment_of[index]
                begin = layer.weights.offset + step.first * layer.weights.block_nbytes - segment.source
                nbytes = step.count * layer.weights.block_nbytes
                if begin < 0 or begin + nbytes > segment.nbytes:
                    return False
                if not holds(("load", segment.step), segment.address + begin, nbytes):
                    return False
        if not load(len(plan.segments), len(plan.steps)) or loaded < len(plan.segments):
            return False
        if eager and not load_ahead(len(plan.steps)):
            return False
        for tensor, address in zip(problem.tensors, plan.tensor_at, strict=True):
            if tensor.end == len(problem.layers) and not holds(tensor.name, address, tensor.nbytes):
                return False
    return True
