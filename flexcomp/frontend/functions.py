"""Functions are replaced by their bodies: the model's local ones, and those by which ONNX defines an operator.

Of ONNX's operators only those without a converter are expanded: a converter makes better code than the many small operators
of a body. Bodies may hold such operators again, so this goes on until nothing more can be expanded.
"""

from __future__ import annotations

import onnx
import onnx.inliner

from flexcomp.errors import UnsupportedModelError
from flexcomp.frontend.allowance import Allowance
from flexcomp.frontend.call_sizes import take_for_calls
from flexcomp.frontend.domains import DEFAULT, RANDOM, is_converted, title
from flexcomp.frontend.inference import infer, types

_DOMAIN = "flexcomp.bodies"  # of functions made here, until they are inlined
_DEEPEST = 8  # bodies within bodies; ONNX's are three deep


def inline_local_functions(model: onnx.ModelProto, allowance: Allowance) -> onnx.ModelProto:
    """Inline the model's own functions, converted to its opset where they are of another. Changes `model`.

    Raises UnsupportedModelError for functions that would become larger than the allowance.
    """
    if not model.functions:
        return model
    take_for_calls(model, allowance)
    names = ", ".join(f"{f.domain}.{f.name}" for f in model.functions)
    try:
        return onnx.inliner.inline_local_functions(model, convert_version=True)
    except (RuntimeError, ValueError) as error:  # ONNX's version converter asserts
        raise UnsupportedModelError(
            f"the model's functions ({names}) cannot be inlined: {' '.join(str(error).split())}; export them for the "
            "model's opset"
        ) from None


def expand_functions(model: onnx.ModelProto, allowance: Allowance) -> onnx.ModelProto:
    """Replace nodes without a converter by the body that ONNX defines for their operator, if it does. Changes `model`.

    Shapes of inputs must be known: some bodies depend on types and shapes of a node's inputs.
    """
    if not any(_is_candidate(node) for node in model.graph.node):
        return model
    for _ in range(_DEEPEST):
        if not _call_bodies(model, allowance):
            break
        model = onnx.inliner.inline_local_functions(model)
    return model


def _is_candidate(node: onnx.NodeProto) -> bool:
    domain = "" if node.domain in DEFAULT else node.domain
    return not is_converted(node) and node.op_type not in RANDOM and onnx.defs.has(node.op_type, domain)


def _call_bodies(model: onnx.ModelProto, allowance: Allowance) -> bool:
    """Turn nodes without a converter into calls of local functions; whether there were any."""
    versions = {"" if o.domain in DEFAULT else o.domain: o.version for o in model.opset_import}
    found = None
    for node in model.graph.node:
        if not _is_candidate(node):
            continue
        domain = "" if node.domain in DEFAULT else node.domain
        _require_mode(node)
        _leave_out_no_cap(node)
        schema = onnx.defs.get_schema(node.op_type, versions[domain], domain)
        if schema.has_context_dependent_function and found is None:
            found = types(infer(model))
        body = _body(schema, versions[domain], node, found)
        if body is None:
            continue
        for operator in body.opset_import:
            versions.setdefault("" if operator.domain in DEFAULT else operator.domain, operator.version)
        del body.opset_import[:]
        body.opset_import.extend(onnx.helper.make_opsetid(*item) for item in versions.items())
        _require_valid(body, node)
        allowance.take(node, f"{len(body.node)} operators of its definition", len(body.node), body.ByteSize())
        given = {a.name for a in node.attribute}
        node.attribute.extend(
            a.default_value for a in schema.attributes.values() if a.name not in given and a.default_value.name
        )
        for i, inner in enumerate(body.node):
            inner.name = f"{node.name or node.output[0]}/{inner.name or f'{inner.op_type}_{i}'}"
        body.domain, body.name = _DOMAIN, f"{node.op_type}_{len(model.functions)}"
        model.functions.append(body)
        node.domain, node.op_type = body.domain, body.name
    if not model.functions:
        return False
    del model.opset_import[:]
    model.opset_import.extend(onnx.helper.make_opsetid(d, v) for d, v in {**versions, _DOMAIN: 1}.items())
    return True


def _require_mode(node: onnx.NodeProto) -> None:
    """ONNX's definition of Attention takes a mode that there is not for another one."""
    for attribute in node.attribute if node.op_type == "Attention" else ():
        if attribute.name == "qk_matmul_output_mode" and attribute.i not in range(4):
            raise UnsupportedModelError(
                f"node {node.name or node.output[0]!r} (Attention): its qk_matmul_output_mode is {attribute.i}: "
                "make it 0, 1, 2 or 3"
            )


def _leave_out_no_cap(node: onnx.NodeProto) -> None:
    """ONNX's reference and ONNX Runtime cap by positive numbers only, ONNX's definition of Attention by all but 0."""
    if node.op_type == "Attention":
        for attribute in [a for a in node.attribute if a.name == "softcap" and a.f <= 0]:
            node.attribute.remove(attribute)


def _body(
    schema: onnx.defs.OpSchema, version: int, node: onnx.NodeProto, found: dict[str, onnx.TypeProto] | None
) -> onnx.FunctionProto | None:
    """The latest body that is not newer than the model's opset."""
    fixed = [v for v in schema.function_opset_versions if v <= version]
    if fixed:
        return onnx.FunctionProto.FromString(schema.get_function_with_opset_version(max(fixed)))
    dependent = [v for v in schema.context_dependent_function_opset_versions if v <= version]
    if not dependent:
        return None
    given = [found.get(name, onnx.TypeProto()).SerializeToString() for name in node.input]
    text = schema.get_context_dependent_function_with_opset_version(max(dependent), node.SerializeToString(), given)
    return onnx.FunctionProto.FromString(text) if text else None


def _require_valid(body: onnx.FunctionProto, node: onnx.NodeProto) -> None:
    """A body may be older than the model's opset, in which its operators may have changed."""
    context = onnx.checker.C.CheckerContext()
    context.ir_version = onnx.IR_VERSION
    context.opset_imports = {o.domain: o.version for o in body.opset_import}
    try:
        onnx.checker.check_function(body, context)
    except onnx.checker.ValidationError as error:
        raise UnsupportedModelError(
            f"node {node.name or node.output[0]!r} ({title(node)}): ONNX's definition does not fit the model's opset; "
            f"convert the model with onnx.version_converter: {' '.join(str(error).split())}"
        ) from None
