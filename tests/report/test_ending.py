"""What is said when a network has been built."""

from dataclasses import replace

import pytest

import flexcomp
from flexcomp.report import closing_lines
from flexcomp.runtime import MINIMUM, Budget, note_minimum
from tests.compiler.test_build import network


@pytest.fixture(scope="module")
def program():
    return flexcomp.build(network(), target="llvm -mcpu=x86-64-v3").program


@pytest.mark.parametrize("layer", ["conv2d.3[0:14]", "conv2d.3[0:14] (ONNX node /stem: a/Conv)", "conv2d.3"])
def test_the_layer_that_sets_the_smallest_budget_has_its_whole_name(program, layer, tmp_path):
    for kind in ("so", "weights"):
        (tmp_path / f"tiny.{kind}").touch()
    said = {MINIMUM: note_minimum(layer, {"activations": 4096})}
    lines = closing_lines(replace(program, metadata=program.metadata | said), tmp_path / "tiny.so", Budget())
    assert lines[1].endswith(f", set by layer {layer}")
