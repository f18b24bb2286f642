"""Folders as hubs lay them out become arguments of a build; what is missing or does not fit is said before the build."""

import json

import onnx
import pytest
from tokenizers import Tokenizer

from flexcomp.compiler import read_model_folder
from flexcomp.errors import InputError, ModelError
from tests.cli import calls
from tests.exporters import encoding, growing
from tests.exporters.genai import DEPTH, SHARED, VOCABULARY, Form
from tests.generation import model_folder

CAPACITY = 64


@pytest.fixture
def hub(tmp_path):
    return model_folder.write_model(tmp_path, Form(capacity=CAPACITY))


def settle(hub, name="config.json", **settings):
    (hub / name).write_text(json.dumps(settings))


def test_a_folder_says_shapes_and_state(hub):
    found = read_model_folder(hub)
    cache = (1, SHARED, CAPACITY, DEPTH)
    assert found.model == hub / "model.onnx"
    assert found.input_shapes == {
        "input_ids": (1, "tokens"), "attention_mask": (1, CAPACITY),
        "past_key_values.0.key": cache, "past_key_values.0.value": cache,
    }  # fmt: skip
    assert found.shapes == {"tokens": [1, 16]}
    assert found.state == {f"present.0.{part}": f"past_key_values.0.{part}" for part in ("key", "value")}
    settings = {"tokenizer_config.json", "config.json", "generation_config.json"}
    assert {*found.texts} == {"tokenizer.json", *settings}


def test_the_context(hub):
    settle(hub, max_position_embeddings=100_000)
    assert read_model_folder(hub).input_shapes["attention_mask"] == (1, 2048)
    assert read_model_folder(hub, context=9).input_shapes["attention_mask"] == (1, 9)
    settle(hub, text_config={"max_position_embeddings": 500})
    found = read_model_folder(hub)
    assert found.input_shapes["attention_mask"] == (1, 500) and found.shapes == {"tokens": [1, 16, 128]}
    with pytest.raises(InputError, match="501 tokens is more than the 500 that"):
        read_model_folder(hub, context=501)


def test_chunks_whose_logits_take_too_much_are_left_out(hub):
    settle(hub, max_position_embeddings=2048, vocab_size=150_000)
    model = onnx.load(hub / "model.onnx", load_external_data=False)
    for extent in model.graph.output[0].type.tensor_type.shape.dim:
        extent.dim_param = "d"
    (hub / "model.onnx").unlink()
    onnx.save(model, hub / "model.onnx")
    assert read_model_folder(hub).shapes == {"tokens": [1, 16]}


def test_several_models(hub):
    (hub / "onnx").mkdir()
    (hub / "onnx" / "model_q4.onnx").symlink_to(hub / "model.onnx")
    with pytest.raises(InputError, match=r"several models, model.onnx, onnx/model_q4.onnx: choose one with --onnx"):
        read_model_folder(hub)
    assert read_model_folder(hub, "onnx/model_q4.onnx").model.name == "model_q4.onnx"
    with pytest.raises(InputError, match=r"has no file other.onnx: there is model.onnx, onnx/model_q4.onnx"):
        read_model_folder(hub, "other.onnx")
    settle(hub, "genai_config.json", model={"decoder": {"filename": "onnx/model_q4.onnx"}, "context_length": 32})
    found = read_model_folder(hub)
    assert found.model.name == "model_q4.onnx" and found.input_shapes["attention_mask"] == (1, 32)


@pytest.mark.parametrize(
    "missing, reason",
    [
        ("tokenizer.json", "has no tokenizer, and tokenizer.json is needed"),
        ("model.onnx", "has no .onnx file"),
    ],
)
def test_a_file_that_is_missing(hub, missing, reason):
    (hub / missing).unlink()
    with pytest.raises(InputError, match=reason):
        read_model_folder(hub)


def test_files_that_are_none(hub):
    (hub / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config.json is no JSON"):
        read_model_folder(hub)
    settle(hub)
    (hub / "model.onnx").unlink()
    (hub / "model.onnx").write_text("x")
    with pytest.raises(ModelError, match=r"model.onnx is not an ONNX model"):
        read_model_folder(hub)


def test_a_tokenizer_of_another_model(hub):
    tokenizer = Tokenizer.from_file(str(hub / "tokenizer.json"))
    tokenizer.add_tokens([f"more{i}" for i in range(VOCABULARY)])
    tokenizer.save(str(hub / "tokenizer.json"))
    with pytest.raises(InputError, match=f"and the decoder {VOCABULARY}: it is another model's"):
        read_model_folder(hub)


@pytest.mark.parametrize(
    "before, after, reason",
    [
        ("present.0.key", "other", "no output follows the input 'past_key_values.0.key'"),
        ("logits", "scores", "none named logits"),
    ],
)
def test_a_network_that_is_no_decoder(hub, before, after, reason):
    model = onnx.load(hub / "model.onnx", load_external_data=False)
    for port in model.graph.output:
        port.name = after if port.name == before else port.name
    (hub / "model.onnx").unlink()
    onnx.save(model, hub / "model.onnx")
    with pytest.raises(InputError, match=reason):
        read_model_folder(hub)


def test_files_of_another_model_stay(hub, tmp_path):
    found, out = read_model_folder(hub), tmp_path / "out"
    out.mkdir()
    found.copy_texts(out)
    found.require_room_for_texts(out)
    found.require_room_for_texts(hub)  # where they are
    (out / "tokenizer_config.json").write_text("{}")
    done = calls.call("build", hub, "-o", out / "decoder.so")
    assert done.returncode == 2 and "tokenizer_config.json differs from" in done.stderr


def test_options_of_folders_alone(hub):
    done = calls.call("build", hub / "model.onnx", "-o", hub / "out.so", "--context", "8")
    assert done.returncode == 2 and "are for a model's folder" in done.stderr


@pytest.fixture
def pair(tmp_path):
    encoding.write(tmp_path, encoding.Form())
    model_folder.write(tmp_path)
    settle(tmp_path, n_positions=24, pad_token_id=3)
    return tmp_path


def test_an_encoder_decoder(pair):
    found = read_model_folder(pair)
    assert found.model.name == "decoder_with_past_model.onnx" and not found.shapes
    assert found.input_shapes["input_ids"] == (1, 1) and found.input_shapes["encoder_attention_mask"] == (1, 24)
    assert found.state["present.0.decoder.key"] == "past_key_values.0.decoder.key"
    assert found.state["past_key_values.1.encoder.value"] == "past_key_values.1.encoder.value"
    part = found.encoder
    assert (part.model.encoder.name, part.model.decoder.name) == ("encoder_model.onnx", "decoder_model.onnx")
    assert part.input_shapes == dict.fromkeys(("input_ids", "attention_mask"), (1, "tokens"))
    assert part.shapes == {"tokens": [16, 24]} and part.pad == {"input_ids": 3, "attention_mask": 0}
    assert [one.name for one in found.libraries(pair / "t5.so")] == ["t5.so", "t5.encoder.so"]
    assert read_model_folder(pair, context=9).encoder.shapes == {"tokens": [9]}


def test_an_encoder_decoder_is_chosen_by_its_decoder(pair):
    (pair / "onnx").mkdir()
    for name in ("encoder_model", "decoder_model_merged"):
        (pair / "onnx" / f"{name}_q4.onnx").symlink_to(pair / "encoder_model.onnx")
    encoding.write(pair, encoding.Form(merged=True))
    assert read_model_folder(pair).model.name == "decoder_model_merged.onnx"
    assert read_model_folder(pair, "decoder_with_past_model.onnx").encoder.model.decoder.name == "decoder_model.onnx"
    with pytest.raises(InputError, match="none named logits"):  # the link leads to an encoder
        read_model_folder(pair, "onnx/decoder_model_merged_q4.onnx")
    (pair / "onnx" / "decoder_model_merged_q4.onnx").unlink()
    with pytest.raises(InputError, match=r"decoder_model_merged_q4.onnx, or decoder_model_q4.onnx and .* is needed"):
        read_model_folder(pair, "onnx/encoder_model_q4.onnx")


def test_an_encoder_decoder_without_caches_or_a_mask(pair):
    encoding.write(pair, encoding.Form(hides=False))
    with pytest.raises(InputError, match="has no input encoder_attention_mask"):
        read_model_folder(pair)
    (pair / "decoder_with_past_model.onnx").unlink()
    with pytest.raises(InputError, match="has no decoder with caches next to it"):
        read_model_folder(pair)


def test_an_encoder_of_sound(pair):
    encoding.write(pair, encoding.Form(sound=True))
    with pytest.raises(InputError, match="num_mel_bins and max_source_positions"):
        read_model_folder(pair)
    settle(pair, max_target_positions=24, num_mel_bins=6, max_source_positions=10)
    found = read_model_folder(pair)
    assert found.encoder.input_shapes == {"input_features": (1, 6, 20)} and not found.encoder.shapes
    assert found.input_shapes["past_key_values.0.encoder.key"] == (1, encoding.HEADS, 10, encoding.DEPTH)
    assert found.input_shapes["past_key_values.0.decoder.key"] == (1, encoding.HEADS, 24, encoding.DEPTH)


def test_a_merged_decoder(hub):
    """Inputs of the branch without caches are none of the network."""
    (hub / "model.onnx").unlink()
    onnx.save(growing.merged(growing.decoder(growing.Form())), hub / "model.onnx")
    found = read_model_folder(hub)
    assert {*found.input_shapes} == {"input_ids", "attention_mask", "position_ids", *found.state.values()}
