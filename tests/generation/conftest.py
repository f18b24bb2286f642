"""Sessions of a decoder, and an oracle for it."""

import pytest

import flexcomp
from flexcomp.generation.pace import Pace
from tests.exporters.genai import logits_after
from tests.generation.decoders import FORM


@pytest.fixture(scope="session")
def library(decoder_library):
    return decoder_library


@pytest.fixture
def even_pace(monkeypatch):
    """All inferences take equally long, however long they take."""
    monkeypatch.setattr(Pace, "note", lambda self, size, before, seconds: setattr(self, "_last", [1.0] if before else []))
    monkeypatch.setattr(Pace, "seconds", lambda self, size, changed=False: 1.0)


@pytest.fixture(params=["min", "all"])
def session(library, request):
    with flexcomp.load(library, budget=request.param, threads=1) as opened:
        yield opened


@pytest.fixture(scope="session")
def following():
    return logits_after(FORM)
