"""Between numbers and integers of 8 or 16 bits: one scale and zero point for a tensor, for each index of an axis, for each block.

Integers are held in float32 as long as they can be: what QuantizeLinear gives is a rounded and clipped float, then its zero point
added, then a conversion. Passes see that a DequantizeLinear behind it needs the float only (`KeepIntegers`).
"""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto, helper
from tvm import relax
from tvm.relax import op

from flexcomp.deferred import Array, fact, pieces
from flexcomp.frontend.operators.node import Converter, Node, dtype_of, shape_of
from flexcomp.passes.panels import in_blocks

_RANGES = {
    "int8": (-128, 127), "uint8": (0, 255), "int16": (-(1 << 15), (1 << 15) - 1), "uint16": (0, (1 << 16) - 1),
}  # fmt: skip
# Types of the quotient; it is computed in float32.
_PRECISIONS = (
    TensorProto.UNDEFINED, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE,
)  # fmt: skip


def _quantise(node: Node) -> relax.Expr:
    kind = _result_type(node)
    if kind not in _RANGES:
        raise node.refuse(f"it makes {kind}, and {', '.join(_RANGES)} can be compiled; quantise to one of them")
    precision = node.attrs.get("precision", TensorProto.UNDEFINED)
    if precision not in _PRECISIONS:
        raise node.refuse(f"its precision {precision} is no type of floats: export the network again")
    if _is_known(node, 1, 0):
        raise node.refuse("its scale is 0, by which it divides: make it another number")
    data = node.data if node.dtype == "float32" else node.emit(op.astype(node.data, "float32"))
    if not _is_known(node, 1, 1):
        data = node.emit(op.divide(data, _along(node, 1)))
    data = node.emit(op.round(data))
    low, high = _RANGES[kind]
    zero = node.value(2)
    if node.input(2) is None or (zero is not None and zero.size == 1):
        offset = 0 if zero is None else int(zero.reshape(-1)[0])
        data = node.emit(op.clip(data, low - offset, high - offset))
        if offset:
            data = node.emit(op.add(data, relax.const(float(offset), "float32")))
    else:
        data = node.emit(op.clip(node.emit(op.add(data, _along(node, 2))), low, high))
    return op.astype(data, kind)


def _dequantise(node: Node) -> relax.Expr:
    weights = _weights_in_blocks(node)
    if weights is not None:
        return weights
    has_zeros = node.input(2) is not None and not _is_known(node, 2, 0)
    # float32 does not hold all integers of 32 bits, and their differences may have 33.
    kind = "int64" if has_zeros and dtype_of(node.data) == "int32" else "float32"
    data = node.emit(op.astype(node.data, kind))
    if has_zeros:
        data = node.emit(op.subtract(data, _along(node, 2, kind)))
    if kind != "float32":
        data = node.emit(op.astype(data, "float32"))
    if not _is_known(node, 1, 1):
        data = node.emit(op.multiply(data, _along(node, 1)))
    return data


def _result_type(node: Node) -> str:
    if node.input(2) is not None:
        return dtype_of(node.inputs[2])
    wanted = node.attrs.get("output_dtype", 0) or TensorProto.UINT8
    return helper.tensor_dtype_to_np_dtype(int(wanted)).name


def _is_known(node: Node, i: int, value: float) -> bool:
    """Whether all of a parameter is known to be `value`."""
    given = node.value(i)
    return given is not None and bool(np.all(given == value))


def _along(node: Node, i: int, kind: str = "float32") -> relax.Expr:
    """A parameter as `kind`, in a shape that broadcasts to the data's."""
    given, extents = node.inputs[i], node.shape
    known = node.value(i)
    if known is not None and known.size == 1:
        return relax.const(known.reshape(-1)[0].astype(kind), kind)
    if dtype_of(given) != kind:
        given = node.emit(op.astype(given, kind))
    own = shape_of(given)
    if math.prod(own) == 1:
        return node.emit(op.reshape(given, ())) if own else given
    axis = int(node.attrs.get("axis", 1))
    if not -len(extents) <= axis < len(extents):
        raise node.refuse(f"axis {axis} is none of its input's {len(extents)}: export the network again")
    axis %= len(extents)
    if len(own) == 1:
        if own[0] != extents[axis]:
            raise node.refuse(f"axis {axis} has {extents[axis]} indices and {own[0]} scales or zero points: export it again")
        return node.emit(op.reshape(given, tuple(own[0] if at == axis else 1 for at in range(len(extents)))))
    return _in_blocks(node, given, own, axis)


def _in_blocks(node: Node, given: relax.Expr, own: tuple[int, ...], axis: int) -> relax.Expr:
    """Each repeated for the indices of its block; the last block may be shorter."""
    extents, size = node.shape, int(node.attrs.get("block_size", 0))
    if size <= 0:
        size = -(-extents[axis] // own[axis])
    expected = tuple(-(-n // size) if at == axis else n for at, n in enumerate(extents))
    if own != expected:
        raise node.refuse(
            f"scales or zero points of {own} do not fit blocks of {size} along axis {axis} of {extents}: export it again"
        )
    repeated = node.emit(op.repeat(given, size, axis))
    if own[axis] * size == extents[axis]:
        return repeated
    return node.emit(op.strided_slice(repeated, [axis], [0], [extents[axis]]))


def _weights_in_blocks(node: Node) -> relax.Expr | None:
    """Known 8-bit weights with a scale for each block along an axis of two, as what kernels may read as they are; else None."""
    size, axis = int(node.attrs.get("block_size", 0)), int(node.attrs.get("axis", 1))
    values = [node.weight(i) for i in range(3)]
    if size <= 0 or len(node.shape) != 2 or node.dtype not in ("int8", "uint8") or not -2 <= axis < 2:
        return None
    if values[0] is None or values[1] is None or (node.input(2) is not None and values[2] is None):
        return None
    axis %= 2
    expected = tuple(-(-n // size) if at == axis else n for at, n in enumerate(node.shape))
    for i in range(1, 3):
        if values[i] is not None and values[i].shape != expected:
            raise node.refuse(
                f"its {('scales', 'zero points')[i - 1]} are {list(values[i].shape)}, and blocks of {size} along axis {axis} of "
                f"{list(node.shape)} have {list(expected)}: quantise the weights again"
            )
    if not fact(_is_finite, values[1]):
        raise node.refuse("some of its scales are infinite or no numbers: quantise the weights again")
    given = [node.inputs[0], node.inputs[1], *([] if values[2] is None else [node.inputs[2]])]
    if dtype_of(given[1]) != "float32":
        given[1] = node.emit(op.astype(given[1], "float32"))
    if axis == 0:
        given = [node.emit(op.permute_dims(one, (1, 0))) for one in given]
    integers, scales, *zeros = given
    made = in_blocks(node.emit, integers, scales, zeros[0] if zeros else None, size)
    return made if axis else op.permute_dims(made, (1, 0))


def _is_finite(array: Array) -> bool:
    return all(bool(np.all(np.isfinite(piece))) for piece in pieces(array))


CONVERTERS: dict[str, Converter] = {"DequantizeLinear": _dequantise, "QuantizeLinear": _quantise}
