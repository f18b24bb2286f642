"""Layers with one weight and vectors of their own take one panel."""

from __future__ import annotations

import tvm
from tvm import relax

from flexcomp.passes import FuseLayers, SharePanels
from flexcomp.passes.choose_kernels import layer_spec

from .networks import conv, network

op = relax.op
WEIGHT = {"w": (32, 3, 3, 64)}


def layers(mod: tvm.IRModule) -> list[relax.Call]:
    values = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    return [value for value in values if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar)]


def heads(*vectors: str, weight=WEIGHT) -> tvm.IRModule:
    """A convolution of an input for each string: +b adds a vector, *s multiplies by one; then a rectifier."""
    names = list(dict.fromkeys(part[1:] for text in vectors for part in text.split()))

    def body(emit, *variables):
        inputs, kernel = variables[: len(vectors)], variables[len(vectors)]
        by_name = dict(zip(names, variables[len(vectors) + 1 :], strict=True))
        results = []
        for x, text in zip(inputs, vectors, strict=True):
            y = emit(conv(x, kernel, padding=1))
            for part in text.split():
                y = emit({"+": op.add, "*": op.multiply}[part[0]](y, by_name[part[1:]]))
            results.append(emit(op.nn.relu(y)))
        return relax.Tuple(results)

    (_, (out, *_, channels)), *_ = weight.items()
    inputs = {f"x{i}": (1, 4 + i, 4, channels) for i in range(len(vectors))}
    return FuseLayers()(network(inputs, {**weight, **dict.fromkeys(names, (out,))}, body))


def test_each_takes_the_vectors_of_all():
    before = heads("+b", "+c", "*s +d")
    text = before.script()
    after = SharePanels()(before)
    assert before.script() == text, "the given module is left alone"
    relax.analysis.well_formed(after)
    calls = layers(after)
    specs = [layer_spec(after[call.op]) for call in calls]
    assert {spec.channel_vectors for spec in specs} == {4}
    panels = [[call.args[i].name for i in map(int, after[call.op].attrs["flexcomp.vectors"])] for call in calls]
    assert panels[0] == panels[1] == panels[2] and sorted(panels[0]) == ["b", "c", "d", "s"]
    order = [panels[0].index(name) for name in "bcsd"]
    assert [spec.epilogue for spec in specs] == [
        ("relu", ("add", ("acc",), ("channel", order[0]))),
        ("relu", ("add", ("acc",), ("channel", order[1]))),
        ("relu", ("add", ("multiply", ("acc",), ("channel", order[2])), ("channel", order[3]))),
    ]


def test_what_all_add_stays_what_sums_start_with():
    calls = layers(after := SharePanels()(heads("+b *s", "+b *t", "+b")))
    specs = [layer_spec(after[call.op]) for call in calls]
    assert [spec.epilogue for spec in specs] == [
        ("relu", ("multiply", ("acc",), ("channel", 0))),
        ("relu", ("multiply", ("acc",), ("channel", 1))),
        ("relu", ("acc",)),
    ]
    assert {spec.channel_vectors for spec in specs} == {2}


def test_layers_that_are_alike_or_small_are_left_alone():
    few, small = {"w": (512, 1, 1, 16)}, {"w": (8, 3, 3, 8)}
    readers = (("+b", "+b"), WEIGHT), (("+b",), WEIGHT), (("+b", "+c", "+d", "+e"), few), (("+b", "+c"), small)
    for before in (heads(*vectors, weight=weight) for vectors, weight in readers):
        assert SharePanels()(before).same_as(before)
