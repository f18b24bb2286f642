"""ConvInteger and MatMulInteger: products of integers in float32, in parts whose sums float32 has exactly.

    y = MatMulInteger(a, b)      →   y = Cast(MatMul(DQ(a), DQ(b)), int32)                           where sums stay below 2^24
                                     y = Cast(MatMul(DQ(a[:, :k]), DQ(b[:k])), int32) + …            elsewhere
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper

from flexcomp.errors import UnsupportedModelError
from flexcomp.frontend.domains import DEFAULT
from flexcomp.frontend.quantised.writer import Writer

_EXACT = 1 << 24
KINDS = {"ConvInteger": "Conv", "MatMulInteger": "MatMul"}
_LARGEST = {TensorProto.INT8: (-128, 127), TensorProto.UINT8: (0, 255)}
_CHANNELS = 1  # their axis in both operands of a convolution


def multiply_in_float(model: onnx.ModelProto) -> None:
    """Replace integer products of the outermost graph. Changes `model`. Raises UnsupportedModelError."""
    if not any(_is_product(node) for node in model.graph.node):
        return
    writer = _Products(model)
    nodes = [made for node in model.graph.node for made in writer.write(node)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _is_product(node: onnx.NodeProto) -> bool:
    return node.domain in DEFAULT and node.op_type in KINDS


class _Products(Writer):
    def write(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        if not _is_product(node):
            return [node]
        self.nodes, self.node = [], node
        self.name = node.name or node.output[0]
        left, right = node.input[:2]
        if not {left, right} <= self.types.keys():
            raise UnsupportedModelError(
                f"node {self.name!r} ({node.op_type}): the shapes of its inputs are not known; export the network with shapes"
            )
        is_matrix = node.op_type == "MatMulInteger"
        axes = (len(self.types[left][1]) - 1, max(len(self.types[right][1]) - 2, 0)) if is_matrix else (_CHANNELS,) * 2
        extent = self.types[right][1][axes[1]]
        parts = self._parts(axes[1], extent)
        group = next((a.i for a in node.attribute if a.name == "group"), 1)
        if parts > 1 and group > 1:
            raise UnsupportedModelError(
                f"node {self.name!r} (ConvInteger): its {group} groups of {extent} channels have sums beyond 2^24; "
                "export one convolution for each group"
            )
        total = ""
        for i in range(parts):
            first, last = extent * i // parts, extent * (i + 1) // parts
            part = self._part(axes, None if parts == 1 else (first, last))
            total = self.emit("Add", [total, part]) if total else part
        self.nodes[-1].output[0] = node.output[0]
        return self.nodes

    def _part(self, axes: tuple[int, int], span: tuple[int, int] | None) -> str:
        """The product over some indices of the axis that it sums up, in int32."""
        is_matrix = self.node.op_type == "MatMulInteger"
        given = []
        for side, axis in enumerate(axes):
            zero = self.node.input[2 + side] if len(self.node.input) > 2 + side else ""
            data = self.node.input[side]
            if span is not None:
                bounds = [self.constant(np.int64([n])) for n in (*span, axis)]
                data = self.emit("Slice", [data, *bounds])
            along = (-1 if side else -2) if is_matrix else 0
            given.append(self._integers(data, zero, along))
        attributes = {a.name: helper.get_attribute_value(a) for a in self.node.attribute}
        product = self.emit(KINDS[self.node.op_type], given, **attributes)
        if not is_matrix and math.prod(self.types[self.node.input[1]][1][2:]) > 1:
            product = self.emit("Round", [product])  # fast kernels have fractions in between
        return self.emit("Cast", [product], to=TensorProto.INT32)

    def _integers(self, data: str, zero: str, axis: int) -> str:
        """data - zero, in float32."""
        shape = self.types[zero][1] if zero in self.types else ()
        if len(shape) > 1:
            raise UnsupportedModelError(
                f"node {self.name!r} ({self.node.op_type}): zero points of {len(shape)} axes cannot be compiled; export one for "
                "the tensor, or for each row or column"
            )
        is_vector = math.prod(shape) > 1
        ones = self.constant(np.ones(shape if is_vector else (), np.float32))
        return self.emit("DequantizeLinear", [data, ones, *([zero] if zero else [])], **({"axis": axis} if is_vector else {}))

    def _parts(self, axis: int, extent: int) -> int:
        """Into how many parts of the summed axis the product is cut, so that no sum of one reaches 2^24."""
        left, right = self.node.input[:2]
        low, high = _LARGEST[self.types[left][0]]
        largest = self._largest(2, low, high)
        values = self.value(right)
        zero = self.value(self.node.input[3]) if len(self.node.input) > 3 and self.node.input[3] else np.int32(0)
        if values is None or zero is None or zero.size > 1:
            most = self._largest(3, *_LARGEST[self.types[right][0]])
            sums = np.full(extent, most * math.prod(self.types[right][1][2:] if self.node.op_type == "ConvInteger" else ()))
        else:
            weights = np.moveaxis(abs(values.astype(np.int64) - int(zero.reshape(-1)[0])), axis, 0)
            taps = tuple(range(2, weights.ndim)) if self.node.op_type == "ConvInteger" else ()
            sums = weights.sum(taps).reshape(extent, -1)
        for parts in range(1, extent + 1):
            bounds = [extent * i // parts for i in range(parts)]
            if np.max(np.add.reduceat(sums, bounds, axis=0)) * largest < _EXACT:
                return parts
        return extent

    def _largest(self, i: int, low: int, high: int) -> int:
        """Of an operand without its zero point, input `i`, the largest magnitude."""
        zero = self.value(self.node.input[i]) if len(self.node.input) > i and self.node.input[i] else np.int32(0)
        if zero is None:
            return high - low
        return int(max(high - int(zero.min()), int(zero.max()) - low))
