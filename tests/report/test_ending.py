"""What is said when a network has been built."""

from dataclasses import replace
from pathlib import Path

import pytest

from flexcomp.report import closing_lines
from flexcomp.runtime import MINIMUM, Budget, note_minimum, parse_budget
from tests.compiler.small import network
from tests.uncompiled import planned


@pytest.fixture(scope="module")
def program():
    return planned(network(), "llvm -mcpu=x86-64-v3")


@pytest.mark.parametrize(
    ("library", "budget", "here", "command"),
    [
        ("tiny.so", "100%", True, "flexcomp run tiny.so --budget 100%"),
        ("tiny.so", None, True, "flexcomp run tiny.so --budget min"),  # 10 % of it is less than the smallest
        ("-tiny.so", "min", True, "flexcomp run ./-tiny.so --budget min"),
        ("tiny.so", None, False, "flexcomp package tiny.so -o for-device.tar.gz"),
        ("tiny.o", None, False, "cc program.c tiny.o $(pkg-config --cflags --libs flexcomp-static)"),
    ],
)
def test_what_to_type_next_is_possible(program, library, budget, here, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for kind in (".so", ".o", ".weights"):
        Path(library).with_suffix(kind).touch()
    assert f"next: {command}" in closing_lines([program], Path(library), parse_budget(budget), here)


@pytest.mark.parametrize("layer", ["conv2d.3[0:14]", "conv2d.3[0:14] (ONNX node /stem: a/Conv)", "conv2d.3"])
def test_the_layer_that_sets_the_smallest_budget_has_its_whole_name(program, layer, tmp_path):
    for kind in ("so", "weights"):
        (tmp_path / f"tiny.{kind}").touch()
    said = {MINIMUM: note_minimum(layer, {"activations": 4096})}
    lines = closing_lines([replace(program, metadata=program.metadata | said)], tmp_path / "tiny.so", Budget())
    assert lines[1].endswith(f", set by layer {layer}")
