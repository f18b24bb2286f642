"""Sessions of a decoder, and an oracle for it."""

import pytest

import flexcomp
from tests.exporters.genai import logits_after
from tests.generation.decoders import FORM


@pytest.fixture(scope="session")
def library(decoder_library):
    return decoder_library


@pytest.fixture(params=["min", "all"])
def session(library, request):
    with flexcomp.load(library, budget=request.param, threads=1) as opened:
        yield opened


@pytest.fixture(scope="session")
def following():
    return logits_after(FORM)
