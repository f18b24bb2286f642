"""Products of quantised tensors: integers in float32, cut into as many parts as keep every sum exact."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from flexcomp.frontend.quantised.sums import RANGES, Range, parts_of, parts_of_unknown, range_of, span
from flexcomp.frontend.quantised.writer import Writer

EIGHT_BITS = (TensorProto.INT8, TensorProto.UINT8)
_SAME_SCALE = 1e-5  # relative: a bias' scale is that of the products, but for rounding
_PRECISE_KERNELS = 1  # taps up to which every kernel adds products up as they are


@dataclass(frozen=True)
class Quantised:
    """The operands of a DequantizeLinear: (data - zero) · scale."""

    data: str
    scale: np.ndarray  # float32, of rank 0 or 1
    zero: np.ndarray  # as many
    zero_name: str
    axis: int


@dataclass(frozen=True)
class Bias:
    """The bias of a product: integers, added before the sums are scaled; numbers, added after; or no bias."""

    integers: np.ndarray | None = None
    real: np.ndarray | None = None


@dataclass(frozen=True)
class Product:
    """A convolution or a product of matrices, of integers in float32."""

    kind: str
    left: Quantised
    right: Quantised
    axes: tuple[int, int]  # of the operands, along which they are summed and may be cut
    taps: tuple[int, ...]  # axes of the right one that are summed as well
    along: tuple[int, ...]  # the shape of what holds a number for each output channel, in the result's rank
    attributes: dict

    def extent(self, writer: QuantisedWriter) -> int:
        """The extent of the summed axis."""
        return writer.types[self.right.data][1][self.axes[1]]

    def parts(self, writer: QuantisedWriter, added: np.ndarray | int = 0) -> int | None:
        """The number of parts for which all sums are exact, with `added`; None if no number helps, or if weights are unknown."""
        values, data = writer.value(self.right.data), writer.range(self.left)
        if values is None:
            if np.any(added):
                return None
            taps = math.prod(writer.types[self.right.data][1][i] for i in self.taps)
            return parts_of_unknown(self.extent(writer), taps, data, writer.range(self.right))
        zero = self.right.zero.astype(np.int32)
        if zero.ndim:
            shape = [1] * values.ndim
            shape[self.right.axis] = -1
            zero = zero.reshape(shape)
        return parts_of(values, zero, (self.axes[1], *self.taps), data, added)

    def is_divisible(self, writer: QuantisedWriter) -> bool:
        """Whether the product can be cut, and ONNX Runtime has a kernel of integers for it."""
        elements = [writer.types[of.data][0] for of in (self.left, self.right)]
        return self.attributes.get("group", 1) == 1 and all(element in EIGHT_BITS for element in elements)

    def emit(self, writer: QuantisedWriter, part: tuple[int, int] | None, added: list[str]) -> str:
        """The sums in float32, over all indices or over a part."""
        inputs = [self._operand(writer, of, axis, part) for of, axis in zip((self.left, self.right), self.axes, strict=True)]
        total = writer.emit(self.kind, [*inputs, *added], **self.attributes)
        is_fast = self.taps and math.prod(writer.types[self.right.data][1][i] for i in self.taps) > _PRECISE_KERNELS
        if is_fast and self.attributes.get("group", 1) == 1:
            total = writer.emit("Round", [total])  # fast kernels have fractions in between
        return total

    def _operand(self, writer: QuantisedWriter, of: Quantised, axis: int, part: tuple[int, int] | None) -> str:
        values = writer.value(of.data)
        if part is not None and values is not None:  # in the file they stay as narrow as they are
            return writer.integers(replace(of, data=writer.constant(np.take(values, range(*part), axis))))
        whole = writer.integers(of)
        return whole if part is None else writer.emit("Slice", [whole, *(writer.constant(np.int64([n])) for n in (*part, axis))])


class QuantisedWriter(Writer):
    """Reads quantised tensors, and writes their integers."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        self.makers = {name: node for node in self.graph.node for name in node.output if name}

    def quantised(self, name: str) -> Quantised | None:
        """The operands from which `name` was dequantised: integers of 8 or 16 bits with a known scale; None for other tensors."""
        maker = self.makers.get(name)
        if maker is None or maker.op_type != "DequantizeLinear":
            return None
        known = self.types.get(maker.input[0])
        return self.parameters(maker) if known is not None and known[0] in RANGES else None

    def parameters(self, node: onnx.NodeProto) -> Quantised | None:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        zero_name = node.input[2] if len(node.input) > 2 else ""
        scale = self.value(node.input[1])
        zero = self.value(zero_name) if zero_name else np.int32(0)
        if scale is None or zero is None or scale.dtype != np.float32 or attributes.get("block_size", 0):
            return None
        if max(scale.ndim, zero.ndim) > 1 or attributes.get("output_dtype", 0):
            return None
        scale, zero = (a.reshape(()) if a.size == 1 else a for a in (scale, np.asarray(zero)))
        return Quantised(node.input[0], scale, zero, zero_name, attributes.get("axis", 1))

    def integers(self, of: Quantised) -> str:
        """data - zero, in float32."""
        ones = self.constant(np.ones(of.zero.shape, np.float32))
        zero = [of.zero_name] if np.any(of.zero) else []
        return self.emit("DequantizeLinear", [of.data, ones, *zero], **({"axis": of.axis} if of.zero.ndim else {}))

    def bias(self, name: str, scale: np.ndarray) -> Bias | None:
        """A bias as integers, multiples of `scale`, or as numbers; None if the bias is unknown."""
        if not name:
            return Bias()
        maker = self.makers.get(name)
        if maker is not None and maker.op_type == "DequantizeLinear":
            of, values = self.parameters(maker), self.value(maker.input[0])
            fits = of is not None and values is not None and not np.any(of.zero)
            if fits and np.allclose(of.scale, scale, rtol=_SAME_SCALE, atol=0):
                return Bias(integers=values.astype(np.int64))
            return None
        values = self.value(name)
        return None if values is None else Bias(real=values)

    def range(self, of: Quantised) -> Range:
        """The least and the largest value of data - zero."""
        return range_of(self.types[of.data][0], of.zero)

    def total(self, product: Product, bias: Bias) -> str | None:
        """The sums of a product and the integers of a bias, in float32; None if these sums cannot be exact."""
        parts = product.parts(self)
        if parts is None:
            return None
        if parts == 1 and (bias.integers is None or product.parts(self, bias.integers) == 1):
            added = [] if bias.integers is None else [self.constant(bias.integers.astype(np.float32))]
            return product.emit(self, None, added)
        if parts > 1 and not product.is_divisible(self):
            return None
        found = ""
        for i in range(parts):
            part = product.emit(self, span(product.extent(self), parts, i) if parts > 1 else None, [])
            part = self.emit("Cast", [part], to=TensorProto.INT32)
            found = self.emit("Add", [found, part]) if found else part
        if bias.integers is not None:
            added = bias.integers.astype(np.int32)
            found = self.emit("Add", [found, self.constant(added.reshape(product.along) if added.ndim == 1 else added)])
        return self.emit("Cast", [found], to=TensorProto.FLOAT)
