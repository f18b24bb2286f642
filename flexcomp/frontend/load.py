"""`load_model` and `load_shapes`: one entry for every kind of model."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import tvm
from tvm import relax

from flexcomp.arguments import checked_shapes
from flexcomp.deferred import Array
from flexcomp.errors import InputError
from flexcomp.frontend.custom import CustomOperator
from flexcomp.frontend.encoder_files import EncoderFiles
from flexcomp.frontend.node_names import node_of, output_nodes
from flexcomp.frontend.onnx_convert import convert_onnx
from flexcomp.frontend.onnx_model import States, read_onnx, simplify_onnx
from flexcomp.frontend.relax_model import detach_weights
from flexcomp.frontend.tensor_shapes import require_shapes
from flexcomp.passes.ir import bindings, operator
from flexcomp.passes.weights import weight_vars
from flexcomp.printable import printable

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Imported:
    """A network in Relax, and its weights."""

    mod: tvm.IRModule  # main(inputs…, weights…), attribute num_input
    weights: tuple[Array, ...]  # values of main's parameters after the inputs, in order; large ones are read when needed
    name: str
    input_names: tuple[str, ...]  # as the source calls them
    output_names: tuple[str, ...]
    output_nodes: Mapping[str, str] = field(default_factory=dict)  # by output the ONNX node that computes it


def load_model(
    model: str | Path | onnx.ModelProto | EncoderFiles | tvm.IRModule,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    params: Mapping[str, object] | Sequence[object] | None = None,
    operators: Sequence[CustomOperator] = (),
    states: States = lambda outputs: {},
    values: Mapping[str, np.ndarray] | None = None,
) -> Imported:
    """Import a model in one shape.

    `input_shapes` fixes the shapes of ONNX inputs with dynamic axes, by input name. `params` are the
    weights of a Relax module: a list for main's last parameters, or a dict by parameter name; what
    `tvm.relax.frontend.detach_params` returns is understood too. `operators` are those that the user adds. `states` gives, of the
    names of outputs, the inputs that outputs become: caches among them get a capacity. Inputs with `values` become constants.

    Raises ModelError for a broken file, UnsupportedModelError for what cannot be compiled (operators,
    dynamic shapes), InputError for shapes or weights that do not fit the model.
    """
    return next(load_shapes(model, [input_shapes], params, operators, states, values))


def load_shapes(
    model: str | Path | onnx.ModelProto | EncoderFiles | tvm.IRModule,
    input_shapes: Sequence[Mapping[str, Sequence[int]] | None],
    params: Mapping[str, object] | Sequence[object] | None = None,
    operators: Sequence[CustomOperator] = (),
    states: States = lambda outputs: {},
    values: Mapping[str, np.ndarray] | None = None,
) -> Iterator[Imported]:
    """As `load_model`, in several shapes: the model is read once, and all of them hold the same large weights."""
    shapes = [checked_shapes(one, "input_shapes") for one in input_shapes]
    if isinstance(model, tvm.IRModule):
        if any(shapes):
            raise InputError("input_shapes is for ONNX models; a Relax module carries its shapes in main's parameters")
        if operators:
            raise InputError("custom_operators is for ONNX models; a Relax module calls its kernels itself")
        if values:
            raise InputError("input_values is for ONNX models; of a Relax module bind the parameters of main")
        found = (_load_relax(model, params) for _ in shapes)
    elif params is not None:
        raise InputError("params is for Relax modules; an ONNX model carries its weights itself")
    else:
        found = _load_onnx(model, shapes, operators, states, values or {})
    for imported in found:
        require_shapes(imported.mod, imported.input_names)
        _say_what_is_slow(imported.mod)
        yield imported


def title_of(model: object) -> str:
    """The title of a model that is not read yet."""
    if isinstance(model, onnx.ModelProto):
        return printable(model.graph.name or "model")
    if isinstance(model, EncoderFiles):
        model = model.encoder
    return printable(Path(model).name) if isinstance(model, str | os.PathLike) else "model"


def _say_what_is_slow(mod: tvm.IRModule) -> None:
    """Name the first operator that computes in float64."""
    main = mod["main"]
    from_weights = weight_vars(main)
    for binding in bindings(main):
        var, kind = binding.var, operator(binding.value)
        wide = isinstance(var.ty, relax.TensorType) and str(var.ty.dtype) == "float64"
        if wide and var not in from_weights and kind not in ("", "astype"):
            where = node_of(var.name) or f"operator {kind}"
            logger.warning("%s computes in float64, for which there are only slow kernels: use float32 if that is enough", where)
            return


def _load_onnx(
    source: str | Path | onnx.ModelProto | EncoderFiles,
    shapes: Sequence[Mapping[str, Sequence[int]]],
    operators: Sequence[CustomOperator],
    states: States,
    values: Mapping[str, np.ndarray],
) -> Iterator[Imported]:
    read = read_onnx(source, operators)
    for left, input_shapes in zip(reversed(range(len(shapes))), shapes, strict=True):
        with read.taught.registered():
            model = simplify_onnx(read.copy() if left else read, input_shapes, states, values)
            mod, params, input_names, output_names = convert_onnx(model)
        mod, weights = detach_weights(mod, params)
        yield Imported(mod, weights, model.name, input_names, output_names, output_nodes(model.proto.graph))


def _load_relax(mod: tvm.IRModule, params: Mapping[str, object] | Sequence[object] | None) -> Imported:
    mod, weights = detach_weights(mod, params)
    main = mod["main"]
    inputs = tuple(p.name for p in main.params[: int(main.attrs["num_input"])])
    result = main.ret_ty
    count = len(result.fields) if isinstance(result, tvm.relax.TupleType) else 1
    outputs = tuple(f"output_{i}" for i in range(count)) if count > 1 else ("output",)
    return Imported(mod, weights, "main", inputs, outputs)
