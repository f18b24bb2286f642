"""A decoder out of a hub's folder, as a library with its tokenizer."""

from pathlib import Path

import flexcomp
from benchmarks.networks import graph
from flexcomp.compiler import read_model_folder
from tests.exporters import genai
from tests.exporters.genai import Form
from tests.generation import model_folder
from tests.kept import flexcomp_sources, made_folder

FORM = Form(layers=2, capacity=2048)
SIZES = [1, 4, 8]  # tokens that are taken at once


def kept(place: Path, form: Form = FORM) -> Path:
    """As `build`, but made once for all workers."""
    sources = (Path(__file__), Path(model_folder.__file__), Path(genai.__file__), Path(graph.__file__))
    of = (flexcomp_sources(), repr(form), *sources)
    return made_folder("decoder", of, lambda folder: build(folder, form), place / "kept") / "built" / "decoder.so"


def build(folder: Path, form: Form = FORM) -> Path:
    """The path of the library, with all files next to it."""
    path, found = folder / "built" / "decoder.so", read_model_folder(model_folder.write_model(folder, form))
    shapes = dict.fromkeys(found.shapes, SIZES)
    flexcomp.build(
        found.model, input_shapes=found.input_shapes, shapes=shapes, state=found.state, threads=1, probe=False
    ).export_library(path)
    found.copy_texts(path.parent)
    return path
