"""`build(pad=…)`: what a build takes, and which networks it refuses because padding moves an output."""

from __future__ import annotations

import numpy as np
import pytest

from flexcomp.compiler import builder
from flexcomp.compiler.builder import prepare_shapes
from flexcomp.compiler.lowering import lowered_here
from flexcomp.compiler.options import options_of
from flexcomp.compiler.output_extents import derived
from flexcomp.compiler.padding import trials_of
from flexcomp.errors import InputError
from flexcomp.network import PaddedRows, ValidRows
from flexcomp.runtime import Derived
from tests.padded import LEAKS, WIDTH, masked_encoder, recurrence, subsampled
from tests.shaped import Nodes, encoder
from tests.uncompiled import UNCOMPILED

ROWS = {"x": ("n", WIDTH)}
STEPS = {"x": ("n", 1, WIDTH)}


def tried(model, input_shapes, pad, shapes=None, target="llvm -opt-level=0 -mcpu=x86-64-v3", **options):
    """The record of padding of a network whose own kernels are not compiled."""
    asked = options_of(input_shapes=input_shapes, shapes=shapes or {"n": [4, 8]}, pad=pad, threads=1, **options)
    return prepare_shapes(model, target, asked, compiler=UNCOMPILED)[0].padding


def moves(name):
    return rf'pad: the output "{name}" moves by \d\.\de[+-]\d\d of its largest element when n=\d is padded to n=[48]: declare'


@pytest.mark.parametrize("leak", LEAKS)
def test_an_output_that_padding_moves_is_named(leak):
    with pytest.raises(InputError, match=moves("moved")):
        tried(LEAKS[leak](), ROWS, {"x": 0.0})


def test_a_recurrence_is_padded_behind_its_end_only():
    assert tried(recurrence(), STEPS, {"x": 0}).outputs == {"y": ("n", None, None, None)}
    with pytest.raises(InputError, match=moves("y")):
        tried(recurrence("reverse"), STEPS, {"x": 0})
    with pytest.raises(InputError, match=moves("last")):
        tried(recurrence(last=True), STEPS, {"x": 0})


def test_a_mask_is_padded_with_what_masks():
    shapes = {"ids": (1, "n"), "mask": (1, "n")}
    with pytest.raises(InputError, match=moves("(rows|mean)") + ".* a mask as an input that is padded, too"):
        tried(masked_encoder(), shapes, {"ids": 0, "mask": 1})


def test_a_build_for_another_machine_tries_on_this_one():
    with pytest.raises(InputError, match=moves("moved")):
        tried(LEAKS["mean"](), ROWS, {"x": 0}, target="llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76")
    assert tried(recurrence(), STEPS, {"x": 0}, target="llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76")


def test_what_an_output_does_not_show_is_refused():
    g = Nodes(seed=0)
    g.named("y", "Mul", "x", g.constant(np.zeros((1, WIDTH), "float32")))
    with pytest.raises(InputError, match='random inputs make the output "y" 0, or no numbers'):
        tried(g.model([("x", 1, ["n", WIDTH])], [("y", 1, ["n", WIDTH])]), ROWS, {"x": 0})


FRAMES = {"x": (1, WIDTH, "n")}


def test_an_output_may_have_a_part_of_the_length_or_a_multiple():
    """Found from few lengths: two convolutions of stride 2 halve twice, rounding up."""
    quarter, double = Derived("n", 1, 3, 4, 0), Derived("n", 2, 0, 1, 0)
    for shapes in ({"n": [24, 9]}, {"n": [21]}):
        found = tried(subsampled(doubled=True), FRAMES, {"x": 0}, shapes)
        assert found.outputs == {"y": (None, None, quarter), "z": (None, None, double)}
    with pytest.raises(InputError, match=r'pad: the output "y" moves by .* when n=\d+ is padded to n=\d+'):
        tried(subsampled(causal=False), FRAMES, {"x": 0}, {"n": [24]})


RULES = [(1, 3, 4, 0), (1, 0, 1, -2), (2, 1, 3, 5), (3, 0, 1, 0), (1, 319, 320, 1), (1, -200, 160, 0)]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("most", [999, 1000])
def test_rules_of_lengths_are_found(rule, most):
    wanted = Derived("n", *rule)
    asked = []

    def size(extents):
        asked.append(extents["n"])
        return wanted(extents["n"])

    found = derived([{"n": most}, {"n": 201}], size)
    assert all(found(n) == wanted(n) for n in range(201, most + 1))
    assert len(set(asked)) <= 40, "each length is a network to import"


def test_lengths_that_follow_no_rule_have_none():
    for size in (lambda n: n * n, lambda n: 2 * n // 3, lambda n: 7 - n, lambda n: n + (n < 30)):
        assert derived([{"n": 64}, {"n": 8}], lambda extents: size(extents["n"])) is None  # noqa: B023


def test_an_output_of_other_lengths_cannot_be_cut():
    g = Nodes(seed=0)
    g.named("y", "Reshape", g.op("MatMul", "x", g.op("Transpose", "x", perm=[1, 0])), g.constant([-1]))
    said = 'the output "y" has 64 elements along axis 0 for n=8 and others for n=4.* none of the names'
    with pytest.raises(InputError, match=said):
        tried(g.model([("x", 1, ["n", WIDTH])], [("y", 1, ["m"])]), ROWS, {"x": 0})


def test_more_of_each_element_is_no_longer_input():
    """Padding lies between the two halves."""
    g = Nodes(seed=0)
    g.named("y", "Concat", "x", "x", axis=0)
    with pytest.raises(InputError, match=moves("y")):
        tried(g.model([("x", 1, ["n", WIDTH])], [("y", 1, ["m", WIDTH])]), ROWS, {"x": 0})


def test_a_network_that_short_inputs_do_not_fit():
    """The least length that there is a network for is noted."""
    g = Nodes(seed=0)
    ends = g.op("Slice", "x", g.constant([0]), g.constant([2]), g.constant([2]))
    g.named("y", "Concat", ends, g.op("Conv", "x", g.weight(2, 2, 3)), axis=2)
    model = g.model([("x", 1, [1, 2, "n"])], [("y", 1, [1, 2, "m"])])
    assert tried(model, {"x": (1, 2, "n")}, {"x": 0}, {"n": [8]}).least == {"n": 2}
    with pytest.raises(InputError, match="no length lies between the shapes, n=2, which is the least: leave pad out"):
        tried(model, {"x": (1, 2, "n")}, {"x": 0}, {"n": [2]})


@pytest.mark.parametrize(
    ("input_shapes", "shapes", "pad", "message"),
    [
        ({"ids": (1, 16)}, None, {"ids": 0}, "pad is for libraries of shapes"),
        ({"ids": (1, "n")}, {"n": [16]}, {"mask": 0}, "pad: 'mask' is no input with a name among its extents; there"),
        ({"ids": (1, "n"), "x": (1, 4)}, {"n": [16]}, {"ids": 0, "x": 0}, "pad: 'x' is no input with a name"),
        ({"ids": (1, "n"), "mask": (1, "n")}, {"n": [16]}, {"ids": 0}, 'axis 1 of "mask" is n, too, and there is no value'),
        ({"ids": (1, "n")}, {"n": [16]}, {}, "pad must be a dict of numbers by input"),
        ({"ids": (1, "n")}, {"n": [16]}, 0, "pad must be a dict of numbers by input"),
        ({"ids": (1, "n")}, {"n": [16]}, {"ids": "0"}, "must be a finite number, not '0'"),
        ({"ids": (1, "n")}, {"n": [16]}, {"ids": float("inf")}, "must be a finite number, not inf"),
    ],
)
def test_what_contradicts_is_refused_before_work_begins(input_shapes, shapes, pad, message):
    with pytest.raises(InputError, match=message):
        options_of(input_shapes=input_shapes, shapes=shapes, pad=pad)


def test_values_are_those_of_the_inputs_types():
    with pytest.raises(InputError, match=r"pad: 'ids' is int64, and no padding of that type is 0\.5"):
        tried(encoder(), {"ids": (1, "n")}, {"ids": 0.5})
    with pytest.raises(InputError, match="no length lies between the shapes, n=2; n=1: leave pad out"):
        tried(encoder(), {"ids": (1, "n")}, {"ids": 0}, {"n": [1, 2]})
    with pytest.raises(InputError, match=r"pad: a GPU computes"):
        tried(encoder(), {"ids": (1, "n")}, {"ids": 0}, {"n": [4]}, target="h200")


def test_extents_that_are_equal_in_all_shapes_are_told_apart():
    """At lengths between; and an axis of a name that has one extent is told from one without a name."""
    g = Nodes(seed=0)
    g.named("y", "Tanh", "x")
    model = g.model([("x", 1, ["h", "w", 2])], [("y", 1, ["h", "w", 2])])
    for shapes in ([{"h": 8, "w": 8}, {"h": 4, "w": 4}], {"h": [6], "w": [9]}, {"h": [2], "w": [2]}):
        assert tried(model, {"x": ("h", "w", 2)}, {"x": 0}, shapes).outputs == {"y": ("h", "w", None)}


def test_lengths_between_have_the_attention_of_their_shape(monkeypatch):
    """Sums in another order would move results that are rounded to bytes: encoders of 8 bits were refused."""
    kinds = []

    def lowered(*args, **options):
        network = lowered_here(*args, **options)
        kinds.extend(layer.implementation for layer in network.base.layers if layer.implementation.startswith("attention"))
        return network

    monkeypatch.setattr(builder, "lowered_here", lowered)
    tried(masked_encoder(), {"ids": (1, "n"), "mask": (1, "n")}, {"ids": 0, "mask": 0}, {"n": [16]}, target="native")
    assert len(kinds) > 1 and not [kind for kind in kinds if kind.endswith("rows")]


def test_as_many_kernels_leave_rows_out_as_outputs_need():
    """In every lowering, for any target."""
    with pytest.raises(InputError, match="pad: 2 kernels must leave out padded rows, and of those for this target 0 do"):
        ValidRows(PaddedRows(8, frozenset(), over=2)).told([], {})


LADDERS = {
    "one": [{"n": 64}],
    "neighbours": [{"n": 64}, {"n": 16}, {"n": 15}],
    "four": [{"n": 512}, {"n": 128}, {"n": 64}, {"n": 16}],
    "images": [{"h": 8, "w": 16}, {"h": 8, "w": 8}, {"h": 4, "w": 16}, {"h": 4, "w": 8}],
    "crossed": [{"h": 8, "w": 16}, {"h": 16, "w": 8}],
    "odd": [{"n": 3}, {"n": 1}],
}


@pytest.mark.parametrize("known", LADDERS.values(), ids=LADDERS)
def test_every_shape_is_tried_with_padding_of_all_names_and_of_each(known):
    there = []
    for trial in trials_of(known):
        shape = known[trial.shape]
        there += trial.new
        assert all(extents not in known for extents in trial.new)
        assert all(extents in there and all(extents[name] <= shape[name] for name in shape) for extents in trial.lengths)
        padded = [{name for name in shape if extents[name] < shape[name]} for extents in trial.lengths]
        assert all(padded), "a shape is no padded one"
        if max(shape.values()) > 1:
            assert set(shape) in padded and all({name} in padded for name in shape)
        there += [shape] if trial.serves else []
    assert not trials_of(known)[-1].serves, "the largest shape is padded to no other"


def test_few_networks_are_compiled_to_try():
    """A shape is tried with those of smaller shapes; some length lies in the gap below the largest one."""
    new = {name: [extents for trial in trials_of(known) for extents in trial.new] for name, known in LADDERS.items()}
    assert {name: len(found) for name, found in new.items()} == {
        "one": 2, "neighbours": 3, "four": 3, "images": 7, "crossed": 8, "odd": 1
    }  # fmt: skip
    assert {"n": 1} in new["four"] and any(extents["n"] > 128 for extents in new["four"])
    assert not [extents for trial in trials_of([{"n": 2}, {"n": 1}]) for extents in trial.new]
