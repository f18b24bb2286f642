"""ONNX graph to Relax, on TVM's importer.

Operators that TVM's importer translates into slow or wrong code go through `flexcomp.frontend.operators`. Scalars become
constants. Errors name the node.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from flexcomp.deferred import Array, Deferred
from flexcomp.errors import UnsupportedModelError
from flexcomp.frontend.custom import Taught, plain
from flexcomp.frontend.domains import require_converters
from flexcomp.frontend.inference import infer, static_types
from flexcomp.frontend.node_names import name_all, variable_name
from flexcomp.frontend.node_names import output_names as named_outputs
from flexcomp.frontend.onnx_model import OnnxModel, graph_inputs
from flexcomp.frontend.operators import CONVERTERS, Node
from flexcomp.frontend.operators.indexing import check_indices
from flexcomp.frontend.operators.nothing import without_elements
from flexcomp.frontend.operators.pads import require_windows, resolve_auto_pad
from flexcomp.frontend.operators.parameters import require_axis, require_factors, require_parameters
from flexcomp.frontend.tensor_shapes import require_inferred, require_static

_WRITTEN_OUT = re.compile(r'ir\.Op\([^"]*name="relax\.([\w.]+)".*?support_level=\d+\)')
# ONNX's inference counts windows that lie in padding, which ONNX Runtime and the definition of other poolings leave out.
_MISINFERRED = ("LpPool",)
# The importer has no errors of its own: these are what its converters raise on what they cannot do.
_IMPORTER_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip


def convert_onnx(model: OnnxModel) -> tuple[tvm.IRModule, list, tuple[str, ...], tuple[str, ...]]:
    """Relax module, values of its parameters after the inputs, input names, output names."""
    graph = model.proto.graph
    input_names = tuple(i.name for i in graph_inputs(graph, model.large))
    output_names = tuple(o.name for o in graph.output)
    _name_nodes(graph)
    opset = next((o.version for o in model.proto.opset_import if o.domain in ("", "ai.onnx")), 1)
    importer = _Importer(graph, model.large, model.taught)
    importer.inferred = _inferred(model.proto)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):  # it prints what it raises
        warnings.simplefilter("ignore")
        try:
            mod = importer.from_onnx(graph, opset)
        except _IMPORTER_ERRORS as error:
            raise UnsupportedModelError(f"{importer.place}: {_reason(error)}") from error
    return *_large_last(name_all(mod, named_outputs(graph)), list(model.large.values())), input_names, output_names


def _large_last(mod: tvm.IRModule, large: list[Array]) -> tuple[tvm.IRModule, list]:
    """The importer's module with the parameters of main in another order: inputs, small weights, large weights."""
    main = mod["main"]
    small = list(main.attrs["params"]) if "params" in main.attrs else []
    count = int(main.attrs["num_input"])
    params = list(main.params)
    ordered = [*params[:count], *params[count + len(large) :], *params[count : count + len(large)]]
    changed = relax.Function(ordered, main.body, main.ret_ty, main.is_pure, main.attrs).without_attr("params")
    mod.update_func(mod.get_global_var("main"), changed)
    return mod, [*small, *large]


class _Importer(onnx_frontend.ONNXGraphImporter):
    """TVM's importer, with better translations and errors that name the node."""

    def __init__(self, graph: onnx.GraphProto, large: Mapping[str, Array], taught: Taught):
        # told, for it takes an axis without elements for one of unknown length
        shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in graph_inputs(graph, large)}
        super().__init__(shape_dict=shapes, dtype_dict="float32", keep_params_in_input=True)
        self._large, self._taught = large, taught
        self._params = _Values()
        self.place = "graph"  # what is being translated
        self.declared: dict[str, tuple[int | None, ...]] = {}  # by node, the extents that an output is declared to have
        self.inferred: dict[str, list[tuple[int, ...] | None]] = {}  # by node, its results' shapes by ONNX's definition
        self._has_open_block = False

    def from_onnx(self, graph: onnx.GraphProto, opset: int) -> tvm.IRModule:
        """As TVM's, but an error leaves no block open, about which TVM would warn on stderr."""
        try:
            mod = super().from_onnx(graph, opset)
            self._has_open_block = False
            return mod
        finally:
            if self._has_open_block:
                self.bb._end_block()

    def _parse_graph_initializers(self, graph: onnx.GraphProto) -> None:
        """Scalars become constants, so that converters and kernels see their values."""
        super()._parse_graph_initializers(graph)
        extents = {
            output.name: tuple(d.dim_value or None for d in output.type.tensor_type.shape.dim) for output in graph.output
        }
        self.declared = {node.name: extents[node.output[0]] for node in graph.node if node.output[0] in extents}
        for tensor in graph.initializer:
            if math.prod(tensor.dims) == 1 and len(tensor.dims) <= 1:
                key = tensor.name.removeprefix("onnx::")
                _, array = self._params.pop(key)
                self._nodes[tensor.name] = relax.const(array)
        for name, array in self._large.items():  # parameters like inputs, but not counted as such
            self._nodes[name] = self._new_var(name.removeprefix("onnx::"), array.shape, str(array.dtype))

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        self._has_open_block = True
        for name, array in self._large.items():  # converters may ask what weights are
            self._params[self._nodes[name].name] = (self._nodes[name], array)
        super()._construct_nodes(graph)

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        require_converters(graph)

    def _convert_operator(self, op_name: str, inputs: list, attrs: dict, opset: int) -> relax.Expr:
        custom = attrs["tvm_custom"]
        node = Node(
            op_name, custom["name"], inputs, attrs, opset, custom["num_outputs"], self.bb, self._weight_of,
            self.declared.get(custom["name"], ()),
        )  # fmt: skip
        self.place = f"node {node.name!r} ({op_name})"
        if op_name in self._taught.operators:
            result = self._named(self._by_operator(node), node.name, op_name)
            return without_elements(node, result)
        require_axis(node)
        require_parameters(node)
        require_factors(node)
        resolve_auto_pad(node)
        require_windows(node)
        check_indices(node)
        own = CONVERTERS.get(op_name)
        result = own(node) if own else None
        if result is None:
            result = super()._convert_operator(op_name, inputs, attrs, opset)
        elif not isinstance(result, relax.Var):
            result = self.bb.normalize(result)
        result = self._named(result, node.name, op_name)
        if isinstance(result, relax.Expr):
            require_static(self.place, result.ty)
            require_inferred(self.place, result.ty, self.inferred.get(node.name, ()))
            result = without_elements(node, result)
        return result

    def _by_operator(self, node: Node) -> relax.Expr:
        """The result of a custom operator."""
        attrs = {name: plain(value) for name, value in node.attrs.items() if name != "tvm_custom"}
        node = replace(node, attrs=attrs, opset=self._taught.versions[node.kind])
        return self._taught.convert(replace(node, results=self._taught.results(node)))

    def _named(self, result: relax.Expr, node: str, op_name: str) -> relax.Expr:
        """A tensor as a variable whose name tells the node, for errors of later phases."""
        if not isinstance(result, relax.Call):
            return result
        result = self.bb.normalize(result)
        return self.bb.emit(result, variable_name(node, op_name)) if isinstance(result.ty, relax.TensorType) else result

    def _weight_of(self, expr: relax.Expr) -> Array | None:
        if isinstance(expr, tvm.ir.GenericConst):
            return expr.value.numpy()
        if isinstance(expr, relax.Var) and expr.name in self._params:
            value = self._params.get(expr.name)[1]
            return value if isinstance(value, Array) else value.numpy()
        return None


class _Values(dict):
    """Variables and values by name; TVM's converters, which take values by [], get what is deferred as an array."""

    def __getitem__(self, name: str) -> tuple[relax.Var, object]:
        var, value = super().__getitem__(name)
        return var, np.asarray(value) if isinstance(value, Deferred) else value


def _name_nodes(graph: onnx.GraphProto) -> None:
    for i, node in enumerate(graph.node):
        if not node.name:
            node.name = next((o for o in node.output if o), f"{node.op_type}_{i}")


def _inferred(model: onnx.ModelProto) -> dict[str, list[tuple[int, ...] | None]]:
    """Shapes of results by node, as far as ONNX's inference knows them, for names that occur once."""
    shapes = {name: shape for name, (_, shape) in static_types(infer(model)).items()}
    for node in model.graph.node:
        if node.op_type in _MISINFERRED or any(name and name not in shapes for name in node.input):
            for name in node.output:
                shapes.pop(name, None)
    count = Counter(node.name for node in model.graph.node)
    return {node.name: [shapes.get(name) for name in node.output] for node in model.graph.node if count[node.name] == 1}


def _reason(error: Exception) -> str:
    """The last line of a TVM error, which is its message; the other lines say where in TVM the error was raised."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return _WRITTEN_OUT.sub(r"\1", lines[-1]) if lines else type(error).__name__
