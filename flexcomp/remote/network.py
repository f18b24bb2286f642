"""A compiled network on a device, and its sessions there."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from flexcomp.errors import ArtifactError, BudgetError, ExecutionError, FlexcompError, InputError
from flexcomp.program import Program, decode_shapes
from flexcomp.remote.connection import Connection
from flexcomp.runtime import (
    Budget,
    DeviceRates,
    Fitted,
    Fitting,
    RungInfo,
    ShapeInfo,
    TensorInfo,
    Traces,
    checked_states,
    checked_threads,
    given_inputs,
    made_inputs,
    named_outputs,
    options_of,
    parse_trace,
    ports_of,
    resolve_in,
)


class RemoteNetwork:
    """A library and its weights on a device; `Device.upload` makes one."""

    def __init__(self, device: Connection, module: Any, library: Path, weights_name: str) -> None:
        self._device, self._module, self._library = device, module, library
        self.weights_name = weights_name
        self.info: dict = json.loads(self._text("info"))
        self.machine: dict = json.loads(self._text("machine"))  # keys: runtime_ext/src/session/on_device.h
        self._fitting = Fitting(self.info)
        self.shapes = self._fitting.shapes  # the largest first
        self.inputs, self.outputs = self._fitting.inputs, self._fitting.outputs  # an extent that shapes differ in is -1
        self.states = ports_of(self.info.get("states", ()))
        self.ladder = tuple(RungInfo(**rung) for rung in self.info["ladder"])

    @cached_property
    def programs(self) -> tuple[Program, ...]:
        """The programs inside the library, one for each shape."""
        with self._device.calls(ArtifactError):
            return decode_shapes(bytes(self.function("blob")()))

    @property
    def program(self) -> Program:
        """That of the largest shape."""
        return self.programs[0]

    def in_shapes(self) -> list[RemoteShape]:
        """The network in each of its shapes."""
        return [RemoteShape(self, number) for number in range(len(self.shapes))]

    def open(
        self, budget: int | float | str | Budget | None = None, threads: int | None = None, **options: Any
    ) -> RemoteSession:
        """Map the arena of the largest plan within `budget`, and make ready to run; options as of `flexcomp.load`.

        Raises BudgetError, also if the device has not that much memory available, InputError, ArtifactError, DeviceError.
        """
        checked = options_of(options)
        nbytes = resolve_in(budget, self.info)
        ladders = [one["ladder"] for one in self.info.get("shapes", [self.info])]
        self._require_memory(max(rung["arena_bytes"] for one in ladders for rung in one if rung["budget_bytes"] <= nbytes))
        asked = checked.to_json(budget_bytes=nbytes, threads=None if threads is None else checked_threads(threads))
        with self._device.calls(ArtifactError):
            opened = self.function("open")(self._device.path(self.weights_name), asked)
        return RemoteSession(self, self._device, opened)

    def fitted(self, inputs: Any, *args: Any) -> Fitted:
        """Inputs in the shape that runs, given as to `RemoteSession.run`. Raises InputError, DeviceError."""
        values = given_inputs(self.inputs, inputs, args)

        def shape_of(*shapes: Sequence[int]) -> int:
            with self._device.calls(InputError):
                return self.function("shape_of")(*(number for one in shapes for number in (len(one), *one)))

        return self._fitting.fitted(values, shape_of)

    def ports_for(self, given: Mapping[str, np.ndarray]) -> tuple[TensorInfo, ...]:
        """Inputs in the largest shape, with the extents of those that are given."""
        padding, largest = self._fitting.padding, self.shapes[0].inputs
        if padding is not None:
            known: dict[str | None, int] = {}
            for name, array in given.items():
                known |= {of: extent for of, extent in zip(padding.inputs.get(name, ()), array.shape, strict=False) if of}

            def sized(port: TensorInfo) -> TensorInfo:
                names = padding.inputs.get(port.name, (None,) * len(port.shape))
                return replace(port, shape=tuple(known.get(of, own) for of, own in zip(names, port.shape, strict=True)))

            return tuple(map(sized, largest))

        def has(shape: ShapeInfo) -> bool:
            return all(given[port.name].shape == port.shape for port in shape.inputs if port.name in given)

        return next((shape.inputs for shape in self.shapes if has(shape)), largest)

    def rates(self) -> DeviceRates:
        """Costs of the device's GPU besides kernels. Raises ExecutionError, also if the network is for CPUs, DeviceError."""
        with self.open("min") as session:
            return session.device_rates()

    def function(self, name: str) -> Callable[..., Any]:
        """A function of the runtime inside the library, which may be older than this file. Raises ArtifactError."""
        return function_of(self._module, name, str(self._library))

    def _text(self, name: str) -> str:
        with self._device.calls(ArtifactError):
            return str(self.function(name)())

    def _require_memory(self, nbytes: int) -> None:
        available = json.loads(self._text("machine"))["memory_available_bytes"]
        if available is not None and nbytes > available:
            raise BudgetError(
                f"a plan with an arena of {nbytes} bytes was asked for, {self._device.name} has {available} bytes of "
                f"memory available: give a budget below that; the smallest is {self.info['min_budget_bytes']} bytes"
            )


@dataclass(frozen=True)
class RemoteShape:
    """A network on a device in one of its shapes."""

    network: RemoteNetwork
    number: int  # of the shape, from the largest

    @property
    def extents(self) -> Mapping[str, int]:
        """By the names that the build gave."""
        return self.network.shapes[self.number].extents

    @property
    def program(self) -> Program:
        """The program of this shape."""
        return self.network.programs[self.number]

    @property
    def predicted_ms(self) -> dict[int, float]:
        """Of each plan, by its budget."""
        info = self.network.info
        return {one["budget_bytes"]: one["predicted_ms"] for one in info.get("shapes", [info])[self.number]["ladder"]}

    @property
    def budgets(self) -> list[int]:
        """Those of its plans that sessions can have: enough for the smallest plans of the other shapes."""
        least = self.network.info["min_budget_bytes"]
        return sorted({max(budget, least) for budget in self.predicted_ms})

    def traces(self, budget: int, threads: int | None, repeat: int, **options: Any) -> Traces:
        """Traces of inferences in a row, after two that are not counted; options as of `RemoteNetwork.open`."""
        budget = max(budget, self.network.info["min_budget_bytes"])
        with self.network.open(budget, threads, trace=True, **options) as session:
            session.use(self.number)
            session.repeat(2)
            taken = session.repeat(repeat)
            state = taken["runs"][-1]
            return Traces(state["rung"], state["threads"], tuple(parse_trace(json.dumps(t)) for t in taken["traces"]))

    def rates(self) -> DeviceRates:
        """As `RemoteNetwork.rates`."""
        return self.network.rates()


@dataclass(frozen=True)
class Measurement:
    """Inferences one right after the other, timed on the device, and their plan."""

    budget_bytes: int
    arena_bytes: int
    threads: int
    direct_io: bool
    latency_ms: tuple[float, ...]
    stall_ms: tuple[float, ...]
    bytes_read: tuple[int, ...]

    @property
    def median_ms(self) -> float:
        """The median latency."""
        return statistics.median(self.latency_ms)


class RemoteSession:
    """An open network on a device, like `flexcomp.Session`."""

    def __init__(self, network: RemoteNetwork, device: Connection, opened: Any) -> None:
        self._network, self._device, self._opened = network, device, opened
        self._tensors: list[Any] = []  # on the device: inputs, outputs
        self._extents: list[tuple[int, ...]] = []  # of these
        self._closed = False

    def run(self, inputs: Mapping[str, Any] | None = None, *args: Any) -> dict[str, np.ndarray]:
        """One inference: `run({"x": x})`, or `run(x, …)` in the order of the inputs. Returns the outputs by name.

        The device holds the inputs and outputs besides the arena. Raises InputError, ExecutionError, DeviceError.
        """
        fitted = self._network.fitted(inputs, *args)
        with self._device.calls(ExecutionError):
            tensors = self._tensors_of(fitted)
            for tensor, array in zip(tensors, fitted.inputs, strict=False):
                tensor.copyfrom(array)
            self._call("run", *tensors)
            results = [tensor.numpy() for tensor in tensors[len(fitted.inputs) :]]
        return named_outputs(self._network.outputs, results)

    def state(self) -> dict[str, np.ndarray]:
        """As `flexcomp.Session.state`."""
        with self._device.calls(ExecutionError):
            found = [self._empty(port) for port in self._network.states]
            self._call("get_states", *found)
            return named_outputs(self._network.states, [tensor.numpy() for tensor in found])

    def set_state(self, state: Mapping[str, Any]) -> None:
        """As `flexcomp.Session.set_state`."""
        given = []
        with self._device.calls(ExecutionError):
            for index, array in checked_states(self._network.states, state):
                given += [index, self._empty(self._network.states[index])]
                given[-1].copyfrom(array)
            self._call("set_states", *given)

    def reset_state(self) -> None:
        """As `flexcomp.Session.reset_state`."""
        with self._device.calls(ExecutionError):
            self._call("reset_states")

    def use(self, shape: int) -> None:
        """Run once in a shape, by its number from the largest: `repeat` and `measure` then run in that shape."""
        if len(self._network.shapes) > 1:
            ports = self._network.shapes[shape].inputs
            self.run(dict(zip((port.name for port in ports), made_inputs(ports), strict=True)))

    def measure(self, repeat: int = 10, warmup: int = 1) -> Measurement:
        """Time inferences from inputs in the arena to outputs in the arena, on random floats, after `warmup` others.

        They run in the shape of the last inference, at first the largest. The network's state, if any, is cleared before each.

        Raises ExecutionError, DeviceError.
        """
        if warmup:
            self.repeat(warmup)
        runs = self.repeat(repeat)["runs"]
        facts = (tuple(run[key] for run in runs) for key in ("latency_ms", "stall_ms", "bytes_read"))
        last = runs[-1]
        return Measurement(last["budget_bytes"], last["arena_bytes"], last["threads"], last["direct_io"], *facts)

    def repeat(self, count: int) -> dict:
        """`count` inferences in a row: {"runs": [state after each], "traces": [of each, if the session traces]}."""
        with self._device.calls(ExecutionError):
            return json.loads(str(self._call("repeat", count, count, 0.0)))

    def device_rates(self) -> DeviceRates:
        """Costs of the GPU besides kernels. Raises ExecutionError, also if the network is for CPUs, DeviceError."""
        with self._device.calls(ExecutionError):
            return DeviceRates(**json.loads(str(self._call("device_rates"))))

    def set_budget(self, budget: int | float | str | Budget | None) -> RungInfo:
        """Switch to the largest plan within `budget`. Raises BudgetError, DeviceError."""
        nbytes = resolve_in(budget, self._network.info)
        with self._device.calls(BudgetError):
            return RungInfo(**json.loads(str(self._call("set_budget", nbytes))))

    def stats(self) -> dict[str, Any]:
        """As `flexcomp.Session.stats`."""
        with self._device.calls(ExecutionError):
            return json.loads(str(self._call("stats")))

    def close(self) -> None:
        """Give memory, threads and files on the device back. Closing twice is harmless."""
        if not self._closed:
            self._closed = True
            self._tensors, self._extents = [], []
            with self._device.calls(ExecutionError):
                self._call("close")

    def __enter__(self) -> RemoteSession:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.close()
        except FlexcompError:
            if error is None:  # the first error says more, for example that the device is lost
                raise

    def _call(self, name: str, *args: Any) -> Any:
        return function_of(self._opened, name, self._network.info["model"])(*args)

    def _tensors_of(self, fitted: Fitted) -> list[Any]:
        """Inputs and outputs on the device, of which there is one set: that of the last inference, or a new one."""
        ports = [*fitted.inputs, *fitted.outputs]
        if (extents := [tuple(one.shape) for one in ports]) != self._extents:
            self._tensors, self._extents = [], []
            types = [*(one.dtype for one in fitted.inputs), *(one.array_dtype for one in fitted.outputs)]
            self._tensors = [self._tensor(shape, str(dtype)) for shape, dtype in zip(extents, types, strict=True)]
            self._extents = extents
        return self._tensors

    def _empty(self, port: TensorInfo) -> Any:
        return self._tensor(port.shape, str(port.array_dtype))

    def _tensor(self, shape: tuple[int, ...], dtype: str) -> Any:
        """A tensor on the device."""
        from tvm import runtime

        return runtime.empty(shape, dtype, device=self._device.memory())


def function_of(module: Any, name: str, library: str) -> Callable[..., Any]:
    """A function of a module on a device. Raises ArtifactError if there is none of that name."""
    try:
        return module.get_function(name)
    except AttributeError:
        raise ArtifactError(
            f'{library} is no compiled network, or one by another version of flexcomp: it has no "{name}"; build it again'
        ) from None
