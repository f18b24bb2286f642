"""Operators of com.microsoft that ONNX Runtime's optimiser and tools write, as the graphs of ONNX operators that they mean.

So passes fuse them as they fuse other exports.
Definitions are those of ONNX Runtime's documentation (ContribOperators.md).
"""

from __future__ import annotations

from flexcomp.frontend.contrib.by_shape import DEFINITIONS as DEFINED_BY_SHAPE
from flexcomp.frontend.contrib.by_shape import define_by_shape
from flexcomp.frontend.contrib.embeddings import DEFINITIONS as _EMBEDDINGS
from flexcomp.frontend.contrib.gelus import DEFINITIONS as _GELUS
from flexcomp.frontend.contrib.norms import DEFINITIONS as _NORMS
from flexcomp.frontend.contrib.norms import adopt_norms
from flexcomp.frontend.contrib.products import DEFINITIONS as _PRODUCTS

DEFINITIONS = {**_EMBEDDINGS, **_GELUS, **_NORMS, **_PRODUCTS}

__all__ = ["DEFINED_BY_SHAPE", "DEFINITIONS", "adopt_norms", "define_by_shape"]
