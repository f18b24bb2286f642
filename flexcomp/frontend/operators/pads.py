"""Padding, as an operator and as an attribute."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax, topi
from tvm.relax import op

from flexcomp.frontend.operators.node import Converter, Node, is_float, shape_of
from flexcomp.frontend.tensor_shapes import MOST_ELEMENTS

_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}
_WINDOWED = ("Conv", "MaxPool", "AveragePool", "LpPool")
_AUTOMATIC = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def resolve_auto_pad(node: Node) -> None:
    """Replace `auto_pad` by explicit `pads`: the importer pads by a separate operation, or wrongly."""
    mode, attrs = node.text("auto_pad", "NOTSET"), node.attrs
    if mode not in _AUTOMATIC:
        raise node.refuse(f"its auto_pad is {mode!r}: make it one of {', '.join(_AUTOMATIC)}")
    if node.kind not in _WINDOWED or mode == "NOTSET":
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


def require_windows(node: Node) -> None:
    """Raise UnsupportedModelError for windows that are larger than the padded input, for which ONNX defines no result.

    Raises it also for a padded input of more elements than a kernel counts.
    """
    if node.kind not in _WINDOWED:
        return
    size = node.shape[2:]
    kernel = node.attrs.get("kernel_shape") or shape_of(node.inputs[1])[2:]
    pads, dilations = node.attrs.get("pads", [0] * (2 * len(size))), node.attrs.get("dilations", [1] * len(size))
    if not len(size) == len(kernel) == len(dilations) == len(pads) // 2:
        raise node.refuse(f"its attributes are of other axes than the {len(size)} of its input: correct them")
    padded = [extent + pads[i] + pads[len(size) + i] for i, extent in enumerate(size)]
    if math.prod(max(extent, 1) for extent in (*node.shape[:2], *padded)) >= MOST_ELEMENTS:
        raise node.refuse(f"its padded input has axes of {padded}, with more elements than a kernel counts: correct its pads")
    if node.attrs.get("ceil_mode", 0):
        return
    for i, (length, dilation) in enumerate(zip(kernel, dilations, strict=True)):
        window = (length - 1) * dilation + 1
        if window > padded[i]:
            where = f"padded input of {padded[i]}, on axis {i + 2}"
            raise node.refuse(f"its window of {window} is larger than its {where}: correct it")


def _pad(node: Node) -> relax.Expr:
    """Pads; negative pads cut elements first.

    Relax's operator pads floats by at most one reflection or repetition. Other padding takes elements by their numbers.
    """
    mode = node.text("mode", "constant")
    if mode not in _MODES:
        raise node.refuse(f"{mode!r} is no mode of padding that ONNX knows: correct it")
    before, after = _widths(node)
    if (np.array(node.shape) + np.minimum(before, 0) + np.minimum(after, 0) < 0).any():
        raise node.refuse(f"its pads {_pairs(before, after)} cut more than its input {list(node.shape)} has: correct them")
    data = _cut(node, before, after)
    extents = np.array(shape_of(data), "int64")
    before, after = np.maximum(before, 0), np.maximum(after, 0)
    if not before.any() and not after.any():
        return data
    if mode == "constant":
        return _with_constant(node, data, before, after)
    if ((extents == 0) & (before + after > 0)).any():
        raise node.refuse(f"mode {mode} copies elements, and an axis of {extents.tolist()} has none: use mode constant")
    reach = {"reflect": extents - 1, "edge": before + after, "wrap": extents}[mode]
    if is_float(data) and (np.maximum(before, after) <= reach).all():
        return op.nn.pad(data, _flat(before, after), _MODES[mode], 0.0)
    for axis in np.flatnonzero(before + after).tolist():
        sources = _sources(mode, int(extents[axis]), int(before[axis]), int(after[axis]))
        data = node.emit(op.take(data, relax.const(sources), axis))
    return data


def _widths(node: Node) -> tuple[np.ndarray, np.ndarray]:
    """Elements to add before and after every axis; negative numbers of elements are cut off."""
    rank = len(node.shape)
    pads, axes = node.attrs.get("pads", node.attrs.get("paddings")), None
    if pads is None:  # since opset 11 they are inputs
        pads, axes = node.value(1), node.value(3)
        if pads is None or (axes is None and node.input(3) is not None):
            raise node.refuse("how much it pads is computed from the network's inputs; make it a constant")
    axes = np.arange(rank) if axes is None else np.asarray(axes).ravel()
    if np.size(pads) != 2 * len(axes) or ((axes < -rank) | (axes >= rank)).any() or len(set(axes % max(rank, 1))) < len(axes):
        raise node.refuse(f"its pads {list(np.ravel(pads))} do not fit axes {axes.tolist()} of rank {rank}: correct them")
    both = np.zeros((2, rank), "int64")
    both[:, axes] = np.reshape(pads, (2, -1))
    return both[0], both[1]


def _cut(node: Node, before: np.ndarray, after: np.ndarray) -> relax.Expr:
    axes = np.flatnonzero((before < 0) | (after < 0)).tolist()
    if not axes:
        return node.data
    start = [int(max(-before[axis], 0)) for axis in axes]
    end = [int(node.shape[axis] + min(after[axis], 0)) for axis in axes]
    return node.emit(op.strided_slice(node.data, axes, start, end))


def _with_constant(node: Node, data: relax.Expr, before: np.ndarray, after: np.ndarray) -> relax.Expr:
    given = node.value(2)
    if given is None and node.input(2) is not None:
        raise node.refuse("the value that it pads with is computed from the network's inputs; make it a constant")
    fill = node.attrs.get("value", 0.0) if given is None else given.item()
    if is_float(data):
        return op.nn.pad(data, _flat(before, after), "constant", float(fill))
    return node.bb.emit_te(topi.nn.pad, data, before.tolist(), after.tolist(), fill)  # the operator's value is a float


def _sources(mode: str, extent: int, before: int, after: int) -> np.ndarray:
    """The number of the element that stands at each place of a padded axis."""
    at = np.arange(-before, extent + after)
    if mode == "edge":
        return np.clip(at, 0, extent - 1)
    if mode == "wrap":
        return at % extent
    period = max(2 * extent - 2, 1)  # there and back
    return np.minimum(at % period, -at % period)


def _flat(before: np.ndarray, after: np.ndarray) -> list[int]:
    return np.stack([before, after], 1).ravel().tolist()


def _pairs(before: np.ndarray, after: np.ndarray) -> list[tuple[int, int]]:
    return list(zip(before.tolist(), after.tolist(), strict=True))


CONVERTERS: dict[str, Converter] = {"Pad": _pad}
