"""Scales are moved after sums: between DequantizeLinear and QuantizeLinear, integers are multiplied and added up.

    Q(Conv(DQ(x, sx, zx), DQ(w, sw, zw), DQ(b, sx·sw)), sy, zy)   →   Q(Mul(Conv(DQ(x, 1, zx), DQ(w, 1, zw), b), sx·sw/sy), 1, zy)

float32 holds the integers up to 2^24, so smaller sums are exact in any order, and only one product with one scale is rounded, as
in ONNX Runtime's kernels. Larger sums are cut into parts, which are added in int32. Where ONNX Runtime's arithmetic decides last
bits (a sum of two tensors, an average), this follows it. ONNX Runtime has no integer kernels for 16 bits: 16-bit operators that
float32 cannot compute exactly stay as written, which is how ONNX Runtime computes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper

from flexcomp.frontend.domains import DEFAULT
from flexcomp.frontend.quantised.products import EIGHT_BITS, Product, Quantised, QuantisedWriter
from flexcomp.frontend.quantised.removal import remove_bounds
from flexcomp.frontend.quantised.sums import EXACT


def move_scales(model: onnx.ModelProto) -> None:
    """Move scales after the sums of the outermost graph. Changes `model`, whose shapes are inferred."""
    if any(node.op_type == "QuantizeLinear" for node in model.graph.node):
        remove_bounds(model.graph)
        _Mover(model).rewrite()


class _Mover(QuantisedWriter):
    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
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
        """Write nodes that compute the result of `quantise` from integers. Returns whether that is possible."""
        result = self.parameters(quantise)
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

# A rule writes the sum of a node, scaled for its result, and returns its name and that of the zero point; or None.
Rule = Callable[[_Mover, onnx.NodeProto, Quantised], "tuple[str, str] | None"]


def _convolution(mover: _Mover, node: onnx.NodeProto, result: Quantised) -> tuple[str, str] | None:
    data, weight = mover.quantised(node.input[0]), mover.quantised(node.input[1])
    if data is None or weight is None or data.scale.ndim or data.zero.ndim or weight.data not in mover.constants:
        return None
    if (weight.scale.ndim or weight.zero.ndim) and weight.axis != 0:
        return None
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    rank = len(mover.types[weight.data][1])
    along = (-1, *[1] * (rank - 2))
    product = Product("Conv", data, weight, (1, 1), tuple(range(2, rank)), along, attributes)
    return _scaled(mover, product, node, data.scale * weight.scale, result)


def _matrices(mover: _Mover, node: onnx.NodeProto, result: Quantised) -> tuple[str, str] | None:
    left, right = mover.quantised(node.input[0]), mover.quantised(node.input[1])
    if left is None or right is None or left.scale.ndim or left.zero.ndim or left.data not in mover.types:
        return None
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    left_rank, rank = (len(mover.types[of.data][1]) for of in (left, right))
    rows, columns = (1, 0) if attributes.get("transB", 0) else (max(rank - 2, 0), rank - 1)
    if (right.scale.ndim or right.zero.ndim) and (rank != 2 or right.axis % rank != columns):
        return None
    scale = left.scale * right.scale * np.float32(attributes.pop("alpha", 1.0))
    if len(node.input) > 2 and node.input[2] and attributes.pop("beta", 1.0) != 1.0:
        return None
    attributes.pop("beta", None)
    summed = 0 if attributes.get("transA", 0) else left_rank - 1
    product = Product(node.op_type, left, right, (summed, rows), (), (-1,), attributes)
    return _scaled(mover, product, node, scale, result)


def _scaled(
    mover: _Mover, product: Product, node: onnx.NodeProto, scale: np.ndarray, result: Quantised
) -> tuple[str, str] | None:
    """The sums of a product and of the node's bias, times a scale for all or for each output channel."""
    bias = mover.bias(node.input[2] if len(node.input) > 2 else "", scale)
    total = None if bias is None else mover.total(product, bias)
    if total is None:
        return None
    total = mover.scaled(total, (scale / result.scale).reshape(product.along if scale.ndim else ()))
    if bias.real is not None:
        real = bias.real / result.scale
        total = mover.emit("Add", [total, mover.constant(real.reshape(product.along) if real.ndim == 1 else real)])
    return total, result.zero_name


def _sum(mover: _Mover, node: onnx.NodeProto, result: Quantised) -> tuple[str, str] | None:
    """a·A + (b·B + C) with the zero points in C, and rounded with it: ONNX Runtime's QLinearAdd on x86."""
    parts = [mover.quantised(name) for name in node.input]
    if any(part is None or part.scale.ndim or part.zero.ndim for part in parts):
        return None
    if any(mover.types[part.data][0] not in EIGHT_BITS for part in parts):
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
    if max(abs(a * b) for a in mover.range(parts[0]) for b in mover.range(parts[1])) >= EXACT:
        return None
    scale = parts[0].scale * parts[1].scale / result.scale
    return mover.scaled(mover.emit("Mul", [mover.integers(part) for part in parts]), scale), result.zero_name


def _average(mover: _Mover, node: onnx.NodeProto, result: Quantised) -> tuple[str, str] | None:
    """The average of all pixels: a sum of integers, and one factor."""
    data = mover.quantised(node.input[0])
    if data is None or data.scale.ndim or data.zero.ndim or data.data not in mover.types:
        return None
    shape = mover.types[data.data][1]
    axes = list(range(2, len(shape)))
    if math.prod(shape[2:]) * max(map(abs, mover.range(data))) >= EXACT:
        return None
    given = {"axes": axes} if mover.opset < 13 else {}
    inputs = [mover.integers(data)] + ([] if given else [mover.constant(np.int64(axes))])
    total = mover.emit("ReduceSum", inputs, keepdims=1, **given)
    return mover.scaled(total, data.scale / (result.scale * np.float32(math.prod(shape[2:])))), result.zero_name


def _moving(mover: _Mover, node: onnx.NodeProto, result: Quantised) -> tuple[str, str] | None:
    """Operators that only move numbers, or take the largest, move integers. Parts of a concatenation are quantised apart."""
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
