"""ONNX operators translated here, because TVM's importer makes slow, opaque or wrong code of them.

A converter takes a `Node` and returns a Relax expression (a relax.Tuple for several results), or None where the importer's own
translation is right and as good. What it cannot translate exactly it refuses with `Node.refuse`. Every file ends with its table.
"""

from flexcomp.frontend.operators import (
    attention,
    blocks,
    caches,
    convolution,
    deformable,
    elementwise,
    indexing,
    normalisation,
    pads,
    pooling,
    quantisation,
    rearranging,
    recurrent,
    reductions,
    resize,
    sampling,
    selections,
    shapes,
    spectra,
    suppression,
    training,
)
from flexcomp.frontend.operators.node import CKernel, Converter, Node, Tensor

__all__ = ["CONVERTERS", "CKernel", "Converter", "Node", "Tensor"]

_GROUPS = (
    attention,
    blocks,
    caches,
    convolution,
    deformable,
    elementwise,
    indexing,
    normalisation,
    pads,
    pooling,
    quantisation,
    rearranging,
    recurrent,
    reductions,
    resize,
    sampling,
    selections,
    shapes,
    spectra,
    suppression,
    training,
)
CONVERTERS: dict[str, Converter] = {kind: converter for group in _GROUPS for kind, converter in group.CONVERTERS.items()}
assert len(CONVERTERS) == sum(len(group.CONVERTERS) for group in _GROUPS), "an operator has two converters"
