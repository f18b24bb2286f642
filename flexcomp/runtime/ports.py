"""Inputs, outputs and states of compiled networks: descriptions and arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from flexcomp.errors import InputError

_OF_GPUS = (2, 13)  # kDLCUDA, kDLCUDAManaged
ON_GPU = "cuda"  # in the place of an output: a new tensor on the GPU


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a network."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def array_dtype(self) -> np.dtype:
        """Type of the port's arrays: NumPy has no bfloat16, whose bits are held as uint16."""
        return np.dtype("uint16" if self.dtype == "bfloat16" else self.dtype)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True)
class ShapeInfo:
    """One of the shapes that a library was built for."""

    extents: Mapping[str, int]  # by the names that the build gave
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


def shapes_of(info: Mapping[str, Any]) -> tuple[ShapeInfo, ...]:
    """The shapes of a library as it describes itself, the largest first; a library of one shape has no names for extents."""
    described = info.get("shapes", [{"extents": {}, "inputs": info["inputs"], "outputs": info["outputs"]}])
    return tuple(ShapeInfo(dict(one["extents"]), ports_of(one["inputs"]), ports_of(one["outputs"])) for one in described)


def made_inputs(ports: Iterable[TensorInfo]) -> list[np.ndarray]:
    """Random arrays, the same every time; those of integers are zero."""
    random = np.random.default_rng(0)

    def made(port: TensorInfo) -> np.ndarray:
        if np.issubdtype(port.array_dtype, np.floating):
            return random.standard_normal(port.shape).astype(port.array_dtype)
        return np.zeros(port.shape, port.array_dtype)

    return [made(port) for port in ports]


def extents_of(value: Any) -> tuple[int, ...]:
    """The shape of an input, whatever holds it."""
    return tuple(value.shape if hasattr(value, "shape") else np.shape(value))


def given_inputs(ports: Sequence[TensorInfo], first: Any, rest: Sequence[Any]) -> list[Any]:
    """Inputs given by name, as one mapping, or one by one, in the order of `ports`. Raises InputError."""
    if isinstance(first, Mapping) and not rest:
        names = [port.name for port in ports]
        if set(first) != set(names):
            raise InputError(f"inputs must be {listed(names)}, not {listed(first)}")
        values = [first[name] for name in names]
    else:
        values = [] if first is None and not rest else [first, *rest]
        if len(values) != len(ports):
            raise InputError(f"{len(ports)} inputs are needed, {len(values)} given")
    return values


def as_arrays(ports: Sequence[TensorInfo], values: Sequence[Any]) -> list[Any]:
    """Inputs in the order of `ports`, as arrays; tensors of GPUs as they are. Raises InputError."""
    return [value if on_gpu(value) else _checked(port, value) for port, value in zip(ports, values, strict=True)]


def on_gpu(tensor: Any) -> bool:
    """Whether a tensor reports memory of a GPU."""
    if not hasattr(tensor, "__dlpack_device__"):
        return False
    kind, _ = tensor.__dlpack_device__()
    return int(kind) in _OF_GPUS


def output_tensors(ports: Sequence[TensorInfo], given: Any, new_on_gpu: Callable[[int], Any]) -> list[Any]:
    """For each output the tensor given by the caller, by name, or a new one: on the GPU if asked, or else an array.

    `given` may be "cuda" for all; `new_on_gpu` makes a tensor for the output of that number. Raises InputError.
    """
    names = [port.name for port in ports]
    if isinstance(given, str):
        given = dict.fromkeys(names, given)
    if not isinstance(given, Mapping):
        raise InputError(f'outputs are a dict of tensors by name, or "{ON_GPU}", not {type(given).__name__}')
    if unknown := [name for name in given if name not in names]:
        raise InputError(f"the network has no output {listed(unknown)}; there is {listed(names)}")
    return [
        _written(port, given[port.name], partial(new_on_gpu, index))
        if port.name in given
        else np.empty(port.shape, port.array_dtype)
        for index, port in enumerate(ports)
    ]


def _written(port: TensorInfo, given: Any, new_on_gpu: Callable[[], Any]) -> Any:
    if isinstance(given, str):
        if given != ON_GPU:
            raise InputError(f'output "{port.name}" is asked for on {given!r}; there is "{ON_GPU}", or without a word the CPU')
        return new_on_gpu()
    if on_gpu(given):
        return given
    if isinstance(given, np.ndarray) and port.dtype == given.dtype.name == "bfloat16":
        given = given.view(port.array_dtype)
    fits = isinstance(given, np.ndarray) and given.dtype == port.array_dtype and given.shape == port.shape
    if not fits or not given.flags.writeable or not given.flags.c_contiguous:
        raise InputError(f'output "{port.name}" goes to a writable array without gaps, of {port}, or to a tensor on the GPU')
    return given


def ports_of(described: Iterable[Mapping[str, Any]]) -> tuple[TensorInfo, ...]:
    """Inputs, outputs or states as a library lists them; states have the names of their inputs."""
    return tuple(TensorInfo(one["name"], tuple(one["shape"]), one["dtype"]) for one in described)


def checked_states(ports: Sequence[TensorInfo], given: Any) -> list[tuple[int, np.ndarray]]:
    """(index, array) of arrays given by name of `ports`. Raises InputError."""
    if not isinstance(given, Mapping):
        raise InputError(f"a state is a dict of arrays by name, not {type(given).__name__}")
    names = [port.name for port in ports]
    if unknown := [name for name in given if name not in names]:
        raise InputError(f"the network keeps no state {listed(unknown)}; there is {listed(names)}")
    return [(index, _checked(port, given[port.name])) for index, port in enumerate(ports) if port.name in given]


def named_outputs(ports: Sequence[TensorInfo], arrays: Sequence[Any]) -> dict[str, Any]:
    """Outputs by name, with bfloat16 as such if there is a type."""
    if any(port.dtype == "bfloat16" for port in ports):
        try:
            from ml_dtypes import bfloat16
        except ImportError:
            bfloat16 = np.uint16
        arrays = [
            array.view(bfloat16) if port.dtype == "bfloat16" and isinstance(array, np.ndarray) else array
            for port, array in zip(ports, arrays, strict=True)
        ]
    return {port.name: array for port, array in zip(ports, arrays, strict=True)}


def listed(names: Any) -> str:
    return ", ".join(f'"{name}"' for name in names) or "none"


def _checked(port: TensorInfo, value: Any) -> np.ndarray:
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        try:
            value = np.from_dlpack(value)  # tensors of tvm_ffi
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise InputError(f'input "{port.name}" cannot be taken from where it lies: {error}') from None
    try:
        array = np.asarray(value, order="C")
    except (TypeError, ValueError) as error:
        raise InputError(f'input "{port.name}" must be {port}: {error}') from None
    if port.dtype == array.dtype.name == "bfloat16":
        array = array.view(port.array_dtype)
    if array.dtype != port.array_dtype or array.shape != port.shape:
        raise InputError(f'input "{port.name}" must be {port}, not {array.dtype}{list(array.shape)}')
    # DLPack cannot say that memory is read-only, so NumPy refuses to export such arrays.
    return array if array.flags.writeable else array.copy()
