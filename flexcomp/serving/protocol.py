"""The Open Inference Protocol (version 2, over HTTP) as arrays: requests in, responses out, in JSON or with binary tensors.

Source: the protocol's specification, its required part and the extension for binary tensors. Nothing of a request is trusted:
names, shapes, types, counts and sizes are compared with the network's inputs before an array is made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from flexcomp.errors import InputError
from flexcomp.runtime import Fitting, TensorInfo

from . import json_numbers
from .json_numbers import Numbers, Text

HEADER = "Inference-Header-Content-Length"  # bytes of JSON in front of binary tensors
_DATATYPES = {
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "FP16", "float32": "FP32", "float64": "FP64", "bfloat16": "BF16",
}  # fmt: skip
_BINARY_ONLY = ("FP16", "BF16")  # JSON has no numbers of 16 bits, says the protocol
_NUMBER_NBYTES = 32  # of text that a number may take in JSON, with the text around it
_SPARE_NBYTES = 1 << 16  # of text for names and parameters

_WRITTEN_NBYTES = 96  # that writing a number takes: itself, its text, and that once more


@dataclass(frozen=True)
class Wanted:
    """An output that was asked for."""

    name: str
    binary: bool


@dataclass(frozen=True)
class Request:
    """A client's request."""

    id: str | None
    inputs: dict[str, np.ndarray]
    outputs: tuple[Wanted, ...]
    timeout_s: float | None


def shape_parameters(fitting: Fitting) -> dict[str, str | bool]:
    """Of a model with extents for requests to choose, as its metadata have them: what it was built for, and whether it pads."""
    if len(fitting.shapes) == 1 and fitting.padding is None:
        return {}
    several = "; ".join(", ".join(f"{name}={extent}" for name, extent in one.extents.items()) for one in fitting.shapes)
    return {"shapes": several, "padded": fitting.padding is not None} if several else {"padded": True}


def described(ports: Sequence[TensorInfo]) -> list[dict]:
    """Inputs or outputs, as a model's metadata lists them."""
    return [{"name": port.name, "datatype": _DATATYPES[port.dtype], "shape": list(port.shape)} for port in ports]


def most_nbytes(ports: Sequence[TensorInfo]) -> int:
    """The most bytes of the body of a request with these inputs."""
    return _SPARE_NBYTES + sum(max(_NUMBER_NBYTES, port.array_dtype.itemsize) * math.prod(port.shape) for port in ports)


def answered_nbytes(ports: Sequence[TensorInfo], outputs: Sequence[Wanted] | None = None) -> int:
    """Bytes of outputs until sent: their arrays, and an answer with the wanted ones; None: all, as binary."""
    binary = {port.name: True for port in ports} if outputs is None else {wanted.name: wanted.binary for wanted in outputs}
    taken = 0
    for port in ports:
        numbers = math.prod(port.shape)
        own = numbers * port.array_dtype.itemsize
        taken += own + (0 if port.name not in binary else own if binary[port.name] else numbers * _WRITTEN_NBYTES)
    return taken


def carried_nbytes(inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> int:
    """Bytes of one request with binary tensors, from its body to its answer."""
    return _SPARE_NBYTES + arrays_nbytes(inputs) + answered_nbytes(outputs)


def arrays_nbytes(ports: Sequence[TensorInfo]) -> int:
    """Bytes of an array for each."""
    return sum(port.array_dtype.itemsize * math.prod(port.shape) for port in ports)


def reading_nbytes(text: Text, inputs: Sequence[TensorInfo]) -> int:
    """The most bytes that `read_request` takes besides the body, whose JSON is `text`."""
    return json_numbers.reading_nbytes(text) + arrays_nbytes(inputs)


def json_nbytes(header: str | None, nbytes: int) -> int:
    """How much of a body is JSON: all without a `header` that says so. Raises InputError for impossible values."""
    if header is None:
        return nbytes
    if not (header.isascii() and header.isdigit()) or int(header[:20]) > nbytes:
        raise InputError(f"{HEADER} is {header[:20]!r}, which is no part of a body of {nbytes} bytes")
    return int(header)


def read_request(
    body: Text, length: int, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo], most: Sequence[TensorInfo] = ()
) -> Request:
    """The request in `body`, whose first `length` bytes are JSON.

    An extent of -1 is any up to that of the input in `most`. Raises InputError, which names the fault and the expected form.
    """
    asked = _object(json_numbers.parsed(memoryview(body)[:length]), "the request")
    parameters = _object(asked.get("parameters", {}), "parameters")
    given = _by_name(asked.get("inputs"), "inputs")
    expected = {port.name: port for port in inputs}
    if given.keys() != expected.keys():
        raise InputError(f"inputs must be {_listed(expected)}, not {_listed(given)}")
    blobs = _Blobs(memoryview(body)[length:])
    bounds = {port.name: port for port in most or inputs}
    arrays = {name: _array(given[name], expected[name], bounds[name], blobs) for name in given}
    if blobs.left:
        raise InputError(f"{blobs.left} bytes behind the JSON belong to no input")
    identity = asked.get("id")
    if identity is not None and not isinstance(identity, str):
        raise InputError("id must be a string")
    return Request(identity, arrays, tuple(_wanted(asked, parameters, outputs)), _timeout(parameters))


def write_response(model: str, request: Request, outputs: Mapping[str, np.ndarray]) -> tuple[bytes, int | None]:
    """(body, bytes of JSON in front of binary tensors; None if all is JSON).

    Raises InputError where an output has values that JSON has no numbers for.
    """
    listed, blobs = [], []
    for wanted in request.outputs:
        array = np.asarray(outputs[wanted.name], order="C")
        entry: dict[str, Any] = {"name": wanted.name, "datatype": _DATATYPES[array.dtype.name], "shape": list(array.shape)}
        if wanted.binary:
            blobs.append(array.tobytes())
            entry["parameters"] = {"binary_data_size": array.nbytes}
        else:
            entry["data"] = _numbers(array, wanted.name)
        listed.append(entry)
    response: dict[str, Any] = {"model_name": model, "model_version": "1", "outputs": listed}
    if request.id is not None:
        response["id"] = request.id
    text = json.dumps(response, allow_nan=False, separators=(",", ":")).encode()
    return (b"".join([text, *blobs]), len(text)) if blobs else (text, None)


class _Blobs:
    """The bytes after the JSON, from which inputs are taken in their order."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory

    @property
    def left(self) -> int:
        return len(self._memory)

    def take(self, nbytes: int, name: str) -> memoryview:
        if nbytes > len(self._memory):
            raise InputError(f'input "{name}" has {nbytes} bytes of binary data, but only {len(self._memory)} are left')
        taken, self._memory = self._memory[:nbytes], self._memory[nbytes:]
        return taken


def _object(value: Any, what: str) -> dict:
    if not isinstance(value, dict):
        raise InputError(f"{what} must be a JSON object")
    return value


def _by_name(value: Any, what: str) -> dict[str, dict]:
    """A list of objects with a name each."""
    if not isinstance(value, list):
        raise InputError(f"{what} must be a list")
    found: dict[str, dict] = {}
    for entry in value:
        name = _object(entry, f"each of {what}").get("name")
        if not isinstance(name, str):
            raise InputError(f"each of {what} must have a name")
        if name in found:
            raise InputError(f'"{name}" is twice in {what}')
        found[name] = entry
    return found


def _array(given: dict, open_port: TensorInfo, most: TensorInfo, blobs: _Blobs) -> np.ndarray:
    port = replace(open_port, shape=_extents(given.get("shape"), open_port, most))
    expected = f'input "{port.name}" must be {_DATATYPES[port.dtype]}{list(port.shape)}'
    if given.get("datatype") != _DATATYPES[port.dtype] or not _is_shape(given.get("shape"), port.shape):
        raise InputError(f"{expected}, not {_short(given.get('datatype'))}{_short(given.get('shape'))}")
    parameters = _object(given.get("parameters", {}), f'parameters of input "{port.name}"')
    if "shared_memory_region" in parameters:
        raise InputError(f'input "{port.name}": shared memory is not supported; send the data')
    nbytes = parameters.get("binary_data_size")
    if nbytes is None:
        return _from_numbers(given.get("data"), port, expected)
    if "data" in given:
        raise InputError(f'input "{port.name}" has both data and binary_data_size')
    wanted = port.array_dtype.itemsize * math.prod(port.shape)
    if nbytes != wanted or type(nbytes) is not int:
        raise InputError(f"{expected}, of {wanted} bytes, not {_short(nbytes)}")
    array = np.frombuffer(blobs.take(wanted, port.name), "u1" if port.dtype == "bool" else port.array_dtype)
    if port.dtype == "bool":
        if array.max(initial=0) > 1:
            raise InputError(f'input "{port.name}" has bytes that are neither 0 nor 1')
        array = array.view(bool)
    return array.reshape(port.shape)


def _extents(given: Any, port: TensorInfo, most: TensorInfo) -> tuple[int, ...]:
    """Of the port, with those of the request where it has -1; others are compared later. Raises InputError for too large ones."""
    if -1 not in port.shape or not isinstance(given, list) or len(given) != len(port.shape):
        return port.shape
    extents = []
    for axis, (extent, own, largest) in enumerate(zip(given, port.shape, most.shape, strict=True)):
        chosen = own == -1 and type(extent) is int
        if chosen and extent > largest:
            words = f"along axis {axis}, and the library was built for {largest} at most"
            raise InputError(f'input "{port.name}" has {_short(extent)} elements {words}')
        extents.append(extent if chosen and extent >= 0 else own)
    return tuple(extents)


def _is_shape(given: Any, shape: tuple[int, ...]) -> bool:
    """Whether these are its extents, and not numbers that are equal to them, such as true and 1.0."""
    return isinstance(given, list) and given == list(shape) and all(type(extent) is int for extent in given)


def _from_numbers(data: Any, port: TensorInfo, expected: str) -> np.ndarray:
    if _DATATYPES[port.dtype] in _BINARY_ONLY:
        raise InputError(f'input "{port.name}" is {_DATATYPES[port.dtype]}, which JSON has no numbers for: send binary data')
    if isinstance(data, list):
        data = Numbers.of(data)
    if not isinstance(data, Numbers):
        raise InputError(f"{expected}, as a list of {math.prod(port.shape)} numbers")
    try:
        return data.read(port.shape, port.array_dtype)
    except InputError as error:
        raise InputError(f"{expected}: {error}") from None


def _numbers(array: np.ndarray, name: str) -> list:
    if array.dtype.name in ("float16", "bfloat16"):
        raise InputError(f'output "{name}" is {_DATATYPES[array.dtype.name]}, which JSON has no numbers for: ask for binary data')
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f'output "{name}" has values that JSON has no numbers for: ask for binary data')
    return array.ravel().tolist()


def _wanted(asked: dict, parameters: dict, ports: Sequence[TensorInfo]) -> Iterator[Wanted]:
    """The outputs that are asked for; all, where none is named."""
    always = _flag(parameters, "binary_data_output", False)
    known = [port.name for port in ports]
    if not asked.get("outputs"):
        yield from (Wanted(name, always) for name in known)
        return
    for name, entry in _by_name(asked["outputs"], "outputs").items():
        if name not in known:
            raise InputError(f'there is no output {_listed([name])}; there is {_listed(known)}')
        own = _object(entry.get("parameters", {}), f'parameters of output "{name}"')
        for refused in ("shared_memory_region", "classification"):
            if refused in own:
                raise InputError(f'output "{name}": {refused} is not supported')
        yield Wanted(name, _flag(own, "binary_data", always))


def _flag(parameters: dict, name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InputError(f"{name} must be true or false")
    return value


def _timeout(parameters: dict) -> float | None:
    """Seconds, of the parameter in microseconds."""
    value = parameters.get("timeout")
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 2**63:
        raise InputError("timeout must be a number of microseconds")
    return value * 1e-6 if value else None


def _short(value: Any) -> str:
    text = json.dumps(value, default=lambda numbers: "…")
    return text if len(text) <= 80 else f"{text[:80]}…"


def _listed(names: Any) -> str:
    return ", ".join(f'"{name[:80]}"' for name in names) or "none"
