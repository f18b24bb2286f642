"""Weights that no rung uses are not in the file, and what is used lies where the plans look for it."""

from dataclasses import replace

import numpy as np
import pytest

import flexcomp
from flexcomp.compiler.compact import drop_unused
from flexcomp.program import PAGE, Read
from tests.network.variants import network


def image(program, weights) -> np.ndarray:
    """The data section of the weights file."""
    data = np.zeros(program.weights_nbytes, np.uint8)
    for _, array, offset in weights:
        data[offset : offset + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return data


def only(program, number: int):
    """The program with one of its rungs and the layers that it uses."""
    rung = program.rungs[number]
    used = sorted({step.layer for step in rung.steps})
    steps = tuple(replace(step, layer=used.index(step.layer)) for step in rung.steps)
    return replace(program, layers=tuple(program.layers[i] for i in used), rungs=(replace(rung, steps=steps),))


@pytest.fixture(scope="module")
def artifact() -> flexcomp.Artifact:
    """With weights for every kernel, of which no rung uses all."""
    return flexcomp.build(network(), threads=1, store="prepared")


@pytest.mark.parametrize("rung", [0, -1])
def test_a_program_of_one_rung_keeps_only_its_weights(artifact, rung):
    program = only(artifact.program, rung)
    (small,), weights = drop_unused([program], artifact.weights)
    needed = sum({layer.weights.offset: layer.weights.nbytes for layer in small.layers if layer.weights}.values())
    assert needed <= small.weights_nbytes < artifact.program.weights_nbytes
    assert small.weights_nbytes - needed < 3 * PAGE
    before, after = image(program, artifact.weights), image(small, weights)
    for one, other in zip(program.layers, small.layers, strict=True):
        if one.weights:
            at, moved, nbytes = one.weights.offset, other.weights.offset, one.weights.nbytes
            assert moved % PAGE == at % PAGE
            np.testing.assert_array_equal(after[moved : moved + nbytes], before[at : at + nbytes])


def test_loads_move_with_the_weights_they_read(artifact):
    program = only(artifact.program, -1)
    (small,), _ = drop_unused([program], artifact.weights)
    (old,), (new,) = program.rungs, small.rungs
    reads = zip(old.tapes.operations, new.tapes.operations, strict=True)
    sources = {one.source: moved.source for one, moved in reads if isinstance(one, Read)}
    for one, other in zip(program.layers, small.layers, strict=True):
        source = one.weights.offset // PAGE * PAGE if one.weights else None
        if source in sources:
            assert sources[source] == other.weights.offset // PAGE * PAGE
    assert all(0 <= one.source < small.weights_nbytes for one in new.tapes.operations if isinstance(one, Read))


def test_the_file_of_an_artifact_holds_nothing_else(artifact):
    (program,), weights = drop_unused([artifact.program], artifact.weights)
    assert (program, [offset for *_, offset in weights]) == (artifact.program, [offset for *_, offset in artifact.weights])
