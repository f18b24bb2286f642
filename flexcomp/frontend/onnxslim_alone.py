"""onnxslim, imported without its inference of symbolic shapes, which nobody here uses: sympy takes a third of all imports' time.

    onnxslim.core  →  onnxslim.third_party.symbolic_shape_infer  →  onnxslim.core.shape_inference  →  sympy
                      while onnxslim is imported, a stand-in

Whoever asks onnxslim for this inference later gets the real one.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_INFERENCE = "onnxslim.third_party.symbolic_shape_infer"


class SymbolicShapeInference:
    """Imports onnxslim's own one when it is called."""

    @staticmethod
    def infer_shapes(*given: Any, **options: Any) -> Any:
        """As onnxslim's."""
        return import_module(_INFERENCE).SymbolicShapeInference.infer_shapes(*given, **options)


def _import() -> ModuleType:
    """onnxslim; as usual, if a version takes other names from the module as well."""
    if "onnxslim" in sys.modules:
        return sys.modules["onnxslim"]
    stand_in = ModuleType(_INFERENCE)
    stand_in.SymbolicShapeInference = SymbolicShapeInference
    sys.modules[_INFERENCE] = stand_in
    try:
        return import_module("onnxslim")
    except ImportError:
        for name in [name for name in sys.modules if name.split(".")[0] == "onnxslim"]:
            del sys.modules[name]
    finally:
        sys.modules.pop(_INFERENCE, None)
    return import_module("onnxslim")


onnxslim = _import()
