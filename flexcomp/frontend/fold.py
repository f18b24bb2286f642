"""Computes at build time all results that are known: shapes, results of constants, and tensors without elements.

    Shape(x), x: (1, 3, 224, 224)     →  [1, 3, 224, 224]
    Concat([2], Mul([3], [4]))        →  [2, 12]
    ReduceSum(x, [0]), x: (0, 4)      →  [0, 0, 0, 0]

Values are those of ONNX's reference implementation, where it is reliable: shapes, indices, tables and arithmetic.
`flexcomp.compiler.weights` computes large values, and those of pooling, norms and resampling, without writing them into the
model.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from flexcomp.errors import ModelError
from flexcomp.frontend.allowance import Allowance
from flexcomp.frontend.domains import DEFAULT, RANDOM
from flexcomp.frontend.element_types import KNOWN
from flexcomp.frontend.inference import StaticType, forget_shapes, infer, static_types

LARGEST = 1 << 14  # elements: shapes, indices, tables; the weights of a layer are larger
LARGEST_INDICES = 1 << 22  # elements, of tensors that `known_results` is asked for by name
_SMALL_NBYTES = 1 << 10  # the node takes about as much
_MOST_ABOUT_NOTHING = 2**31  # product of the other extents of a tensor without elements: NumPy has a limit, too
_MOST_VIEWED = 2**59  # product of the extents, but zeros, of an array that repeats one element: NumPy counts its bytes in 63 bits
_ROUNDS = 6  # each can make shapes known that the next one folds
_ONLY_TYPE_READ = {"Shape": 0, "Size": 0, "EyeLike": 0, "CastLike": 1}  # operator → an input whose values are not read
_KEPT = ("DequantizeLinear", "Dropout")  # weights are to stay in the 8 bits that a file has
# Of these the reference implementation departs from ONNX's definitions, for some ranks, attributes or values.
_DEPARTING = (
    "AffineGrid", "Attention", "AveragePool", "BatchNormalization", "Celu", "Conv", "ConvTranspose", "DFT", "DeformConv",
    "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "GridSample", "GroupNormalization", "Hardmax",
    "InstanceNormalization", "LRN", "LayerNormalization", "LogSoftmax", "LpNormalization", "LpPool", "MaxPool",
    "MaxRoiPool", "MaxUnpool", "MeanVarianceNormalization", "NegativeLogLikelihoodLoss", "RMSNormalization", "Resize",
    "ReverseSequence", "RoiAlign", "RotaryEmbedding", "STFT", "Softmax", "SoftmaxCrossEntropyLoss", "Upsample",
)  # fmt: skip
_UNREAD = (  # attributes of recurrent layers, which the reference implementation leaves aside
    "activation_alpha", "activation_beta", "activations", "clip", "input_forget", "linear_before_reset",
)  # fmt: skip
_ANY_SIZE = ("ConstantOfShape", "Expand", "Range", "Tile")  # few constants in, many out

# The reference implementation has no errors of its own: what it raises on what it does not do.
_REFERENCE_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, OSError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip


@dataclass(frozen=True)
class Known:
    """Types of tensors, as far as they can be told, and the values of those that are known and small."""

    types: Mapping[str, StaticType]
    values: Mapping[str, np.ndarray]


def fold_constants(model: onnx.ModelProto, allowance: Allowance) -> None:
    """Replace nodes whose results are known by initialisers. Changes `model`; shapes of inputs must be static.

    Results for which no allowance is left stay nodes.
    """
    for _ in range(_ROUNDS):
        if not _fold(model, allowance).values:
            break


def _fold(model: onnx.ModelProto, allowance: Allowance, indices: Set[str] = frozenset()) -> Known:
    """One pass over the graph: all types before it, and what was folded, of `indices` larger ones, too."""
    types = static_types(infer(model))
    known: dict[str, np.ndarray] = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if math.prod(tensor.dims) <= LARGEST and tensor.data_type in KNOWN
    }
    for name, (element, shape) in types.items():
        if math.prod(shape) == 0 and math.prod(extent or 1 for extent in shape) < _MOST_ABOUT_NOTHING and element in KNOWN:
            known.setdefault(name, np.empty(shape, onnx.helper.tensor_dtype_to_np_dtype(element)))
    kept, folded = [], {}
    for node in model.graph.node:
        values = _values(node, known, types, model, LARGEST_INDICES if indices & {*node.output} else LARGEST)
        if values is None or not allowance.folds(sum(v.nbytes for v in values.values() if v.nbytes > _SMALL_NBYTES)):
            kept.append(_without_empty(node, known) if node.op_type == "Concat" else node)
        else:
            known.update(values)
            folded.update(values)
    read = {name for node in kept for name in node.input} | {output.name for output in model.graph.output}
    del model.graph.node[:]
    model.graph.node.extend(kept)
    read |= read_inside(kept)
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in folded.items() if n in read)
    return Known(types, folded)


def known_results(model: onnx.ModelProto, indices: Set[str] = frozenset()) -> Known:
    """What is known of the tensors of the outermost graph; shapes of inputs must be static. The model is left alone.

    Of `indices` values of up to LARGEST_INDICES elements are known, of others of up to LARGEST.
    """
    folded = onnx.ModelProto.FromString(model.SerializeToString())
    forget_shapes(folded.graph)
    tensors = [tensor for tensor in folded.graph.initializer if math.prod(tensor.dims) <= LARGEST and tensor.data_type in KNOWN]
    types: dict[str, StaticType] = {}
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in tensors}
    for _ in range(_ROUNDS):
        found = _fold(folded, Allowance(), indices)
        types |= found.types
        values |= found.values
        if not found.values:
            break
    return Known(types | {name: (_element(value), value.shape) for name, value in values.items()}, values)


def result_of(
    nodes: Sequence[onnx.NodeProto], name: str, known: dict[str, np.ndarray], model: onnx.ModelProto
) -> np.ndarray | None:
    """The value of `name`, which `nodes` compute in order, if it follows from `known`; computed values are added there."""
    for node in nodes:
        known |= _values(node, known, {}, model) or {}
    return known.get(name)


def _without_empty(concat: onnx.NodeProto, known: Mapping[str, np.ndarray]) -> onnx.NodeProto:
    """The parts that have elements."""
    parts = [name for name in concat.input if name not in known or known[name].size]
    del concat.input[:]
    concat.input.extend(parts)
    return concat


def _values(
    node: onnx.NodeProto, known: Mapping[str, np.ndarray], types: Mapping[str, StaticType], model: onnx.ModelProto,
    largest: int = LARGEST,
) -> dict[str, np.ndarray] | None:  # fmt: skip
    """The node's results if they are known and have at most `largest` elements."""
    if node.domain not in DEFAULT or any(_holds_graph(a) for a in node.attribute):
        return None
    _require_step(node, known)
    named = [name for name in node.output if name]
    if named and all(name in known for name in named):  # without elements: no one knows their values, or needs to
        return {name: known[name] for name in named}
    if node.op_type in (*RANDOM, *_KEPT, *_DEPARTING) or any(attribute.name in _UNREAD for attribute in node.attribute):
        return None
    given = {}
    for i, name in enumerate(node.input):
        if name in known:
            given[name] = known[name]
        elif name in types and i == _ONLY_TYPE_READ.get(node.op_type):
            element, shape = types[name]
            if math.prod(extent or 1 for extent in shape) >= _MOST_VIEWED:
                return None
            given[name] = np.broadcast_to(np.zeros((), onnx.helper.tensor_dtype_to_np_dtype(element)), shape)
        elif name:
            return None
    if any(math.prod(types[name][1]) > largest for name in named if name in types):
        return None
    if node.op_type in _ANY_SIZE and any(name not in types for name in named):
        return None
    return _evaluate(node, given, types, model)


def _require_step(node: onnx.NodeProto, known: Mapping[str, np.ndarray]) -> None:
    """Raise ModelError for a Range with a step of 0, for which ONNX's tools give arbitrary results."""
    if node.op_type == "Range" and node.input[2] in known and not known[node.input[2]].any():
        raise ModelError(f"node {node.name or node.output[0]!r} (Range): its step is 0: make it another number")


def _evaluate(
    node: onnx.NodeProto, given: Mapping[str, np.ndarray], types: Mapping[str, StaticType], model: onnx.ModelProto
) -> dict[str, np.ndarray] | None:
    named = [name for name in node.output if name]
    graph = onnx.helper.make_graph(
        [node],
        "folded",
        [onnx.helper.make_tensor_value_info(n, types[n][0] if n in types else _element(v), v.shape) for n, v in given.items()],
        [onnx.helper.make_empty_tensor_value_info(name) for name in named],
    )
    single = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = ReferenceEvaluator(single).run(None, dict(given))
    except _REFERENCE_ERRORS:
        return None
    if any(isinstance(value, list) for value in found):
        return None  # sequences, which `sequences` writes out
    values = {name: np.asarray(value) for name, value in zip(named, found, strict=True)}
    for name, value in values.items():
        if name in types and (_element(value), value.shape) != types[name]:
            return None  # the reference implementation departs from ONNX's own inference
    return values


def _element(value: np.ndarray) -> int:
    return onnx.helper.np_dtype_to_tensor_dtype(value.dtype)


def _holds_graph(attribute: onnx.AttributeProto) -> bool:
    return attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def read_inside(nodes: list[onnx.NodeProto]) -> set[str]:
    """Names that graphs in attributes read, theirs and the outer graph's."""
    graphs = [g for node in nodes for a in node.attribute for g in (a.g, *a.graphs) if _holds_graph(a)]
    names = {output.name for graph in graphs for output in graph.output}
    for graph in graphs:
        names |= {name for node in graph.node for name in node.input} | read_inside(list(graph.node))
    return names
