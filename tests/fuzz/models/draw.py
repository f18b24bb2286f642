"""Graphs that are drawn: a chain of up to six operators of the ONNX schema, most of which fit together."""

from __future__ import annotations

import functools
import random
import re

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.defs import OpSchema

from tests.conformance.parameters import PARAMETERS
from tests.fuzz.models import values
from tests.fuzz.models.forms import FORMS, RANKS, Form
from tests.fuzz.models.graph import DOMAINS, Graph, Tensor, as_tensor, inferred

OPSETS = (7, 9, 11, *range(12, onnx.defs.onnx_opset_version() + 1))
_TRIES = 4  # at a node that ONNX's inference finds wrong; then it stays, one time in this many
_WORD = re.compile(r"""['"`]([A-Za-z_]{2,24})['"`]""")
_OPERATORS_OF_CHAINS = (
    "Relu", "Add", "Mul", "Sub", "Div", "Sigmoid", "Tanh", "Neg", "Abs", "Exp", "Sqrt", "Clip", "Cast", "Transpose", "Reshape",
    "Softmax", "MatMul", "Conv", "Concat", "Slice", "Pad", "ReduceMean", "ReduceSum", "ReduceMax", "Where", "Gather", "Squeeze",
    "Unsqueeze", "Flatten", "LeakyRelu", "Erf", "Gelu", "Pow", "Max", "Min", "MaxPool", "AveragePool", "BatchNormalization",
    "LayerNormalization", "Expand", "Tile", "Split", "ArgMax", "TopK", "Equal", "Less", "Not", "Resize", "Identity", "Mod",
)  # fmt: skip


@functools.cache
def schemas(opset: int) -> dict[str, OpSchema]:
    """All operators of an opset, deprecated ones left out."""
    found = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        limit = opset if schema.domain == "" else DOMAINS.get(schema.domain, 0)
        key = f"{schema.domain}.{schema.name}".lstrip(".")
        if schema.since_version <= limit and (key not in found or found[key].since_version < schema.since_version):
            found[key] = schema
    return {key: found[key] for key in sorted(found) if not found[key].deprecated}


def draw(rng: random.Random, opset: int) -> Graph:
    """A graph whose first operator is any of them."""
    graph = Graph(opset)
    offered = schemas(opset)
    first = offered[rng.choice(list(offered))]
    ends = append(rng, graph, first, None)
    extend(rng, graph, ends, rng.choice([0, 0, 1, 1, 2, 3, 5]))
    return graph


def extend(rng: random.Random, graph: Graph, ends: list[Tensor], count: int) -> None:
    """Append up to `count` operators; what they do not read is a result."""
    offered = schemas(graph.opset)
    open_ends = list(ends)
    for _ in range(count):
        usable = [t for t in open_ends if t.shape is not None]
        if not usable:
            break
        start = rng.choice(usable)
        common = rng.random() < 0.7
        names = [n for n in _OPERATORS_OF_CHAINS if n in offered] if common else list(offered)
        made = append(rng, graph, offered[rng.choice(names)], start)
        if made:
            if rng.random() < 0.8:
                open_ends.remove(start)
            open_ends += made
    graph.outputs += open_ends


def append(rng: random.Random, graph: Graph, schema: OpSchema, start: Tensor | None) -> list[Tensor]:
    """A node, which reads `start` first, if it can; its results, none if it was not appended."""
    for attempt in range(_TRIES):
        before = len(graph.kinds), dict(graph.inputs), dict(graph.constants), dict(graph.kinds)
        try:
            drawn = _node(rng, graph, schema, start)
        except (ArithmeticError, LookupError, TypeError, ValueError):  # what was drawn makes no node
            drawn = None
        if drawn is not None:
            node, given = drawn
            results = inferred(graph, node, schema, given)
            if results is not None:
                graph.nodes.append(node)
                return results
            if attempt == _TRIES - 1 and rng.randrange(_TRIES) == 0:
                graph.nodes.append(node)
                return [Tensor(name, TensorProto.FLOAT, None) for name in node.output if name]
        _, graph.inputs, graph.constants, graph.kinds = before
    if start is None:  # an operator that takes what is not drawn: a graph all the same
        node, given = _bare(rng, graph, schema)
        graph.nodes.append(node)
        return [Tensor(name, TensorProto.FLOAT, None) for name in node.output if name]
    return []


def _node(
    rng: random.Random, graph: Graph, schema: OpSchema, start: Tensor | None
) -> tuple[onnx.NodeProto, list[Tensor]] | None:
    kinds = _kinds(rng, schema, start)
    if kinds is None:
        return None
    name = schema.name
    if start is not None:
        shape = start.shape
        if name in RANKS and len(shape) not in RANKS[name] and rng.random() < 0.95:
            return None
    else:
        rank = rng.choice(RANKS[name]) if name in RANKS and rng.random() < 0.97 else None
        shape = values.shape(rng, rank)
    form = FORMS[name](rng, shape) if name in FORMS and rng.random() < 0.97 else Form()
    attributes = _attributes(rng, schema, form, len(shape), graph)
    given: list[Tensor | None] = []
    least = schema.min_input
    formal = list(schema.inputs)
    if formal and formal[-1].option == OpSchema.FormalParameterOption.Variadic:
        extra = max([0, *form.inputs]) - len(formal) + 1 if form.inputs else rng.randrange(3)
        formal += [formal[-1]] * extra
    for i, parameter in enumerate(formal):
        optional = parameter.option == OpSchema.FormalParameterOption.Optional
        wanted = form.inputs.get(i, ...)
        if i == 0 and start is not None:
            given.append(start)
        elif wanted is None or (wanted is ... and optional and i >= least and rng.random() < 0.75):
            given.append(None)
        else:
            given.append(_input(rng, graph, schema, i, parameter, kinds, shape, wanted))
    while given and given[-1] is None:
        given.pop()
    outputs = _outputs(rng, graph, schema, attributes)
    attributes = {key: value for key, value in attributes.items() if not isinstance(value, list) or value}
    node = helper.make_node(
        name, [t.name if t else "" for t in given], outputs, name=f"n{len(graph.nodes)}", domain=schema.domain, **attributes
    )
    return node, [t for t in given if t]


def _bare(rng: random.Random, graph: Graph, schema: OpSchema) -> tuple[onnx.NodeProto, list[Tensor]]:
    """With inputs of floats only, whatever it takes."""
    given = [graph.add(TensorProto.FLOAT, values.tensor(rng, TensorProto.FLOAT, values.shape(rng)), False)
             for _ in range(max(schema.min_input, 1))]  # fmt: skip
    outputs = [f"t{len(graph.nodes)}_{i}" for i in range(max(schema.min_output, 1))]
    name = f"n{len(graph.nodes)}"
    return helper.make_node(schema.name, [t.name for t in given], outputs, name=name, domain=schema.domain), given


def _kinds(rng: random.Random, schema: OpSchema, start: Tensor | None) -> dict[str, int] | None:
    """Element types by the names of the schema's variables; None where it takes something else than tensors."""
    chosen = {}
    if start is not None and schema.inputs:
        first = schema.inputs[0]
        if start.kind not in _tensor_kinds(schema, first.type_str):
            return None
        chosen[first.type_str] = start.kind
    elif start is not None:
        return None
    for parameter in schema.inputs:
        if parameter.type_str in chosen:
            continue
        allowed = _tensor_kinds(schema, parameter.type_str)
        if not allowed:
            if parameter.option == OpSchema.FormalParameterOption.Optional:
                continue
            return None
        weights = {kind: values.TYPES.get(kind, 0.5) for kind in allowed}
        chosen[parameter.type_str] = values.drawn(rng, weights)
    return chosen


@functools.cache
def _allowed(name: str, domain: str, version: int, text: str) -> tuple[int, ...]:
    schema = onnx.defs.get_schema(name, version, domain)
    texts = next((c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == text), [text])
    found = []
    for item in texts:
        inner = re.fullmatch(r"tensor\((\w+)\)", item)
        kind = inner and inner[1].upper()
        if kind and kind in TensorProto.DataType.keys():  # noqa: SIM118
            found.append(TensorProto.DataType.Value(kind))
    return tuple(found)


def _tensor_kinds(schema: OpSchema, text: str) -> tuple[int, ...]:
    return _allowed(schema.name, schema.domain, schema.since_version, text)


def _input(rng, graph, schema, i, parameter, kinds, shape, wanted) -> Tensor:
    kind = kinds[parameter.type_str]
    decides = parameter.name in PARAMETERS.get(schema.name, ())
    if isinstance(wanted, np.ndarray):
        numpy_type = helper.tensor_dtype_to_np_dtype(kind) if kind != TensorProto.STRING else None
        value = wanted if numpy_type is None else wanted.astype(numpy_type)
        return graph.add(kind, value, decides or rng.random() < 0.7)
    if wanted is ...:
        if decides and not values.is_float(kind):
            count = rng.choice([1, len(shape), 2 * len(shape)])
            wanted = () if rng.random() < 0.2 else (count,)
        else:
            wanted = shape if i == 0 or rng.random() < 0.55 else _broadcast(rng, shape)
    constant = rng.random() < (0.95 if decides else 0.3)
    return graph.add(kind, values.tensor(rng, kind, tuple(wanted)), constant)


def _broadcast(rng: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    extents = [1 if rng.random() < 0.35 else values.extent(rng) if e == 1 and rng.random() < 0.4 else e for e in shape]
    cut = rng.randrange(len(shape) + 1) if rng.random() < 0.4 else 0
    if rng.random() < 0.05:
        return values.shape(rng)
    more = [rng.choice([1, 2])] if rng.random() < 0.1 else []
    return tuple(more + extents[cut:]) if not cut else tuple(extents[cut:])


def _outputs(rng: random.Random, graph: Graph, schema: OpSchema, attributes: dict) -> list[str]:
    count = rng.randint(max(schema.min_output, 1), max(schema.min_output, min(schema.max_output, 3), 1))
    if schema.name == "Split":
        count = rng.choice([1, 2, 2, 2, 3])
        if schema.since_version >= 18 and rng.random() < 0.5:
            attributes["num_outputs"] = count
    return [f"t{len(graph.nodes)}_{i}" for i in range(count)]


def _attributes(rng: random.Random, schema: OpSchema, form: Form, rank: int, graph: Graph) -> dict[str, object]:
    known = {name: value for name, value in form.attributes.items() if name in schema.attributes}
    # What was an input later was an attribute before.
    positions = {"axes": 1, "shape": 1, "pads": 1, "split": 1, "repeats": 1, "perm": None, "starts": 1, "ends": 2}
    for name, attribute in schema.attributes.items():
        if name in known:
            continue
        at = positions.get(name)
        value = form.inputs.get(at) if at is not None and len(schema.inputs) <= at else None
        if value is not None and isinstance(value, np.ndarray) and attribute.type == OpSchema.AttrType.INTS:
            known[name] = [int(v) for v in np.atleast_1d(value)]
        elif attribute.required or rng.random() < (0.03 if form.attributes or form.inputs else 0.3):
            drawn = _attribute(rng, name, attribute, rank)
            if drawn is not None:
                known[name] = drawn
    if rng.random() < 0.04 and known:  # an odd one
        name = rng.choice(sorted(known))
        drawn = _odd(rng, schema.attributes[name].type)
        known[name] = known[name] if drawn is None else drawn
    return known


def _attribute(rng: random.Random, name: str, attribute: OpSchema.Attribute, rank: int):
    kinds = OpSchema.AttrType
    if name in ("to", "dtype", "output_dtype", "softmax_precision", "stash_type"):
        return values.drawn(rng, values.TYPES)
    if attribute.type == kinds.INT:
        if "axis" in name:
            return rng.randint(-rank, max(rank - 1, 0))
        return rng.choice([0, 1, 1, 2, 3])
    if attribute.type == kinds.FLOAT:
        return rng.choice([0.0, 1.0, 0.5, -1.0, 2.0, 1e-5, rng.gauss(0, 2)])
    if attribute.type == kinds.STRING:
        words = _WORD.findall(attribute.description)
        return rng.choice(words) if words else "text"
    if attribute.type == kinds.INTS:
        if name in ("kernel_shape", "strides", "dilations", "output_padding"):
            return [rng.choice([1, 1, 2, 3]) for _ in range(max(rank - 2, 0))]
        if name in ("pads", "border"):
            return [rng.choice([0, 0, 1, 2]) for _ in range(2 * max(rank - 2, 0))]
        if name in ("axes",):
            return [rng.randint(-rank, max(rank - 1, 0))] if rank else [0]
        return [rng.choice([0, 1, 2, 3]) for _ in range(rng.choice([1, rank, 2 * rank]))]
    if attribute.type == kinds.FLOATS:
        return [rng.gauss(0, 1) for _ in range(rng.choice([1, rank, 2]))]
    if attribute.type == kinds.STRINGS:
        return ["text"]
    if attribute.type == kinds.TENSOR:
        kind = values.drawn(rng, values.TYPES)
        value = values.tensor(rng, kind, rng.choice([(1,), (1,), values.shape(rng)]))
        return as_tensor("value", kind, value)
    return None


def _odd(rng: random.Random, kind):
    kinds = OpSchema.AttrType
    number = rng.choice([0, -1, -2, 7, 100, 2**31 - 1, -(2**31), 2**31, 2**63 - 1])
    if kind == kinds.INT:
        return number
    if kind == kinds.INTS:
        return [rng.choice([0, -1, 2, number]) for _ in range(rng.randint(1, 5))]
    if kind == kinds.FLOAT:
        return rng.choice([0.0, -1.0, 1e30, float("inf"), float("nan"), 1e-40])
    if kind == kinds.STRING:
        return rng.choice(["", "NOTSET", "other", "linear"])
    return None
