"""Operators that move elements between channels and pixels."""

from __future__ import annotations

from tvm import relax
from tvm.relax import op

from flexcomp.frontend.operators.node import Converter, Node


def _space_to_depth(node: Node) -> relax.Expr:
    """Blocks of pixels become channels: all channels of a pixel together (DCR), or all pixels of a channel (CRD)."""
    size, mode = int(node.attrs["blocksize"]), node.text("mode", "DCR")
    n, c, h, w = node.shape
    order = {"DCR": [0, 3, 5, 1, 2, 4], "CRD": [0, 1, 3, 5, 2, 4]}.get(mode)
    if order is None:
        raise node.refuse(f"its mode is {mode}, where ONNX knows DCR and CRD: correct the attribute")
    blocks = node.emit(op.reshape(node.data, (n, c, h // size, size, w // size, size)))
    moved = node.emit(op.permute_dims(blocks, order))
    return op.reshape(moved, (n, c * size * size, h // size, w // size))


CONVERTERS: dict[str, Converter] = {"SpaceToDepth": _space_to_depth}
