"""Scales are moved behind sums: between DequantizeLinear and QuantizeLinear it is integers that are multiplied and added up.

    Q(Conv(DQ(x, sx, zx), DQ(w, sw, zw), DQ(b, sx·sw)), sy, zy)   →   Q(Mul(Conv(DQ(x, 1, zx), DQ(w, 1, zw), b), sx·sw/sy), 1, zy)

float32 has the integers up to 2^24, so sums below that are exact in any order, and what is left to be rounded is one product with
one scale, as in ONNX Runtime's kernels. Its arithmetic is followed where it decides last bits (a sum of two tensors, an average).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from flexcomp.frontend.domains import DEFAULT
from flexcomp.frontend.quantised.removal import remove_bounds
from flexcomp.frontend.quantised.writer import Writer

_INTEGERS = (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16)
_SAME_SCALE = 1e-5  # relative: a bias' scale is that of the products, but for rounding
_PRECISE_KERNELS = 1  # taps up to which every kernel adds products up as they are


@dataclass(frozen=True)
class Quantised:
    """What a DequantizeLinear reads: (data - zero) · scale."""

    data: str
    scale: np.ndarray  # float32, of rank 0 or 1
    zero: np.ndarray  # as many
    zero_name: str
    axis: int


def move_scales(model: onnx.ModelProto) -> None:
    """Move scales behind the sums of the outermost graph. Changes `model`, whose shapes are inferred."""
    if any(node.op_type == "QuantizeLinear" for node in model.graph.node):
        remove_bounds(model.graph)
        _Mover(model).rewrite()


class _Mover(Writer):
    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        self.makers = {name: node for node in self.graph.node for name in node.output if name}
        self.read = [name for node in self.graph.node for name in node.input]
        self.read += [output.name for output in self.graph.output]

    def rewrite(self) -> None:
        moved: set[str] = set()  # results that integers took the place of
        for node in list(self.graph.node):
            before = len(self.nodes)
            inner = self.makers.get(node.input[0]) if node.op_type == "QuantizeLinear" else None
            if inner is not None and self.read.count(node.input[0]) == 1 and self._move(inner, node):
                moved.add(node.input[0])
                continue
            del self.nodes[before:]
            self.nodes.append(node)
        kept = [node for node in self.nodes if not moved & set(node.output)]
        read = {name for node in kept for name in node.input} | {output.name for output in self.graph.output}
        unread = [n for n in kept if n.op_type == "DequantizeLinear" and n.output[0] not in read]
        del self.graph.node[:]
        self.graph.node.extend(node for node in kept if node not in unread)

    def _move(self, inner: onnx.NodeProto, quantise: onnx.NodeProto) -> bool:
        """Write what computes the result of `quantise` from integers; whether that can be done."""
        result = self._parameters(quantise)
        rule = _RULES.get(inner.op_type) if inner.domain in DEFAULT else None
        if rule is None or result is None or result.scale.ndim:
            return False
        self.name = inner.name or inner.output[0]
        made = rule(self, inner, result)
        if made is None:
            return False
        total, zero = made
        one = self.constant(np.float32(1))
        self.nodes.append(helper.make_node("QuantizeLinear", [total, one, zero], list(quantise.output), quantise.name))
        return True

    # What is read.

    def quantised(self, name: str) -> Quantised | None:
        """What `name` was dequantised from, if it was: integers of 8 or 16 bits, with a scale that is known."""
        maker = self.makers.get(name)
        if maker is None or maker.op_type != "DequantizeLinear":
            return None
        known = self.types.get(maker.input[0])
        return self._parameters(maker) if known is not None and known[0] in _INTEGERS else None

    def _parameters(self, node: onnx.NodeProto) -> Quantised | None:
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

    # What is written.

    def integers(self, of: Quantised) -> str:
        """data - zero, in float32."""
        ones = self.constant(np.ones(of.zero.shape, np.float32))
        zero = [of.zero_name] if np.any(of.zero) else []
        return self.emit("DequantizeLinear", [of.data, ones, *zero], **({"axis": of.axis} if of.zero.ndim else {}))

    def requantised(self, name: str, like: Quantised) -> str:
        """The integers of a real tensor, with the scale and the zero point of another."""
        parameters = [self.constant(like.scale), *filter(None, [like.zero_name])]
        data = self.emit("QuantizeLinear", [name, *parameters])
        ones = self.constant(np.float32(1))
        return self.emit("DequantizeLinear", [data, ones, *([like.zero_name] if np.any(like.zero) else [])])

    def plain(self, of: Quantised) -> str:
        """data, in float32."""
        return self.emit("DequantizeLinear", [of.data, self.constant(np.float32(1))])

    def scaled(self, total: str, scale: np.ndarray) -> str:
        return self.emit("Mul", [total, self.constant(scale.astype(np.float32))])

    def bias(self, name: str, scale: np.ndarray) -> tuple[str, np.ndarray | None] | None:
        """A bias as integers, multiples of `scale`, by name; or what it is, if it is real. None: it is not known."""
        maker = self.makers.get(name)
        if maker is not None and maker.op_type == "DequantizeLinear":
            of, values = self._parameters(maker), self.value(maker.input[0])
            fits = of is not None and values is not None and not np.any(of.zero)
            if fits and np.allclose(of.scale, scale, rtol=_SAME_SCALE, atol=0):
                return self.constant(values.astype(np.float32)), None
            return None
        values = self.value(name)
        return None if values is None else ("", values)


# A rule writes the sum of a node, scaled for its result, and returns its name and that of the zero point; or None.
Rule = Callable[[_Mover, onnx.NodeProto, Quantised], "tuple[str, str] | None"]


def _convolution(mover: _Mover, node: onnx.NodeProto, result: Quantised) -> tuple[str, str] | None:
    data, weight = mover.quantised(node.input[0]), mover.quantised(node.input[1])
    if data is None or weight is None or data.scale.ndim or data.zero.ndim or weight.data not in mover.constants:
        return None
    if (weight.scale.ndim or weight.zero.ndim) and weight.axis != 0:
        return None
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    rank, scale = len(mover.types[weight.data][1]), data.scale * weight.scale
    along = (-1, *[1] * (rank - 2))
    given = node.input[2] if len(node.input) > 2 else ""
    bias = mover.bias(given, scale) if given else ("", None)
    if bias is None:
        return None
    inputs = [mover.integers(data), mover.integers(weight), *filter(None, bias[:1])]
    total = mover.emit("Conv", inputs, **attributes)
    if math.prod(mover.types[weight.data][1][2:]) > _PRECISE_KERNELS and attributes.get("group", 1) == 1:
        total = mover.emit("Round", [total])  # fast kernels have fractions in between
    total = mover.scaled(total, (scale / result.scale).reshape(along if scale.ndim else ()))
    if bias[1] is not None:
        total = mover.emit("Add", [total, mover.constant((bias[1] / result.scale).reshape(along))])
    return total, result.zero_name


def _matrices(mover: _Mover, node: onnx.NodeProto, result: Quantised) -> tuple[str, str] | None:
    left, right = mover.quantised(node.input[0]), mover.quantised(node.input[1])
    if left is None or right is None or left.scale.ndim or left.zero.ndim:
        return None
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    rank = len(mover.types[right.data][1])
    columns = 0 if attributes.get("transB", 0) else rank - 1
    if (right.scale.ndim or right.zero.ndim) and (rank != 2 or right.axis % rank != columns):
        return None
    scale = left.scale * right.scale * np.float32(attributes.pop("alpha", 1.0))
    given = node.input[2] if len(node.input) > 2 else ""
    bias = mover.bias(given, scale) if given else ("", None)
    if bias is None or (given and attributes.pop("beta", 1.0) != 1.0):
        return None
    attributes.pop("beta", None)
    inputs = [mover.integers(left), mover.integers(right), *filter(None, bias[:1])]
    total = mover.scaled(mover.emit(node.op_type, inputs, **attributes), scale / result.scale)
    if bias[1] is not None:
        total = mover.emit("Add", [total, mover.constant(bias[1] / result.scale)])
    return total, result.zero_name


def _sum(mover: _Mover, node: onnx.NodeProto, result: Quantised) -> tuple[str, str] | None:
    """a·A + (b·B + C) with the zero points in C, and rounded with it: ONNX Runtime's QLinearAdd on x86."""
    parts = [mover.quantised(name) for name in node.input]
    if any(part is None or part.scale.ndim or part.zero.ndim for part in parts):
        return None
    a, b = parts
    to_a, to_b = a.scale / result.scale, b.scale / result.scale
    fixed = np.float32(result.zero) - (to_a * np.float32(a.zero) + to_b * np.float32(b.zero))
    second = mover.emit("Add", [mover.scaled(mover.plain(b), to_b), mover.constant(fixed)])
    total = mover.emit("Add", [mover.scaled(mover.plain(a), to_a), second])
    if np.any(result.zero):
        total = mover.emit("Sub", [mover.emit("Round", [total]), mover.constant(np.float32(result.zero))])
    return total, result.zero_name


def _product(mover: _Mover, node: onnx.NodeProto, result: Quantised) -> tuple[str, str] | None:
    parts = [mover.quantised(name) for name in node.input]
    if any(part is None or part.scale.ndim or part.zero.ndim for part in parts):
        return None
    scale = parts[0].scale * parts[1].scale / result.scale
    return mover.scaled(mover.emit("Mul", [mover.integers(part) for part in parts]), scale), result.zero_name


def _average(mover: _Mover, node: onnx.NodeProto, result: Quantised) -> tuple[str, str] | None:
    """Of all pixels: a sum of integers, and one factor."""
    data = mover.quantised(node.input[0])
    if data is None or data.scale.ndim or data.zero.ndim or data.data not in mover.types:
        return None
    shape = mover.types[data.data][1]
    axes = list(range(2, len(shape)))
    given = {"axes": axes} if mover.opset < 13 else {}
    inputs = [mover.integers(data)] + ([] if given else [mover.constant(np.int64(axes))])
    total = mover.emit("ReduceSum", inputs, keepdims=1, **given)
    return mover.scaled(total, data.scale / (result.scale * np.float32(math.prod(shape[2:])))), result.zero_name


def _moving(mover: _Mover, node: onnx.NodeProto, result: Quantised) -> tuple[str, str] | None:
    """What only moves numbers, or takes the largest, moves integers. Parts of a concatenation are quantised each for itself."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    count = len(node.input) if node.op_type == "Concat" else 1
    if len(node.output) > 1 or attributes.get("mode", b"nearest") not in (b"nearest", b"DCR", b"CRD"):
        return None
    parts = [mover.quantised(name) for name in node.input[:count]]
    if any(part is None or part.scale.ndim or part.zero.ndim for part in parts):
        return None
    alike = [part.scale == result.scale and part.zero == result.zero for part in parts]
    if node.op_type != "Concat" and not all(alike):
        return None
    moved = [
        mover.integers(part) if same else mover.requantised(name, result)
        for name, part, same in zip(node.input, parts, alike, strict=False)
    ]
    return mover.emit(node.op_type, [*moved, *node.input[count:]], **attributes), result.zero_name


_MOVING = (
    "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GlobalMaxPool", "Identity", "MaxPool", "Reshape", "Resize",
    "Slice", "SpaceToDepth", "Squeeze", "Tile", "Transpose", "Unsqueeze",
)  # fmt: skip
_RULES: dict[str, Rule] = {
    "Add": _sum,
    "Conv": _convolution,
    "Gemm": _matrices,
    "GlobalAveragePool": _average,
    "MatMul": _matrices,
    "Mul": _product,
    **dict.fromkeys(_MOVING, _moving),
}
