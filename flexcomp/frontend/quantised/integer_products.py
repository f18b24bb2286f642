"""ConvInteger and MatMulInteger: products of integers in float32, in parts whose sums float32 has exactly.

    y = MatMulInteger(a, b)      →   y = Cast(MatMul(DQ(a), DQ(b)), int32)                           where sums stay below 2^24
                                     y = Cast(MatMul(DQ(a[:, :k]), DQ(b[:k])), int32) + …            elsewhere
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper

from flexcomp.errors import ModelError, UnsupportedModelError
from flexcomp.frontend.domains import DEFAULT
from flexcomp.frontend.quantised.sums import parts_of, parts_of_unknown, range_of, span
from flexcomp.frontend.quantised.writer import Writer

KINDS = {"ConvInteger": "Conv", "MatMulInteger": "MatMul"}
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
        ranks = [len(self.types[name][1]) for name in (left, right)]
        if min(ranks) < 1 or (not is_matrix and (min(ranks) < 3 or ranks[0] != ranks[1])):
            raise ModelError(f"node {self.name!r} ({node.op_type}): its inputs have {ranks[0]} and {ranks[1]} axes")
        for side in range(2):
            self._require_zero_points(side)
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
            part = self._part(axes, None if parts == 1 else span(extent, parts, i))
            total = self.emit("Add", [total, part]) if total else part
        self.nodes[-1].output[0] = node.output[0]
        return self.nodes

    def _require_zero_points(self, side: int) -> None:
        zero = self.node.input[2 + side] if len(self.node.input) > 2 + side else ""
        shape = self.types[zero][1] if zero in self.types else ()
        if len(shape) > 1:
            raise UnsupportedModelError(
                f"node {self.name!r} ({self.node.op_type}): zero points of {len(shape)} axes cannot be compiled; export one for "
                "the tensor, or for each row or column"
            )
        data, along = self.types[self.node.input[side]][1], self._along(side)
        extent = data[along] if len(data) >= -along else 1
        if shape and shape[0] not in (1, extent):
            raise ModelError(
                f"node {self.name!r} ({self.node.op_type}): it has {shape[0]} zero points for an axis of {extent}; "
                "give it one, or one for each row or column"
            )

    def _along(self, side: int) -> int:
        """The axis along which zero points of an operand may differ."""
        return (-1 if side else -2) if self.node.op_type == "MatMulInteger" else 0

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
            given.append(self._integers(data, zero, self._along(side)))
        attributes = {a.name: helper.get_attribute_value(a) for a in self.node.attribute}
        product = self.emit(KINDS[self.node.op_type], given, **attributes)
        if not is_matrix and math.prod(self.types[self.node.input[1]][1][2:]) > 1:
            product = self.emit("Round", [product])  # fast kernels have fractions in between
        return self.emit("Cast", [product], to=TensorProto.INT32)

    def _integers(self, data: str, zero: str, axis: int) -> str:
        """data - zero, in float32."""
        shape = self.types[zero][1] if zero in self.types else ()
        is_vector = math.prod(shape) > 1
        ones = self.constant(np.ones(shape if is_vector else (), np.float32))
        return self.emit("DequantizeLinear", [data, ones, *([zero] if zero else [])], **({"axis": axis} if is_vector else {}))

    def _parts(self, axis: int, extent: int) -> int:
        """Into how many parts of the summed axis the product is cut, so that float32 has all sums of one."""
        left, right = self.node.input[:2]
        data = range_of(self.types[left][0], self._zero(2))
        values, zero = self.value(right), self._zero(3)
        taps = tuple(range(2, len(self.types[right][1]))) if self.node.op_type == "ConvInteger" else ()
        if values is None or zero is None or zero.size > 1:
            products = math.prod(self.types[right][1][i] for i in taps)
            parts = parts_of_unknown(extent, products, data, range_of(self.types[right][0], zero))
        else:
            parts = parts_of(values, np.int32(zero.reshape(-1)[0]), (axis, *taps), data)
        if parts is None:
            raise UnsupportedModelError(
                f"node {self.name!r} ({self.node.op_type}): a single channel has sums of 2^24 and more, which float32 does "
                "not have exactly; export the network with float32 in its place"
            )
        return parts

    def _zero(self, i: int) -> np.ndarray | None:
        """The zero points of an operand, input `i`; None if they are computed."""
        return self.value(self.node.input[i]) if len(self.node.input) > i and self.node.input[i] else np.zeros((), np.int32)
