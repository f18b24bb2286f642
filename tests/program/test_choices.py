"""The record of what could compute a layer, and why it is computed as it is."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from flexcomp.errors import ArtifactError
from flexcomp.program.choices import KEY, Candidate, read, reasons, record, second_forms_nbytes
from flexcomp.program.program import Preparation
from flexcomp.program.program_bytes import decode_program
from flexcomp.program.weights_file import write_weights
from flexcomp.report.facts import describe
from flexcomp.report.tables import as_text, choice_table
from tests.by_hand import encode_program
from tests.network.variants import network
from tests.uncompiled import planned


@pytest.fixture(scope="module")
def program():
    """With weights for every kernel, of which some are larger than others."""
    return planned(network(), threads=1, store="prepared")


def layer(program, name: str) -> int:
    return next(i for i, layer in enumerate(program.layers) if layer.name == name)


def test_the_fastest_of_each_kind_is_recorded(program):
    candidates = read(program).candidates[layer(program, "conv2d.2")]
    families = [" ".join(candidate.kernel.split()[:2]) for candidate in candidates]
    assert families[0].startswith("winograd F(4)") and any(name.startswith("winograd F(2)") for name in families)
    assert sum(name.startswith("direct") for name in families) == 1
    assert [candidate.seconds for candidate in candidates] == sorted(candidate.seconds for candidate in candidates)
    assert all(candidate.weights_nbytes > 0 for candidate in candidates)


def test_what_was_chosen_is_what_its_layer_says(program):
    choices = read(program)
    for own, candidates in zip(program.layers, choices.candidates, strict=True):
        if candidates:
            (found,) = [candidate for candidate in candidates if candidate.kernel == own.implementation]
            assert (found.scratch_nbytes, found.weights_nbytes) == (own.scratch_nbytes, own.weights.nbytes)


def test_every_rung_has_one_reason_for_every_choice(program):
    why = reasons(program, read(program))
    names = ("conv2d.3", "conv2d.3.winograd", "conv2d.3.winograd.F(4)")
    direct, balanced, fastest = (why[layer(program, name)] for name in names)
    bands = [why[i] for i, own in enumerate(program.layers) if own.band_of in names]
    for number in range(len(program.rungs)):
        banded = any(band[number] for band in bands)
        assert [*(reason[number] is not None for reason in (direct, balanced, fastest)), banded].count(True) == 1
    assert "winograd does not fit" in direct and fastest[-1] == "fastest"
    assert any(reason and reason.startswith("winograd F(4)") and reason.endswith("does not fit") for reason in balanced)
    assert any(reason and reason.startswith("fewer bytes to load than winograd F(4)") for reason in balanced)


def test_what_is_prepared_is_not_loaded(program):
    """All kernels of a layer read the bytes of one: the others are told from each other by what is made of these."""
    layers = list(program.layers)
    stored = layers[layer(program, "conv2d.3")]
    made = Preparation("prepare", stored.panel.type, 1)
    for index, own in enumerate(layers):
        if own.name.startswith("conv2d.3.winograd"):
            layers[index] = replace(own, weights=replace(own.weights, preparation=made))
    why = reasons(replace(program, layers=tuple(layers)), read(program))
    said = [reason for name in ("conv2d.3", "conv2d.3.winograd") for reason in why[layer(program, name)] if reason]
    assert any(reason.startswith("less to prepare than winograd") for reason in said)
    assert not any(reason.startswith("fewer bytes to load") for reason in said)


def test_second_forms_are_counted(program):
    """Of every layer all that is stored but the smallest; what is prepared is stored nowhere."""
    stored = {name: layer for name, layer in ((one.name, one) for one in program.layers) if layer.weights and not layer.band_of}
    second = [one.weights.nbytes for name, one in stored.items() if "." in name.removeprefix("conv2d.")]
    assert second_forms_nbytes(program) == sum(second) > 0
    made = Preparation("prepare", next(iter(stored.values())).panel.type, 1)
    layers = tuple(
        replace(own, weights=replace(own.weights, preparation=made)) if own.weights and own.weights.nbytes in second else own
        for own in program.layers
    )
    assert second_forms_nbytes(replace(program, layers=layers)) == 0


def test_the_record_is_small_and_survives_the_file(program, tmp_path):
    assert len(program.metadata[KEY]) < 1000
    digest = write_weights(tmp_path / "w", [("all", np.zeros(program.weights_nbytes, "u1"))])
    assert read(decode_program(encode_program(program, digest))) == read(program)


def test_equal_offers_are_recorded_once():
    candidates = [Candidate("direct 6×64", 2e-6, 0, 64), Candidate("winograd F(2)", 1e-6, 10, 128)]
    facts = json.loads(record("auto", [candidates, [], list(reversed(candidates))])[KEY])
    assert facts["layers"] == [0, -1, 0] and len(facts["offers"]) == 1
    assert facts["offers"][0][0] == ["winograd F(2)", 1.0, 10, 128]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"by":"auto","offers":[],"layers":[0]}'])
def test_a_malformed_record_is_refused(program, text):
    with pytest.raises(ArtifactError, match="record of the choice of kernels is malformed"):
        read(replace(program, metadata={KEY: text}))


def test_a_record_without_the_kernel_that_is_used_is_refused(program):
    text = re.sub(r"direct \d+×\d+", "direct 1×1", program.metadata[KEY])
    broken = replace(program, metadata={KEY: text})
    with pytest.raises(ArtifactError, match=r"lacks direct .* of layer conv2d"):
        describe(broken)


def test_a_library_without_a_record_has_no_candidates(program):
    facts = describe(replace(program, metadata={}))
    assert choice_table(facts) is None
    assert all(layer["candidates"] == [] for layer in facts["layers"])


def test_the_table_says_what_was_passed_over(program):
    text = as_text(choice_table(describe(program)), width=200)
    assert "slower than direct, and no smaller" in text
    assert "does not fit (" in text and "fewer bytes to load than winograd F(4)" in text
