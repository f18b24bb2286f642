"""`build(input_values=…)`: inputs that have one value in all inferences become constants of the network.

    main(x, sr), sr = 16000      →      main(x), with the constant sr
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from flexcomp.errors import InputError


def checked_values(given: Any) -> dict[str, np.ndarray]:
    """Values by input; None is none. Raises InputError for anything but numbers and arrays of numbers."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise InputError(f'input_values must be a dict of values by input, such as {{"sr": 16000}}, not {given!r}')
    found = {}
    for name, value in given.items():
        try:
            found[name] = np.asarray(value)
        except ValueError:
            found[name] = np.asarray(None)
        if not isinstance(name, str) or found[name].dtype.kind not in "biufV":  # V: bfloat16
            raise InputError(f"input_values[{name!r}] must be a number or an array of numbers, not {value!r}")
    return found


def fix_inputs(model: onnx.ModelProto, values: Mapping[str, np.ndarray]) -> None:
    """Inputs with these values are initialisers. Changes `model`.

    One number is the value of all elements, of one element where the shape is dynamic. Raises InputError for names that are no
    inputs, and for values of another shape or type.
    """
    ports = {port.name: port for port in model.graph.input}
    constants = {tensor.name for tensor in model.graph.initializer}
    for name, value in values.items():
        if name not in ports:
            there = ", ".join(f"'{one}'" for one in ports if one not in constants)
            raise InputError(f"input_values names {name!r}, but the model's inputs are {there}")
        tensor = numpy_helper.from_array(_fitting(ports[name], value), name)
        kept = [one for one in model.graph.initializer if one.name != name]
        del model.graph.initializer[:]
        model.graph.initializer.extend([*kept, tensor])
    kept = [port for port in model.graph.input if port.name not in values]
    del model.graph.input[:]
    model.graph.input.extend(kept)


def _fitting(port: onnx.ValueInfoProto, value: np.ndarray) -> np.ndarray:
    """The value with the type and the shape of an input."""
    of = port.type.tensor_type
    if not port.type.HasField("tensor_type") or of.elem_type == onnx.TensorProto.STRING:
        raise InputError(f"input_values[{port.name!r}]: this input is no tensor of numbers, and takes no value at build time")
    kind = helper.tensor_dtype_to_np_dtype(of.elem_type)
    with np.errstate(all="ignore"):
        same = value.astype(kind)
    exact = kind.kind in "biu"
    if exact and not np.array_equal(same.astype("O"), value.astype("O")):
        raise InputError(f"input_values[{port.name!r}] is {_shown(value)}, and the input holds {kind}: give a value of that type")
    if not of.HasField("shape"):
        return same
    dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in of.shape.dim]
    if not value.shape:
        return np.full([1 if dim is None else dim for dim in dims], same, kind)
    if len(dims) != value.ndim or any(dim not in (None, extent) for dim, extent in zip(dims, value.shape, strict=True)):
        shape = ", ".join("?" if dim is None else str(dim) for dim in dims)
        raise InputError(f"input_values[{port.name!r}] has the shape {value.shape}, and the input has ({shape})")
    return same


def _shown(value: np.ndarray) -> str:
    return repr(value.item()) if value.size == 1 else f"an array of {value.dtype}"
