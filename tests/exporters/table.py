"""docs/exporters.md, made of the networks that the tests build: `python -m tests.exporters.table`."""

from __future__ import annotations

from pathlib import Path

from .attention import ADDITIVE, ATTENTION, BY_POSITION, RELATIONS
from .rows import ACTIVATIONS, IMAGES, NORMS

PAGE = Path(__file__).parents[2] / "docs" / "exporters.md"
HEAD = """# Exporters

How each exporter writes attention, norms and activations, and how they are computed. `tests/exporters` has a small network for
every row that is fused: a test builds it, compares it with ONNX Runtime, and looks at its layers and its
smallest budget. The forms are those of torch 2.13 (`dynamo=False`, which optimum's exports use too, and `dynamo=True`) with
transformers 5, tf2onnx 1.17 with Keras 3, and paddle2onnx 2.1. Made by `python -m tests.exporters.table`; not edited by hand.
"""
_OTHERS = {
    ("torch", "all pairs added or subtracted, then a layer"): "not split: large products lose the digits of a small difference",
    ("tf2onnx", "GELU with the error function"): "refused by name: Erfc is no operator of ONNX",
    ("all", "rotary embeddings"): "elementwise kernels; attention reads their result in place",
    ("ONNX Runtime's optimiser", "EmbedLayerNormalization"): "embeddings, then one kernel for rows",
    ("ONNX Runtime's optimiser", "RotaryEmbedding"): "as rotary embeddings of all",
    ("ONNX Runtime GenAI's model builder", "GroupQueryAttention, also with windows or capped scores"): (
        "one attention kernel over a cache of a fixed capacity"
    ),
}


def table() -> str:
    """The page."""
    rows = [(*case, "one attention kernel") for case in ATTENTION]
    rows += [(*case, "one attention kernel, scores by position in its scratch") for case in BY_POSITION]
    rows += [(*case, "one kernel for scores, no tensor of pairs by width") for case in ADDITIVE]
    rows += [(*case, "products of single objects, then sums; no tensor of concatenated pairs") for case in RELATIONS]
    rows += [(*case, "one kernel for rows") for case in NORMS]
    rows += [(*case, "statistics, then one elementwise kernel; no copy in another layout") for case in IMAGES]
    rows += [(*case, "part of the layer before it") for case in ACTIVATIONS]
    rows += [(*case, text) for case, text in _OTHERS.items()]
    lines = ["| exporter | structure | computed by |", "| --- | --- | --- |", *(f"| {' | '.join(row)} |" for row in rows)]
    return HEAD + "\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(table())
