"""Embeddings by OpenAI's protocol: those of ONNX Runtime's rows, pooled as the model's folder says."""

from __future__ import annotations

import base64
import json

import numpy as np
import onnx
import onnxruntime
import pytest

import flexcomp
from flexcomp.compiler import read_model_folder
from flexcomp.errors import InputError
from flexcomp.generation import FolderTokenizer, read_pooling
from tests.exporters.genai import VOCABULARY
from tests.generation import model_folder
from tests.padded import masked_encoder
from tests.serving.servers import Server

TEXTS = ["the cat", "a", "the cat: a cat, the the the"]
MOST = 24


def write_pooling(folder, *modes: str, normalised: bool) -> None:
    kinds = ["models.Transformer", "models.Pooling", *["models.Normalize"] * normalised]
    listed = [{"type": f"sentence_transformers.{kind}", "path": f"{i}_Pooling" if i else ""} for i, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{mode}": True for mode in modes}))


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    model = masked_encoder(vocabulary=VOCABULARY)
    for port in [*model.graph.output, *model.graph.node]:
        for field in ("name", "output", "input"):
            if field == "name" and port.name == "rows":
                port.name = "last_hidden_state"
            elif field != "name" and hasattr(port, field):
                names = ["last_hidden_state" if name == "rows" else name for name in getattr(port, field)]
                del getattr(port, field)[:]
                getattr(port, field).extend(names)
    onnx.save(model, folder / "model.onnx")
    model_folder.write(folder)
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 512, "pad_token_id": 3}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": MOST}))
    write_pooling(folder, "mean_tokens", normalised=True)
    return folder


@pytest.fixture(scope="module")
def library(hub, tmp_path_factory):
    found = read_model_folder(hub)
    path = tmp_path_factory.mktemp("built") / "encoder.so"
    flexcomp.build(
        found.model, input_shapes=found.input_shapes, shapes=found.shapes, pad=found.pad, threads=1, probe=False, progress=False
    ).export_library(path)
    found.copy_texts(path.parent)
    return path


@pytest.fixture(scope="module")
def client(library, decoder_library):
    arguments = (library, f"chat={decoder_library}", "--budget", "24MB", "--threads", "1", "--log", "json")
    import openai  # takes a second

    with Server(*arguments) as server, openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def rows(hub):
    session = onnxruntime.InferenceSession(hub / "model.onnx", providers=["CPUExecutionProvider"])
    tokenizer = FolderTokenizer(hub)

    def rows(text):
        ids = np.array([tokenizer.encode(text) if isinstance(text, str) else text])
        return session.run(["last_hidden_state"], {"ids": ids, "mask": np.ones_like(ids)})[0][0]

    return rows


def test_a_folder_says_shapes_and_pads(hub, library):
    found = read_model_folder(hub)
    assert found.input_shapes == {"ids": (1, "tokens"), "mask": (1, "tokens")} and not found.state
    assert found.shapes == {"tokens": [16, MOST]} and found.pad == {"ids": 3, "mask": 0}
    assert read_model_folder(hub, context=9).shapes == {"tokens": [9]}
    assert read_pooling(library.parent) == read_pooling(hub)


@pytest.mark.parametrize("form", ["float", "base64"])
def test_embeddings(client, rows, form):
    found = client.embeddings.create(model="encoder", input=TEXTS, encoding_format=form)
    wanted = [rows(text).mean(0) for text in TEXTS]
    for index, (one, row) in enumerate(zip(found.data, wanted, strict=True)):
        vector = one.embedding if form == "float" else np.frombuffer(base64.b64decode(one.embedding), "<f4")
        np.testing.assert_allclose(vector, row / np.linalg.norm(row), atol=1e-5)
        assert one.index == index
    assert found.usage.prompt_tokens == sum(len(rows(text)) for text in TEXTS)
    assert [one.id for one in client.models.list()] == ["chat", "encoder"]
    assert client.models.retrieve("encoder").id == "encoder"


def test_tokens_and_one_text(client, rows):
    row = rows([5, 9, 2]).mean(0)
    for given in ([5, 9, 2], [[5, 9, 2]]):
        (one,) = client.embeddings.create(model="encoder", input=given).data
        np.testing.assert_allclose(one.embedding, row / np.linalg.norm(row), atol=1e-5)
    assert len(client.embeddings.create(model="encoder", input="the cat").data) == 1


@pytest.mark.parametrize(
    "options, status, reason",
    [
        ({"input": []}, 400, "a list of 1 to 2048"),
        ({"input": ""}, 400, r"input\[0\] must be a text"),
        ({"input": ["a", ""]}, 400, r"input\[1\] must be a text"),
        ({"input": [[1], [True]]}, 400, r"input\[1\] must be a text"),
        ({"input": [VOCABULARY]}, 400, "tokens are from 0 to"),
        ({"input": [-1]}, 400, "has the token -1"),
        ({"input": "x" * 25}, 400, "has 25 tokens, and the model takes 1 to 24"),
        ({"dimensions": 8}, 400, "'dimensions' is not supported"),
        ({"encoding_format": "hex"}, 400, "float or base64"),
        ({"extra_body": {"truncate": True}}, 400, "'truncate' is not known here"),
        ({"model": "chat"}, 400, "is a decoder"),
        ({"model": "other"}, 404, "no model"),
        ({"input": "x" * 10_000_000}, 413, "more than the"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_refused(client, options, status, reason):
    import openai

    with pytest.raises(openai.APIStatusError, match=reason) as raised:
        client.embeddings.create(**{"model": "encoder", "input": "a", **options})
    assert raised.value.status_code == status


@pytest.mark.parametrize(
    "modes, wanted",
    [
        (["mean_tokens"], lambda rows: rows.mean(0)),
        (["cls_token"], lambda rows: rows[0]),
        (["max_tokens"], lambda rows: rows.max(0)),
        (["lasttoken"], lambda rows: rows[-1]),
        (["mean_sqrt_len_tokens"], lambda rows: rows.sum(0) / len(rows) ** 0.5),
        (["mean_tokens", "cls_token"], lambda rows: np.concatenate([rows[0], rows.mean(0)])),
        ([], lambda rows: rows.mean(0)),
    ],
    ids=lambda value: "-".join(value) or "default" if isinstance(value, list) else "",
)
@pytest.mark.parametrize("normalised", [False, True])
def test_pooling(tmp_path, modes, wanted, normalised):
    write_pooling(tmp_path, *modes, normalised=normalised)
    rows = np.random.default_rng(0).normal(size=(5, 8)).astype("f4")
    expected = wanted(rows) / (np.linalg.norm(wanted(rows)) if normalised else 1)
    np.testing.assert_allclose(read_pooling(tmp_path).of(rows), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "modules, reason",
    [
        ([{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}], "a module 'Dense', which is not known"),
        ([{"type": "x.Pooling", "path": "../other"}], "a folder below its own"),
        ([3], "a folder below its own"),
        ({}, "is no JSON list"),
    ],
)
def test_pooling_that_is_not_known(tmp_path, modules, reason):
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(InputError, match=reason):
        read_pooling(tmp_path)


def test_a_mode_that_is_not_known(tmp_path):
    write_pooling(tmp_path, "weightedmean_tokens", normalised=False)
    with pytest.raises(InputError, match="pooling_mode_weightedmean_tokens, which is not known"):
        read_pooling(tmp_path)
