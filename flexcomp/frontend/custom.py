"""Operators that a user adds: a name, a shape rule and a converter.

Nodes of such an operator move to a domain of flexcomp's own before anything else reads the model. So neither ONNX's definition of
an operator of that name nor a function of the model replaces the nodes. While the model is simplified, ONNX's shape inference
asks the shape rules.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.defs import OpSchema
from tvm import relax

from flexcomp.errors import FlexcompError, InputError, UnsupportedModelError
from flexcomp.frontend.domains import CUSTOM, DEFAULT, all_nodes, is_converted, title
from flexcomp.frontend.operators import Node, Tensor
from flexcomp.frontend.tensor_shapes import is_static

ShapeRule = Callable[[Sequence["Tensor | None"], Mapping[str, Any]], "Tensor | Sequence[Tensor]"]

_REGISTRY = threading.RLock()  # held while ONNX knows shape rules, which it keeps for the whole process
_KINDS = {dtype: helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) for dtype in (
    "float32", "float64", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
)}  # fmt: skip
_NARROW = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)


@dataclass(frozen=True)
class CustomOperator:
    """An operator of ONNX models that a user adds.

    `name`, `domain`: of the nodes; the empty domain is ONNX's own.
    `since`, `until`: the versions of the domain that the operator is for; None: no last version.
    `shapes`: a function of (inputs, attributes) that returns the type of the result, a `Tensor`, or a list of several. Inputs are
    Tensors, with values where constants of the model are given, and None where an input is left out.
    `convert`: a function of a node that returns the result, a Relax expression, or a `relax.Tuple` of several. The function calls
    kernels by `node.call`, and may use Relax's operators. `raise node.refuse("…")` refuses a node.
    """

    name: str
    shapes: ShapeRule
    convert: Callable[[Node], Any]
    domain: str = ""
    since: int = 1
    until: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or not isinstance(self.domain, str):
            raise InputError(f"a custom operator's name and domain are words, not {self.name!r} and {self.domain!r}")
        for role, given in {"shapes": self.shapes, "convert": self.convert}.items():
            if not callable(given):
                raise InputError(f"custom operator {self}: {role} is a function, not {given!r}")
        if self.since < 1 or (self.until is not None and self.until < self.since):
            raise InputError(f"custom operator {self}: there are no versions from {self.since} to {self.until}")

    def __str__(self) -> str:
        return title(onnx.NodeProto(op_type=self.name, domain=self.domain))

    def is_for(self, node: onnx.NodeProto) -> bool:
        """Whether a node of some version has this name."""
        domains = DEFAULT if self.domain in DEFAULT else (self.domain,)
        return node.op_type == self.name and node.domain in domains

    def has(self, version: int) -> bool:
        return self.since <= version and (self.until is None or version <= self.until)


def checked_operators(given: object) -> tuple[CustomOperator, ...]:
    """Raises InputError for anything but custom operators, and for two that are for the same nodes."""
    operators = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    if given is None:
        return ()
    for i, one in enumerate(operators):
        if not isinstance(one, CustomOperator):
            raise InputError(f"custom_operators is a list of flexcomp.CustomOperator, not of {type(one).__name__}")
        for other in operators[:i]:
            overlap = one.since <= (other.until or one.since) and other.since <= (one.until or other.since)
            if overlap and other.is_for(onnx.NodeProto(op_type=one.name, domain=one.domain)):
                raise InputError(f"custom_operators has {one} twice for the same versions")
    return operators


class _AsWritten(importlib.machinery.SourceFileLoader):
    """Compiles the file itself: a cached module of the same second and size may be of an earlier text."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def operators_in(path: Path) -> tuple[CustomOperator, ...]:
    """The custom operators that a Python file has as global variables, or in lists. Raises InputError if there are none."""
    name = f"flexcomp_operators.{path.stem}"
    spec = importlib.util.spec_from_loader(name, _AsWritten(name, str(path)))
    if path.suffix != ".py" or not path.is_file():
        raise InputError(f"{path} is no Python file with custom operators: give NAME.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses and TVMScript look for it
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # anything, of a user's program
        raise InputError(f"{path}: {type(error).__name__}: {error}") from error
    values = [one for value in vars(module).values() for one in (value if isinstance(value, list | tuple) else [value])]
    found = tuple({id(one): one for one in values if isinstance(one, CustomOperator)}.values())
    if not found:
        raise InputError(f"{path} defines no flexcomp.CustomOperator as a global variable")
    return found


class _RuleError(Exception):
    """A shape rule that fails."""


@dataclass(frozen=True)
class Taught:
    """The custom operators that a model uses, by the names that their nodes have now."""

    operators: Mapping[str, CustomOperator] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)  # of the operators' domains in the model
    attributes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # of an operator's nodes, the types by name

    def results(self, node: Node) -> tuple[Tensor, ...]:
        """The results of a node by the shape rule. Raises UnsupportedModelError that names the node."""
        try:
            return self._by_rule(node.kind, [node.tensor(i) for i in range(len(node.inputs))], node.attrs, node.outputs)
        except _RuleError as error:
            raise node.refuse(str(error)) from error.__cause__

    def convert(self, node: Node) -> relax.Expr:
        """As the operator's converter, whose result has the types of the shape rule. Raises UnsupportedModelError."""
        try:
            made = self.operators[node.kind].convert(node)
            if isinstance(made, relax.Expr) and not isinstance(made, relax.Var):
                made = node.bb.normalize(made)
        except FlexcompError:
            raise
        except Exception as error:  # anything, of a user's function
            raise node.refuse(f"its converter fails: {_words(error)}") from error
        if not isinstance(made, relax.Expr):
            raise node.refuse(f"its converter gives {type(made).__name__}: give a Relax expression, as node.call does")
        fields = made.ty.fields if isinstance(made.ty, relax.TupleType) else [made.ty]
        if not is_static(made.ty) or not all(isinstance(ty, relax.TensorType) for ty in fields):
            raise node.refuse(f"its converter gives {made.ty}: give tensors of static shapes")
        found = [Tensor.of_type(ty) for ty in fields]
        for i, (one, wanted) in enumerate(zip_longest(found, node.results)):
            if one is None or wanted is None:
                raise node.refuse(f"its converter gives {len(found)} results, and its shape rule {len(node.results)}")
            if (one.shape, one.dtype) != (wanted.shape, wanted.dtype):
                raise node.refuse(f"its converter gives {one} as result {i}, and its shape rule {wanted}")
        return made

    @contextmanager
    def registered(self) -> Iterator[None]:
        """ONNX's inference knows the operators meanwhile. Where a shape rule fails, it raises UnsupportedModelError."""
        if not self.operators:
            yield
            return
        with _REGISTRY:
            known = []
            try:
                for kind in self.operators:
                    onnx.defs.register_schema(self._schema(kind))
                    known.append(kind)
                yield
            finally:
                for kind in known:
                    onnx.defs.deregister_schema(kind, 1, CUSTOM)

    def _schema(self, kind: str) -> OpSchema:
        kinds = (*_KINDS.values(), *_NARROW)
        every = sorted(f"tensor({onnx.TensorProto.DataType.Name(value).lower()})" for value in kinds)
        many = OpSchema.FormalParameterOption.Variadic
        schema = OpSchema(
            kind, CUSTOM, 1,
            inputs=[OpSchema.FormalParameter("inputs", "A", param_option=many, is_homogeneous=False, min_arity=0)],
            outputs=[OpSchema.FormalParameter("outputs", "B", param_option=many, is_homogeneous=False)],
            type_constraints=[("A", every, ""), ("B", every, "")],
            attributes=[
                OpSchema.Attribute(name, OpSchema.AttrType(type_), "", required=False)
                for name, type_ in self.attributes[kind].items()
            ],
        )  # fmt: skip
        schema.set_type_and_shape_inference_function(lambda context: self._infer(kind, context))
        return schema

    def _infer(self, kind: str, context: Any) -> None:
        """Give results their types. Rules see 16-bit floats as float32, and results of float32 are as the inputs were."""
        inputs, floats = [], onnx.TensorProto.FLOAT
        for i in range(context.get_num_inputs()):
            given = context.get_input_type(i) if context.has_input(i) else None
            if context.has_input(i) and (given is None or not _is_static(given)):
                return
            if given is not None and given.tensor_type.elem_type in _NARROW:
                floats = given.tensor_type.elem_type
            inputs.append(None if given is None else _tensor(given, context.get_input_data(i)))
        found = {name: context.get_attribute(name) for name in self.attributes[kind]}
        attrs = {name: plain(helper.get_attribute_value(one)) for name, one in found.items() if one is not None}
        try:
            results = self._by_rule(kind, inputs, attrs, context.get_num_outputs())
        except _RuleError as error:
            name = context.get_display_name().removeprefix(f"node {kind}[{CUSTOM}] (").removesuffix(")")
            raise UnsupportedModelError(f"node {name!r} ({kind}): {error}") from error.__cause__
        for i, result in enumerate(results):
            element = floats if result.dtype == "float32" else _KINDS[result.dtype]
            context.set_output_type(i, helper.make_tensor_type_proto(element, result.shape))

    def _by_rule(
        self, kind: str, inputs: Sequence[Tensor | None], attrs: Mapping[str, Any], count: int
    ) -> tuple[Tensor, ...]:
        """The first `count` results."""
        try:
            found = self.operators[kind].shapes(list(inputs), dict(attrs))
            results = (found,) if isinstance(found, Tensor) else tuple(found)
            results = tuple(Tensor(tuple(map(int, one.shape)), str(one.dtype)) for one in results)
        except Exception as error:  # anything, of a user's function
            raise _RuleError(f"its shape rule fails: {_words(error)}") from error
        if len(results) < count:
            raise _RuleError(f"its shape rule gives {len(results)} results, and the node has {count}")
        for one in results:
            if one.dtype not in _KINDS or min(one.shape, default=1) < 0:
                raise _RuleError(f"its shape rule gives {one}: give extents of 0 or more, and one of {', '.join(_KINDS)}")
        return results[:count]


def teach(model: onnx.ModelProto, operators: Sequence[CustomOperator]) -> Taught:
    """Move the nodes of these operators to a domain of their own. Changes `model`.

    Raises UnsupportedModelError for a node of which there is an operator, but not for the version of its domain.
    """
    taught: dict[str, CustomOperator] = {}
    versions: dict[str, int] = {}
    attributes: dict[str, dict[str, int]] = {}
    holders = [(model.graph, model.opset_import), *((function, function.opset_import) for function in model.functions)]
    for holder, imports in holders if operators else ():
        version_of = {imported.domain: imported.version for imported in (*model.opset_import, *imports)}
        moved = False
        for node in all_nodes(holder):
            named = [one for one in operators if one.is_for(node)]
            version = next((version_of[d] for d in (DEFAULT if node.domain in DEFAULT else (node.domain,)) if d in version_of), 1)
            fitting = next((one for one in named if one.has(version)), None)
            if fitting is None:
                if named and not is_converted(node):
                    raise UnsupportedModelError(
                        f"node {node.name or next(filter(None, node.output), '')!r} ({title(node)}): the custom operator is not "
                        f"for version {version} of its domain: give one that is"
                    )
                continue
            kind = f"{node.domain or DEFAULT[1]}.{node.op_type}"
            taught[kind], versions[kind] = fitting, version
            attributes.setdefault(kind, {}).update((attribute.name, attribute.type) for attribute in node.attribute)
            node.name = node.name or next(filter(None, node.output), "")
            node.domain, node.op_type, moved = CUSTOM, kind, True
        if moved:
            imports.append(helper.make_opsetid(CUSTOM, 1))
    if taught and not any(imported.domain == CUSTOM for imported in model.opset_import):
        model.opset_import.append(helper.make_opsetid(CUSTOM, 1))  # for nodes that come out of functions
    return Taught(taught, versions, attributes)


def plain(value: Any) -> Any:
    """An attribute's value as Python has it: text, and arrays for tensors."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return [plain(one) for one in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def _is_static(given: onnx.TypeProto) -> bool:
    tensor = given.tensor_type
    return given.HasField("tensor_type") and tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim)


def _tensor(given: onnx.TypeProto, data: onnx.TensorProto | None) -> Tensor:
    element = given.tensor_type.elem_type
    dtype = "float32" if element in _NARROW else str(helper.tensor_dtype_to_np_dtype(element))
    value = None if data is None else numpy_helper.to_array(data).astype(dtype, copy=False)
    return Tensor(tuple(d.dim_value for d in given.tensor_type.shape.dim), dtype, value)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
