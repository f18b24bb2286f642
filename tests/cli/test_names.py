"""Names from models and libraries reach no terminal with characters that it would obey."""

from __future__ import annotations

from dataclasses import replace

import onnx
import pytest
from onnx import TensorProto, helper

import flexcomp
from flexcomp.printable import printable
from flexcomp.program import WeightsDigest
from flexcomp.program.program_bytes import decode_program
from tests.by_hand import encode_program
from tests.cli import calls
from tests.runtime import tiny

EVIL = "a\x1b]0;title\x07\x9b2J\u202eb"


def test_what_a_terminal_obeys_is_an_escape():
    assert printable(EVIL) == r"a\x1b]0;title\x07\x9b2J\u202eb"
    assert printable("/head/é ü → 注\ue000") == "/head/é ü → 注\ue000"


@pytest.fixture(scope="module")
def model():
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (4, 8)) for name in ("x", "y"))
    nodes = [helper.make_node("Softmax", ["x"], ["t"], name=EVIL), helper.make_node("Relu", ["t"], ["y"], name=EVIL + "2")]
    return helper.make_model(helper.make_graph(nodes, EVIL, [x], [y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def obeyed(text: str) -> list[str]:
    return [c for c in text if c in "\x1b\x07\x9b\u202e"]


def test_tables_and_messages_hold_escapes(model, tmp_path, capsys):
    artifact = flexcomp.build(model, probe=False)
    assert not obeyed(artifact.summary()) and not obeyed(repr(artifact)) and r"\x1b]0;title" in artifact.summary()
    with pytest.raises(flexcomp.BudgetError) as refused:
        flexcomp.build(model, budget=64, probe=False)
    assert not obeyed(str(refused.value)) and r"\x1b" in str(refused.value)
    flexcomp.build(model, probe=False, progress=True)
    assert not obeyed("".join(capsys.readouterr()).replace("\x1b[", ""))


def test_the_command_line_escapes_what_errors_hold(model, tmp_path):
    model.graph.node[0].op_type = "NonZero"
    path = tmp_path / "odd\x1b]0;.onnx"
    onnx.save(model, path)
    done = calls.call("build", path, "-o", tmp_path / "o.so")
    assert done.returncode == 3 and not obeyed(done.stdout + done.stderr)


def test_a_hostile_library_has_printable_names():
    program = tiny.make_program(2, "tiny_")
    layers = tuple(replace(layer, name=EVIL + layer.name, op=EVIL) for layer in program.layers)
    program = replace(program, model=EVIL, layers=layers)
    read = decode_program(encode_program(program, WeightsDigest(4096, 0, program.weights_nbytes, ())))
    assert not obeyed(read.model + "".join(layer.name + layer.op for layer in read.layers))
