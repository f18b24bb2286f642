"""`load_model`: one entry for every kind of model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import tvm

from flexcomp.errors import InputError
from flexcomp.frontend.onnx_convert import convert_onnx
from flexcomp.frontend.onnx_model import read_onnx, simplify_onnx
from flexcomp.frontend.relax_model import detach_weights, require_static


@dataclass(frozen=True)
class Imported:
    """A network in Relax, with its weights beside it."""

    mod: tvm.IRModule  # main(inputs…, weights…), attribute num_input
    weights: tuple[np.ndarray, ...]  # values of main's parameters after the inputs, in order
    name: str
    input_names: tuple[str, ...]  # as the source calls them
    output_names: tuple[str, ...]


def load_model(
    model: str | Path | onnx.ModelProto | tvm.IRModule,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    params: Mapping[str, object] | Sequence[object] | None = None,
) -> Imported:
    """Import a model.

    `input_shapes` fixes the shapes of ONNX inputs with dynamic axes, by input name. `params` are the
    weights of a Relax module: a list for main's last parameters, or a dict by parameter name; what
    `tvm.relax.frontend.detach_params` returns is understood too.

    Raises ModelError for a broken file, UnsupportedModelError for what cannot be compiled (operators,
    dynamic shapes), InputError for shapes or weights that do not fit the model.
    """
    if isinstance(model, tvm.IRModule):
        if input_shapes:
            raise InputError("input_shapes is for ONNX models; a Relax module carries its shapes in main's parameters")
        return _load_relax(model, params)
    if params is not None:
        raise InputError("params is for Relax modules; an ONNX model carries its weights itself")
    return _load_onnx(model, input_shapes or {})


def _load_onnx(source: str | Path | onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]]) -> Imported:
    proto, name = read_onnx(source)
    proto = simplify_onnx(proto, input_shapes)
    mod, input_names, output_names = convert_onnx(proto)
    mod, weights = detach_weights(mod)
    return Imported(mod, weights, name, input_names, output_names)


def _load_relax(mod: tvm.IRModule, params: Mapping[str, object] | Sequence[object] | None) -> Imported:
    mod, weights = detach_weights(mod, params)
    require_static(mod)
    main = mod["main"]
    inputs = tuple(p.name for p in main.params[: int(main.attrs["num_input"])])
    result = main.ret_ty
    count = len(result.fields) if isinstance(result, tvm.relax.TupleType) else 1
    outputs = tuple(f"output_{i}" for i in range(count)) if count > 1 else ("output",)
    return Imported(mod, weights, "main", inputs, outputs)
