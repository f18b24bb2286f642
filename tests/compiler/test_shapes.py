"""Several shapes of one network: what a build takes, and one weights file for all."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import flexcomp
from flexcomp.compiler import auto_shapes, builder, prepared
from flexcomp.compiler.builder import prepare_shapes
from flexcomp.compiler.lowering import lower_layers
from flexcomp.compiler.options import Request, options_of
from flexcomp.compiler.prepared import artifact_of_shapes
from flexcomp.compiler.rungs import plan_rungs
from flexcomp.errors import InputError
from flexcomp.program.program import EXTENTS
from flexcomp.program.program_bytes import encode_program, encode_shapes
from flexcomp.report import describe
from flexcomp.runtime import parse_budget
from tests.shaped import INPUTS, encoder, pictures, sums
from tests.uncompiled import UNCOMPILED, artifact

TARGET = "llvm -mcpu=x86-64-v3"


def shaped(model, input_shapes, shapes, **options):
    networks = prepare_shapes(
        model, TARGET, options_of(input_shapes=input_shapes, shapes=shapes, threads=1, **options), compiler=UNCOMPILED
    )
    return artifact_of_shapes(networks, Request(parse_budget("all")), lambda phase, done, total: None)


def test_one_row_and_many_have_one_weights_file(tmp_path):
    """Though a row alone takes other panels than many rows; only the rows of positions are of one length."""
    alone = artifact(encoder(128), TARGET, "all", threads=1, input_shapes={"ids": (1, 64)})
    both = shaped(encoder(128), INPUTS, {"n": [1, 64]})
    stored = [sum(array.nbytes for _, array, _ in one.weights) for one in (alone, both)]
    assert stored[1] - stored[0] == 128 * 4  # the row of the first position
    digest = both.write_weights(tmp_path / "both.weights")
    assert digest.file_nbytes == (tmp_path / "both.weights").stat().st_size
    assert [program.metadata[EXTENTS] for program in both.programs] == ['{"n": 64}', '{"n": 1}']


def test_contents_of_all_shapes_come_first():
    """So a shape's steps read neighbours in one load, and no bytes of other shapes."""
    both = shaped(encoder(), INPUTS, {"n": [16, 64]})
    weights = sorted(both.weights, key=lambda entry: entry[2])
    assert [array.shape for _, array, _ in weights[-2:]] == [(64, 64), (16, 64)]


def test_few_plans_are_for_less_than_every_shape_needs(monkeypatch):
    """A session's budget is enough for all of them."""
    given = []

    def planned(*args, usual_from, **options):
        given.append(usual_from)
        return plan_rungs(*args, usual_from=usual_from, **options)

    monkeypatch.setattr(prepared, "plan_rungs", planned)
    programs = shaped(encoder(128), INPUTS, {"n": [8, 16, 64]}).programs
    least = [one.rungs[0].budget for one in programs]
    assert least == sorted(set(least), reverse=True) and given == [least[0]] * 3


def test_fastest_kernels_are_compiled_while_other_shapes_are_lowered(monkeypatch):
    """All cores are busy then, and not when the last shape is lowered only."""
    begun: set[str] = set()

    class Noting(type(UNCOMPILED)):
        def begin(self, kernels, target):
            begun.update(kernels)

    early: list[set[str]] = []

    def lowered(*args, **options):
        early.append(set(begun))
        return lower_layers(*args, **options)

    monkeypatch.setattr(builder, "lower_layers", lowered)
    options = options_of(input_shapes=INPUTS, shapes={"n": [32, 64]}, threads=1)
    first, _ = prepare_shapes(encoder(64), TARGET, options, compiler=Noting())
    network, fastest = first.planning.network, first.planning.whole[-1].layers
    layers = [network.layers[index] for index in fastest]
    assert set(fastest) != set(range(len(fastest))), "the network has alternatives"
    assert early[1] >= set(first.code.of(network.kernels_of(layers), layers)[1])


def test_the_order_of_shapes_does_not_matter(tmp_path):
    made = []
    for extents in ([16, 64], [64, 16]):
        one = shaped(encoder(), INPUTS, {"n": extents})
        made.append(encode_shapes(one.programs, one.write_weights(tmp_path / "weights")) + (tmp_path / "weights").read_bytes())
    assert made[0] == made[1]


def test_one_shape_is_the_library_that_it_was(tmp_path):
    named = shaped(encoder(), INPUTS, {"n": [16]})
    plain = artifact(encoder(), TARGET, "all", threads=1, input_shapes={"ids": (1, 16)})
    digests = [one.write_weights(tmp_path / "weights") for one in (named, plain)]
    assert encode_shapes(named.programs, digests[0]) == encode_program(plain.program, digests[1])


def test_combinations_of_names():
    every = shaped(pictures(), {"x": (1, 3, "h", "w")}, {"h": [8, 16], "w": [8, 16]})
    some = shaped(pictures(), {"x": (1, 3, "h", "w")}, [{"h": 8, "w": 16}, {"w": 16, "h": 16}])
    assert [one.inputs[0].type.shape[2:] for one in every.programs] == [(16, 16), (16, 8), (8, 16), (8, 8)]
    assert [one.inputs[0].type.shape[2:] for one in some.programs] == [(16, 16), (8, 16)]


@pytest.mark.parametrize(
    ("input_shapes", "shapes", "message"),
    [
        (INPUTS, None, r"""input_shapes\['ids'\] has an extent "n": say what that may be, shapes=\{"n": \[16, 64\]\}"""),
        ({"ids": (1, 16)}, {"n": [16]}, 'shapes has extents for "n", but input_shapes has no names'),
        (INPUTS, {"m": [16]}, 'shapes has extents for "m", but input_shapes has "n"'),
        (None, {"n": [16]}, 'shapes has extents for "n", but input_shapes has no names'),
        ({"ids": ("b", "n")}, {"n": [16]}, 'has an extent "b", but shapes has none for it'),
        (INPUTS, {"n": []}, "must be a list of extents"),
        (INPUTS, {"n": 16}, "must be a list of extents"),
        (INPUTS, {"n": [16, 16]}, "has 16 twice"),
        (INPUTS, {"n": [0]}, "at least 1"),
        (INPUTS, {"n": [2.5]}, "whole number"),
        (INPUTS, {}, "shapes must be a dict"),
        (INPUTS, [], "shapes must be a dict"),
        (INPUTS, "n=16", "shapes must be a dict"),
        (INPUTS, {3: [16]}, "a name of an extent is a text"),
        (INPUTS, [{"n": 16}, {"n": 16}], "is there twice"),
        (INPUTS, [{"n": 16}, {"m": 16}], "have other names"),
        (INPUTS, {"n": range(1, 18)}, r"shapes are 17 \(17 of n\), and a library holds 16 at most"),
        ({"x": ("a", "b")}, {"a": range(1, 6), "b": range(1, 5)}, r"shapes are 20 \(5 of a × 4 of b\)"),
    ],
)
def test_what_contradicts_is_refused_before_work_begins(input_shapes, shapes, message):
    with pytest.raises(InputError, match=message):
        options_of(input_shapes=input_shapes, shapes=shapes)


@pytest.mark.parametrize("strict", [False, True])
def test_types_that_errors_choose_are_within_the_error_in_every_shape(monkeypatch, strict):
    if strict:  # where another shape errs, nothing is narrow
        monkeypatch.setattr(auto_shapes.OtherShape, "error_of", lambda self, types: 1.0)
    shapes, most = {"n": [16, 4]}, 0.01
    given = [{"ids": np.random.default_rng(n).integers(0, 300, (1, n))} for n in shapes["n"]]
    built = flexcomp.build(
        encoder(), input_shapes=INPUTS, shapes=shapes, weights="auto", max_error=most, calibration=given, kernels="smallest",
        threads=1, probe=False, progress=False,
    )  # fmt: skip
    said = [describe(program)["layers"] for program in built.programs]
    types = [[layer["weights_dtype"] for layer in layers if layer["weights_errors"]] for layers in said]
    assert types[0] == types[1] and (set(types[0]) == {"float32"}) == strict
    reference = onnxruntime.InferenceSession(encoder().SerializeToString())
    with built.session() as session:
        for one in given:
            (wanted,) = reference.run(None, one)
            assert abs(session.run(one)["y"] - wanted).max() <= (most + 1e-5) * abs(wanted).max()
    with pytest.raises(InputError, match="no calibration inputs have the shape n=4"):
        flexcomp.build(encoder(), input_shapes=INPUTS, shapes=shapes, weights="auto", calibration=given[:1], progress=False)


def test_a_state_has_one_shape():
    with pytest.raises(InputError, match=r'shapes: the state "x" is float32\[8×32\] for n=8, but float32\[4×32\] for n=4'):
        shaped(sums(), {"x": ("n", 32)}, {"n": [4, 8]}, state={"y": "x"})
