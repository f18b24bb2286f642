"""Fourier transforms, as products with a matrix of cosines and sines.

Of a length N that is a matrix of N × N complex numbers; for the few hundred points of speech it is as fast as any other layer. A
transform of frames is a convolution, whose stride is the step from one frame to the next.
"""

from __future__ import annotations

import math

import numpy as np
from tvm import relax
from tvm.relax import op

from flexcomp.frontend.operators.node import Converter, Node, is_float

_MOST_NBYTES = 1 << 27  # of a matrix


def _dft(node: Node) -> relax.Expr:
    shape, rank = node.shape, len(node.shape)
    axis = _scalar(node, 2, "axis", -2) if node.opset >= 20 else int(node.attrs.get("axis", 1))
    inverse, onesided = bool(node.attrs.get("inverse", 0)), bool(node.attrs.get("onesided", 0))
    if rank < 2 or not -rank <= axis < rank or axis % rank == rank - 1 or shape[-1] not in (1, 2) or not is_float(node.data):
        raise node.refuse(f"there is no axis {axis} of real or complex numbers in {list(shape)} {node.dtype}: correct it")
    axis %= rank
    length = _scalar(node, 1, "dft_length", 2 * (shape[axis] - 1) if inverse and onesided else shape[axis])
    given = min(shape[axis], length // 2 + 1 if inverse and onesided else length)
    _require_moderate(node, length, given * shape[-1])
    if inverse:
        matrix = _real_of_half(given, length) if onesided else _matrix(given, length, length, 1) / length
    else:
        matrix = _matrix(given, length // 2 + 1 if onesided else length, length, -1)
    matrix = matrix[:, : shape[-1]]
    data = node.data
    if given < shape[axis]:
        data = node.emit(op.strided_slice(data, [axis], [0], [given]))
    order = [*(a for a in range(rank - 1) if a != axis), axis, rank - 1]
    others = [shape[a] for a in order[:-2]]
    rows = node.emit(op.reshape(node.emit(op.permute_dims(data, order)), (math.prod(others), given * shape[-1])))
    weights = relax.const(matrix.reshape(given * shape[-1], -1).astype(node.dtype))
    found = node.emit(op.reshape(node.emit(op.matmul(rows, weights)), (*others, *matrix.shape[2:])))
    return op.permute_dims(found, [order.index(a) for a in range(rank)])


def _stft(node: Node) -> relax.Expr:
    shape, onesided = node.shape, bool(node.attrs.get("onesided", 1))
    parts = shape[2] if len(shape) == 3 else 1
    if len(shape) not in (2, 3) or parts not in (1, 2) or not is_float(node.data):
        raise node.refuse(f"its input {list(shape)} {node.dtype} is no batch of real or complex signals: correct it")
    window = node.value(2)
    if window is None and node.input(2) is not None:
        raise node.refuse("its window is computed from the network's inputs; make it a constant")
    step = _scalar(node, 1, "frame_step", None)
    frame = _scalar(node, 3, "frame_length", shape[1] if window is None else window.size)
    window = np.ones(frame) if window is None else window.astype("f8").ravel()
    if step < 1 or frame > shape[1] or window.size != frame:
        raise node.refuse(
            f"frames of {frame}, {step} apart, in a window of {window.size} do not fit signals of {shape[1]}: correct them"
        )
    _require_moderate(node, frame, frame * parts)
    bins = frame // 2 + 1 if onesided else frame
    matrix = _matrix(frame, bins, frame, -1)[:, :parts] * window[:, None, None, None]
    count = (shape[1] - frame) // step + 1
    used, together = (count - 1) * step + frame, math.gcd(step, frame)  # samples side by side, as channels
    data = node.data if used == shape[1] else node.emit(op.strided_slice(node.data, [1], [0], [used]))
    rows = node.emit(op.reshape(data, (shape[0], used // together, together * parts)))
    taps = matrix.reshape(frame // together, together * parts, bins * 2).transpose(2, 1, 0)
    weights = relax.const(np.ascontiguousarray(taps.astype(node.dtype)))
    found = node.emit(op.nn.conv1d(node.emit(op.permute_dims(rows, [0, 2, 1])), weights, strides=step // together))
    return op.reshape(node.emit(op.permute_dims(found, [0, 2, 1])), (shape[0], count, bins, 2))


def _scalar(node: Node, i: int, name: str, default: int | None) -> int:
    value = node.value(i)
    if node.input(i) is None and default is not None:
        return default
    if value is None or value.size != 1:
        raise node.refuse(f"its {name} is computed from the network's inputs; make it a constant")
    return int(value.item())


def _require_moderate(node: Node, length: int, rows: int) -> None:
    nbytes = 8 * length * rows
    if length < 1 or nbytes > _MOST_NBYTES:
        raise node.refuse(
            f"a transform of {length} points is a matrix of {nbytes} bytes, of at most {_MOST_NBYTES}: transform shorter frames"
        )


def _matrix(given: int, bins: int, length: int, sign: int) -> np.ndarray:
    """Of a transform of `given` points, zeros after them: [point, part of it, bin, part of it]."""
    cosines, sines = _waves(given, bins, length)
    real, imaginary = np.stack([cosines, sign * sines], -1), np.stack([-sign * sines, cosines], -1)
    return np.stack([real, imaginary], 1)


def _real_of_half(given: int, length: int) -> np.ndarray:
    """Of the inverse transform to real numbers, from the bins of which the others are the conjugates: [bin, part, point, 1]."""
    cosines, sines = _waves(given, length, length)
    at = np.arange(given)
    times = np.where((at == 0) | (2 * at == length), 1.0, 2.0)[:, None, None] / length
    return (np.stack([cosines, -sines], 1) * times)[..., None]


def _waves(rows: int, columns: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of 2π · row · column / length."""
    angles = 2 * np.pi / length * np.arange(length)
    at = np.outer(np.arange(rows), np.arange(columns)) % length
    return np.cos(angles)[at], np.sin(angles)[at]


CONVERTERS: dict[str, Converter] = {"DFT": _dft, "STFT": _stft}
