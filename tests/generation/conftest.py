"""Decoders as libraries, each built once."""

import numpy as np
import onnxruntime
import pytest

import flexcomp
from tests.exporters.genai import DEPTH, SHARED, Form, decoder

FORM = Form(layers=2, capacity=24)
SIZES = [1, 4, 8]


def caches(form: Form) -> dict[str, str]:
    return {f"present.{i}.{part}": f"past_key_values.{i}.{part}" for i in range(form.layers) for part in ("key", "value")}


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("generation") / "decoder.so"
    flexcomp.build(
        decoder(FORM, None), input_shapes={"input_ids": (1, "s")}, shapes={"s": SIZES}, state=caches(FORM), threads=1, probe=False
    ).export_library(path)
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
