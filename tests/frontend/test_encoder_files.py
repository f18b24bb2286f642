"""An encoder with the part of its decoder that makes keys and values of the encoder's result."""

import numpy as np
import onnx
import onnxruntime
import pytest

import flexcomp
from flexcomp.errors import ModelError, UnsupportedModelError
from flexcomp.frontend import EncoderFiles
from flexcomp.frontend.onnx_model import read_onnx
from tests.exporters import encoding
from tests.exporters.encoding import LAYERS, Form

TEXT = Form()
NAMES = [f"{i}.encoder.{part}" for i in range(LAYERS) for part in ("key", "value")]
GIVEN = {"encoder_hidden_states": "last_hidden_state", "encoder_attention_mask": "attention_mask"}


def files(folder, form=TEXT, outputs=(), changed=None):
    encoding.write(folder, form)
    decoder = folder / f"decoder_model{'_merged' if form.merged else ''}.onnx"
    if changed is not None:
        model = onnx.load(decoder)
        changed(model)
        onnx.save(model, decoder)
    past = [f"past_key_values.{i}.decoder.key" for i in range(LAYERS)]
    made = {f"present.{name}": f"cross.{name}" for name in NAMES}
    return EncoderFiles(folder / "encoder_model.onnx", decoder, GIVEN, made | dict(outputs), past)


@pytest.mark.parametrize("form", [TEXT, Form(merged=True)], ids=["apart", "merged"])
def test_keys_and_values_of_a_text(tmp_path, form):
    model = files(tmp_path, form, {"encoder_hidden_states": "rows"})
    ids = np.int64([[3, 1, 4, 1, 5]])
    found = flexcomp.build(
        model, input_shapes={"input_ids": (1, 5), "attention_mask": (1, 5)}, threads=1, probe=False, kernels="smallest"
    )
    found.export_library(tmp_path / "encoder.so")
    with flexcomp.load(tmp_path / "encoder.so", budget="min") as session:
        outputs = session.run({"input_ids": ids, "attention_mask": np.ones_like(ids)})
    encoder, decoder = (
        onnxruntime.InferenceSession(one.SerializeToString(), providers=["CPUExecutionProvider"])
        for one in (encoding.encoder(form), encoding.decoder(form, False))
    )
    (rows,) = encoder.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    given = {"input_ids": np.int64([[0]]), "encoder_hidden_states": rows, "encoder_attention_mask": np.ones_like(ids)}
    wanted = decoder.run([f"present.{name}" for name in NAMES], given)
    np.testing.assert_allclose(outputs.pop("rows"), rows, rtol=1e-5, atol=1e-5)
    assert list(outputs) == [f"cross.{name}" for name in NAMES]
    for one, other in zip(outputs.values(), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_of_the_decoder_no_weight_is_read_that_is_not_needed(tmp_path):
    model = read_onnx(files(tmp_path))
    names = {tensor.name for tensor in model.proto.graph.initializer} | {*model.large}
    assert "cross/cross.0.key" in names and "cross/head" not in names and "cross/decoder.0.o" in names


def test_opsets_that_differ(tmp_path):
    def older(model):
        model.opset_import[0].version = 16

    with pytest.raises(ModelError, match=r"is of opset 17, and .* of 16: export both"):
        read_onnx(files(tmp_path, changed=older))


def test_keys_that_depend_on_tokens(tmp_path):
    def mixed(model):
        made = next(node for node in model.graph.node if "present.0.encoder.key" in node.output)
        token = onnx.helper.make_node("Cast", ["input_ids"], ["token"], to=onnx.TensorProto.FLOAT)
        model.graph.node.insert(0, token)
        made.op_type, made.input[:] = "Add", [made.input[0], "token"]

    with pytest.raises(UnsupportedModelError, match="depend on 'input_ids', too"):
        read_onnx(files(tmp_path, changed=mixed))


def test_an_output_that_is_missing(tmp_path):
    with pytest.raises(ModelError, match=r"has no output 'present\.9\.encoder\.key'"):
        read_onnx(files(tmp_path, outputs={"present.9.encoder.key": "k"}))


def test_a_condition_among_what_is_needed(tmp_path):
    def conditional(model):
        made = next(node for node in model.graph.node if "present.0.encoder.key" in node.output)
        (inner,) = made.input
        port = onnx.helper.make_tensor_value_info("inner", onnx.TensorProto.FLOAT, None)
        branch = onnx.helper.make_graph([onnx.helper.make_node("Identity", [inner], ["inner"])], "branch", [], [port])
        yes = onnx.helper.make_node("Constant", [], ["yes"], value=onnx.numpy_helper.from_array(np.array(True)))
        node = onnx.helper.make_node("If", ["yes"], list(made.output), "choice", then_branch=branch, else_branch=branch)
        model.graph.node.remove(made)
        model.graph.node.extend([yes, node])

    with pytest.raises(UnsupportedModelError, match=r"node 'choice' \(If\) computes the encoder's keys and values in a graph"):
        read_onnx(files(tmp_path, changed=conditional))
