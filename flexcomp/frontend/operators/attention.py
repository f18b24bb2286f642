"""Attention over a cache of a fixed capacity, of which some rows are valid."""

from __future__ import annotations

import math

import onnx
from tvm import relax
from tvm.relax import op

from flexcomp.frontend.operators.node import Converter, Node, dtype_of, shape_of
from flexcomp.passes.check_indices import Bounds
from flexcomp.passes.lower_attention import attention_over

_LENGTHS = 6  # the input "nonpad_kv_seqlen"
_OTHERS = (3, 4, 5)  # a mask, keys and values of before
_NEUTRAL = {"softcap": 0.0, "left_window_size": -1, "right_window_size": -1}


def is_over_cache(node: onnx.NodeProto) -> bool:
    """Whether an Attention says how many of its keys are valid, and wants nothing that only ONNX's own definition of it gives."""
    given = {i for i, name in enumerate(node.input) if name}
    attributes = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    plain = all(attributes.get(name, value) == value for name, value in _NEUTRAL.items())
    floats = attributes.get("softmax_precision", onnx.TensorProto.FLOAT) == onnx.TensorProto.FLOAT
    return _LENGTHS in given and not given & set(_OTHERS) and not any(node.output[1:]) and plain and floats


def length_bounds(node: Node) -> Bounds:
    """How many keys may be valid: up to all there are."""
    return ((0, shape_of(node.inputs[1])[-2] + 1),)


def _attention(node: Node) -> relax.Expr:
    q, k, v = (_heads(node, i) for i in range(3))
    lengths = node.inputs[_LENGTHS]
    (batch, heads, queries, depth), (_, shared, keys, _) = shape_of(q), shape_of(k)
    sizes = shape_of(k)[0] == shape_of(v)[0] == batch and shape_of(v)[1:3] == (shared, keys)
    if not sizes or shape_of(k)[3] != depth or heads % shared or shape_of(lengths) != (batch,):
        tensors = ", ".join(str(shape_of(one)) for one in (q, k, v, lengths))
        raise node.refuse(f"Q, K, V and the numbers of valid keys, {tensors}, do not fit each other: correct the network")
    if node.dtype == "float64":
        raise node.refuse("it computes in float64, over a cache: export the network in float32")
    scale = float(node.attrs.get("scale", 1 / math.sqrt(depth)))
    lengths = node.emit(lengths if dtype_of(lengths) == "int64" else op.astype(lengths, "int64"))
    given = [one if dtype_of(one) == "float32" else node.emit(op.astype(one, "float32")) for one in (q, k, v)]
    result = node.emit(attention_over(*given, lengths, scale, bool(node.attrs.get("is_causal", 0))))
    if node.dtype != "float32":
        result = node.emit(op.astype(result, node.dtype))
    if len(node.shape) == 4:
        return result
    joined = node.emit(op.permute_dims(result, (0, 2, 1, 3)))
    return op.reshape(joined, (batch, queries, heads * shape_of(v)[3]))


def _heads(node: Node, i: int) -> relax.Expr:
    """Input `i` as [batch, heads, rows, depth]."""
    given = node.inputs[i]
    if len(shape_of(given)) == 4:
        return node.emit(given)
    name = "q_num_heads" if i == 0 else "kv_num_heads"
    heads = int(node.attrs.get(name, 0))
    if len(shape_of(given)) != 3 or heads < 1 or shape_of(given)[2] % heads:
        raise node.refuse(f"its input {i}, {shape_of(given)}, is no whole number of heads, of which {name} says {heads}")
    batch, rows, width = shape_of(given)
    return node.emit(op.permute_dims(node.emit(op.reshape(given, (batch, rows, heads, width // heads))), (0, 2, 1, 3)))


CONVERTERS: dict[str, Converter] = {"Attention": _attention}
