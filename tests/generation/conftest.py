"""Sessions of a decoder, and an oracle for it."""

import numpy as np
import onnxruntime
import pytest

import flexcomp
from tests.exporters.genai import DEPTH, SHARED, Form, decoder
from tests.generation.decoders import FORM


def caches(form: Form) -> dict[str, str]:
    return {f"present.{i}.{part}": f"past_key_values.{i}.{part}" for i in range(form.layers) for part in ("key", "value")}


@pytest.fixture(scope="session")
def library(decoder_library):
    return decoder_library


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
