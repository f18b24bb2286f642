"""A decoder out of a hub's folder, as a library with its tokenizer, built once."""

import numpy as np
import onnxruntime
import pytest

import flexcomp
from flexcomp.compiler import read_model_folder
from tests.exporters.genai import DEPTH, SHARED, Form, decoder
from tests.generation import model_folder

FORM = Form(layers=2, capacity=128)
SIZES = [1, 4, 8]


def caches(form: Form) -> dict[str, str]:
    return {f"present.{i}.{part}": f"past_key_values.{i}.{part}" for i in range(form.layers) for part in ("key", "value")}


@pytest.fixture(scope="session")
def hub(tmp_path_factory):
    """The snapshot in a hub's cache."""
    return model_folder.write_model(tmp_path_factory.mktemp("hub"), FORM)


@pytest.fixture(scope="session")
def library(hub, tmp_path_factory):
    path, found = tmp_path_factory.mktemp("generation") / "decoder.so", read_model_folder(hub)
    shapes = dict.fromkeys(found.shapes, SIZES)
    flexcomp.build(
        found.model, input_shapes=found.input_shapes, shapes=shapes, state=found.state, threads=1, probe=False
    ).export_library(path)
    found.copy_texts(path.parent)
    return path


@pytest.fixture(params=["min", "all"])
def session(library, request):
    with flexcomp.load(library, budget=request.param, threads=1) as opened:
        yield opened


@pytest.fixture(scope="session")
def following():
    """Logits of the token after a sequence, by ONNX Runtime, without anything kept."""
    model = decoder(FORM, None)
    opened = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    empty = {name: np.zeros((1, SHARED, FORM.capacity, DEPTH), "float32") for name in caches(FORM).values()}

    def logits(sequence):
        mask = (np.arange(FORM.capacity) < len(sequence)).astype("int64")[None]
        return opened.run(["logits"], {"input_ids": np.array([sequence]), "attention_mask": mask, **empty})[0][0, -1]

    return logits
