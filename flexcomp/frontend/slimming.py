"""onnxslim, which removes and fuses nodes, held to what a graph means: it is told true shapes, and its results are checked.

    x: (1, 2, 5, 5)  →  Expand(x, [1, 2, 1, 5])      stays, where ONNX's own inference knows no extents of x

onnxslim's inference takes unknown extents for equal ones, so it is given ONNX's. Fusions that do not look at all that they
depend on are left out for graphs where it matters. A result with a shape that contradicts the given graph's is not used.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from flexcomp.frontend.fold import LARGEST
from flexcomp.frontend.inference import forget_shapes, infer, inferred_shapes, static_types
from flexcomp.frontend.onnxslim_alone import onnxslim
from flexcomp.frontend.weight_nodes import with_weight_nodes, without_weight_nodes

get_fusion_patterns = onnxslim.core.pattern.registry.get_fusion_patterns
OnnxGraphSurgeonException = onnxslim.third_party.onnx_graphsurgeon.util.exception.OnnxGraphSurgeonException

logger = logging.getLogger(__name__)

_MOST_FOLDED_NBYTES = 8 * LARGEST  # of a result: larger ones are folded where they need not be written into the model
_NORMS = ("FusionConvBN", "FusionConvTransposeBN")
_PRODUCTS = ("FusionConvMul", "FusionConvTransposeMul")
# Patterns that mean the same wherever they match; those that newer versions add are not used until somebody has read them.
_PATTERNS = frozenset({
    *_NORMS, *_PRODUCTS, "FusionConvAdd", "FusionConvTransposeAdd", "FusionGemm", "FusionGemmAdd", "FusionGemmMul",
    "FusionPadConv", "FusionReduce", "FusionConcatReshape", "EliminationConcat", "EliminationReshape", "EliminationReshapeAs",
    "EliminationSlice", "EliminationTranspose", "EliminationTransposeAsReshape", "EliminationTransposeViewTranspose",
    "EliminationUnsqueeze",
})  # fmt: skip
# Foreign code with no errors of its own: what malformed input makes it raise.
_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError,
    ValueError, DecodeError, OnnxGraphSurgeonException,
)  # fmt: skip


def slim(model: onnx.ModelProto, large: Collection[str] = ()) -> onnx.ModelProto:
    """With fewer nodes, and shapes inferred. The model itself, with a warning, where onnxslim fails or changes a shape.

    `large`: inputs that stand in for weights.
    """
    given = inferred_shapes(model)
    try:
        result = _slimmed(given, large)
        if (problem := _contradiction(given, result)) is None:
            return result
    except _ERRORS as error:
        problem = " ".join(str(error).split())
    logger.warning(
        "the model is imported as it is, and shapes that it computes may be refused: onnxslim cannot simplify it: %s", problem
    )
    return given


def _slimmed(given: onnx.ModelProto, large: Collection[str]) -> onnx.ModelProto:
    places = {name: place for node in given.graph.node for place, name in enumerate(node.output) if name}
    allowed = _PATTERNS - set(_left_out(given.graph))
    skipped = [name for name in get_fusion_patterns() if name not in allowed]
    merging = ["weight_tying", "subexpression_elimination"] if _has_negative_zero(given.graph) else None
    options = {"size_threshold": _MOST_FOLDED_NBYTES, "skip_fusion_patterns": skipped, "skip_optimizations": merging}
    model = onnxslim.slim(with_weight_nodes(given, large), no_shape_infer=True, **options)
    without_weight_nodes(model, given)
    _put_results_back(model.graph, places)
    return model


def _left_out(graph: onnx.GraphProto) -> Iterator[str]:
    """Patterns that would change results of this graph, or copy its weights."""
    types, constants = static_types(graph), {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    convolutions = [node for node in graph.node if node.op_type in ("Conv", "ConvTranspose")]
    weights = Counter(name for node in convolutions for name in node.input[1:2])
    if max(weights.values(), default=0) > 1:  # a weight times the scales of several readers would be as many weights
        yield from (*_NORMS, *_PRODUCTS)
    products = [node for node in graph.node if node.op_type == "Mul"]
    if not all(_is_of_channels(node, types, constants) for node in products):
        yield from _PRODUCTS
    if any(node.op_type == "Pad" and len(node.input) > 3 for node in graph.node):  # pads of some axes are taken for all
        yield "FusionPadConv"
    # The factor of a reshaped Gemm goes into its weights, whoever else reads its result; of two factors in a row one gets lost.
    readers = Counter(name for node in graph.node for name in node.input)
    factors = {name for node in products for name in node.input}
    views = (node for node in graph.node if node.op_type == "Reshape" and node.output[0] in factors)
    if any(readers[node.input[0]] > 1 for node in views) or _has_factors_in_a_row(graph, products):
        yield "FusionGemmMul"


def _has_factors_in_a_row(graph: onnx.GraphProto, products: Iterable[onnx.NodeProto]) -> bool:
    """Whether a product, reshaped or permuted, is multiplied again."""
    makers = {node.output[0]: node for node in graph.node if node.op_type in ("Mul", "Reshape", "Transpose")}
    for product in products:
        for name in product.input:
            views = 0
            while name in makers and makers[name].op_type != "Mul":
                name, views = makers[name].input[0], views + 1
            if views and name in makers:
                return True
    return False


def _is_of_channels(node: onnx.NodeProto, types: Mapping, constants: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether constants that this product reads have one value, or one for each channel."""
    rank = len(types[node.output[0]][1]) if node.output[0] in types else None
    for shape in (constants[name] for name in node.input if name in constants):
        axes = [axis - len(shape) for axis, extent in enumerate(shape) if extent != 1]
        if axes and (rank is None or axes != [1 - rank]):
            return False
    return True


def _has_negative_zero(graph: onnx.GraphProto) -> bool:
    """Whether equal constants may differ in the sign of a zero."""
    for tensor in graph.initializer:
        if tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16):
            value = numpy_helper.to_array(tensor)
            if (np.signbit(value) & (value == 0)).any():
                return True
    return False


def _contradiction(given: onnx.ModelProto, result: onnx.ModelProto) -> str | None:
    """A tensor that is read and not made, or one of both whose type or shape differs by ONNX's own inference, in words."""
    graph = result.graph
    weights = (*graph.initializer, *(one.values for one in graph.sparse_initializer))
    made = {one.name for one in (*weights, *graph.input)} | {name for node in graph.node for name in node.output}
    if lost := {name for node in graph.node for name in node.input} - made - {""}:
        return f"it loses {min(lost)!r}"
    checked = onnx.ModelProto.FromString(result.SerializeToString())
    forget_shapes(checked.graph)
    before, after = static_types(given.graph), static_types(infer(checked))
    for name in before.keys() & after.keys():
        if before[name] != after[name]:
            return f"it makes {list(after[name][1])} of the {list(before[name][1])} of {name!r}"
    return None


def _put_results_back(graph: onnx.GraphProto, places: Mapping[str, int]) -> None:
    """Let results be at their places again: onnxslim drops one that it computes itself, and the next one moves up."""
    for node in graph.node:
        own = {places[name]: name for name in node.output if name in places}
        if own and list(own) != list(range(len(node.output))) and len(own) == sum(map(bool, node.output)):
            names = [own.get(place, f"{node.name or node.op_type}/dropped/{place}") for place in range(max(own) + 1)]
            del node.output[:]
            node.output.extend(names)
