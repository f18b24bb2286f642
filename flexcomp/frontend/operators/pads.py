"""Padding, as an operator and as an attribute."""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import op

from flexcomp.frontend.operators.node import Converter, Node, is_float, shape_of

_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


def resolve_auto_pad(node: Node) -> None:
    """Replace `auto_pad` by explicit `pads`: the importer pads by a separate operation, or wrongly."""
    mode, attrs = node.text("auto_pad", "NOTSET"), node.attrs
    if node.kind not in ("Conv", "MaxPool", "AveragePool", "LpPool") or mode == "NOTSET":
        return
    size = node.shape[2:]
    kernel = attrs.get("kernel_shape") or shape_of(node.inputs[1])[2:]
    strides = attrs.get("strides") or [1] * len(size)
    dilations = attrs.get("dilations") or [1] * len(size)
    total = [0] * len(size)
    if mode != "VALID":
        total = [
            max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
            for n, k, s, d in zip(size, kernel, strides, dilations, strict=True)
        ]
    small, large = [t // 2 for t in total], [t - t // 2 for t in total]
    attrs["pads"] = tuple(large + small if mode == "SAME_LOWER" else small + large)
    del attrs["auto_pad"]


def _pad(node: Node) -> relax.Expr | None:
    """Padding as a Relax operator; the importer emits a kernel, which no later pass can look into."""
    data = node.data
    mode = _MODES.get(node.text("mode", "constant"))
    pads, fill, axes = node.attrs.get("pads"), node.attrs.get("value", 0.0), None
    if pads is None:  # since opset 11 they are inputs
        pads, axes = node.value(1), node.value(3)
        fill = 0.0 if node.value(2) is None else node.value(2).item()
    if mode is None or pads is None or not is_float(data) or min(pads) < 0:
        return None
    before_after = np.zeros((data.ty.ndim, 2), "int64")
    before_after[slice(None) if axes is None else axes] = np.reshape(pads, (2, -1)).T
    return op.nn.pad(data, before_after.ravel().tolist(), mode, float(fill))


CONVERTERS: dict[str, Converter] = {"Pad": _pad}
