"""docs/exporters.md, made of the networks that the tests build: `python -m tests.exporters.table`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from .attention import ADDITIVE, ATTENTION, BY_POSITION, RELATIONS
from .rows import ACTIVATIONS, IMAGES, NORMS

PAGE = Path(__file__).parents[2] / "docs" / "exporters.md"
HEAD = """# Exporters

How flexcomp computes the attention, norms and activations that exporters write: torch 2.13 (TorchScript, `dynamo=False`, which
optimum's exports use too, and `dynamo=True`) with transformers 5, tf2onnx 1.17 with Keras 3, paddle2onnx 2.1, and ONNX Runtime's
optimiser. `tests/exporters` builds a small network of each structure that is fused, compares the outputs with ONNX Runtime's, and
checks the layers and the smallest budget. `python -m tests.exporters.table` writes this page.
"""
_SECTIONS = {
    "One attention kernel": ATTENTION,
    "One attention kernel, scores by position in its scratch": BY_POSITION,
    "One kernel for scores, no tensor of pairs by width": ADDITIVE,
    "Products of single objects, then sums; no tensor of concatenated pairs": RELATIONS,
    "One kernel for rows": NORMS,
    "Statistics, then one elementwise kernel; no copy in another layout": IMAGES,
    "Part of the layer before": ACTIVATIONS,
}
_OTHERS = {
    ("torch", "all pairs added or subtracted, then a layer"): "not split: large products lose the digits of a small difference",
    ("tf2onnx", "GELU with the error function"): "refused by name: Erfc is no operator of ONNX",
    ("all", "rotary embeddings"): "elementwise kernels; attention reads their result in place",
    ("ONNX Runtime's optimiser", "EmbedLayerNormalization"): "embeddings, then one kernel for rows",
    ("ONNX Runtime's optimiser", "RotaryEmbedding"): "as rotary embeddings of all",
    ("torch, transformers", "StaticCache: rows scattered to cache_position"): (
        "one attention kernel over the valid places, with `state=`"
    ),
    ("torch, optimum", "caches that grow: Concat of past and new rows"): (
        "one attention kernel over a cache of a fixed capacity, with `state=`"
    ),
    ("ONNX Runtime GenAI's model builder", "GroupQueryAttention, also with windows or capped scores"): (
        "one attention kernel over a cache of a fixed capacity"
    ),
}


def table() -> str:
    """The page."""
    return HEAD + "".join(_section(title, cases) for title, cases in _SECTIONS.items()) + _others()


def _section(title: str, cases: Iterable[tuple[str, str]]) -> str:
    structures: dict[str, list[str]] = {}
    for exporter, structure in cases:
        structures.setdefault(exporter, []).append(structure)
    return f"\n## {title}\n\n" + "".join(f"- {exporter}: {'; '.join(names)}\n" for exporter, names in structures.items())


def _others() -> str:
    rows = [f"| {exporter} | {structure} | {text} |\n" for (exporter, structure), text in _OTHERS.items()]
    return "\n## Others\n\n| exporter | structure | computed by |\n| --- | --- | --- |\n" + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(table())
