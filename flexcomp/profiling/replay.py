"""Carries out a plan step by step in this process, with a clock around every kernel.

Addresses, operations and kernel calls are those of the runtime, so caches are as warm or cold as they are there. Weights are
copied and prepared between the steps, outside of the timed parts.
"""

from __future__ import annotations

import gc
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import tvm_ffi

from flexcomp.program import (
    CountArg,
    FirstArg,
    Layer,
    Port,
    Prepare,
    Program,
    Read,
    RowsArg,
    Rung,
    Step,
    Strided,
    TensorType,
    ValidArg,
    ValueArg,
    WeightArg,
    decode_program,
    signature,
)
from flexcomp.report import select_rung

from .rates import aligned


class Replay:
    """One rung of a compiled library, ready to be carried out."""

    def __init__(self, library: str | Path, budget: str | int | float | None = None) -> None:
        library = Path(library).resolve()
        module = tvm_ffi.load_module(str(library))
        self.program: Program = decode_program(bytes(module.get_function("blob")()))
        self.rung: Rung = select_rung(self.program, budget)
        self._weights = _data_section(library.with_suffix(".weights"))
        self._arena = aligned(self.rung.arena)
        self._kernels = module.imports[0]
        self._calls = [self._call(self._kernels, step) for step in self.rung.steps]
        rng = np.random.default_rng(0)
        self._inputs = [
            (self._view(self.rung.value_at[p.value], p.type), _example(p, rng)) for p in self.program.inputs
        ]

        for state in self.program.states:
            self._view(self.rung.value_at[state.value] + state.offset, state.type)[...] = 0
        self._carry_out(self.rung.tapes.fill.turns)

    def run(self) -> dict[int, float]:
        """One inference, from a state that stays clear but for rows written in place.

        Seconds of each layer, by its index in the program.
        """
        for place, value in self._inputs:
            place[...] = value
        seconds: dict[int, float] = {}
        steady, done = self.rung.tapes.steady, 0
        with _no_garbage_collection():
            for step, (function, args), need in zip(self.rung.steps, self._calls, steady.need, strict=True):
                self._carry_out(steady.turns[done:need])
                done = max(done, need)
                self._fetch(step)
                start = time.perf_counter_ns()
                function(*args)
                taken = time.perf_counter_ns() - start
                seconds[step.layer] = seconds.get(step.layer, 0.0) + taken * 1e-9
        return seconds

    def outputs(self) -> dict[str, np.ndarray]:
        """Copies of the last inference's outputs."""
        return {p.name: self._view(self.rung.value_at[p.value], p.type).copy() for p in self.program.outputs}

    def _carry_out(self, turns: Iterable[tuple[int, int]]) -> None:
        for index, _ in turns:
            match self.rung.tapes.operations[index]:
                case Prepare() as one:
                    self._prepare(one)
                case one:
                    data = (self._weights if isinstance(one, Read) else self._arena)[one.source : one.source + one.nbytes]
                    self._arena[one.to : one.to + len(data)] = data

    def _fetch(self, step: Step) -> None:
        layer = self.program.layers[step.layer]
        if (rows := layer.fetched) is None:
            return
        numbers = layer.args[layer.args.index(rows) - 1]
        ids = np.clip(self._view(self.rung.value_at[numbers.value] + numbers.offset, numbers.type).reshape(-1), 0, rows.rows - 1)
        found = np.ascontiguousarray(_rows(self._weights[rows.table : rows.table + rows.table_nbytes], rows, ids)).reshape(-1)
        self._arena[step.scratch_at + rows.offset :][: found.size] = found

    def _prepare(self, made: Prepare) -> None:
        layer = self.program.layers[made.layer]
        weights, panel = layer.weights, layer.panel.type
        _, some = weights.preparation.range_of(panel, made.first, made.count)
        stored, prepared = (
            self._view(at, replace(type_, shape=(blocks, *type_.shape[1:])))
            for at, type_, blocks in ((made.source, weights.preparation.stored, some), (made.to, panel, made.count))
        )
        function = self._kernels.get_function(signature.symbol(weights.preparation.kernel, signature.of_preparation(layer)))
        function(tvm_ffi.from_dlpack(stored), made.first, made.count, tvm_ffi.from_dlpack(prepared))

    def _call(self, kernels: tvm_ffi.Module, step: Step) -> tuple:
        layer = self.program.layers[step.layer]
        symbol = signature.symbol(layer.kernel, signature.of_layer(layer))
        return kernels.get_function(symbol), [self._argument(layer, step, arg) for arg in layer.args]

    def _argument(self, layer: Layer, step: Step, arg):
        if isinstance(arg, FirstArg):
            return step.first
        if isinstance(arg, CountArg):
            return step.count
        if isinstance(arg, ValidArg):
            return arg.ALL
        if isinstance(arg, ValueArg):
            return tvm_ffi.from_dlpack(self._view(self.rung.value_at[arg.value] + arg.offset, arg.type))
        start = step.weights_at if isinstance(arg, WeightArg) else step.scratch_at
        type_ = arg.type
        if isinstance(arg, WeightArg) and layer.weights.blocks > 1:  # a kernel of blocks is told where its first one is
            type_ = TensorType((step.count, *type_.shape[1:]), type_.dtype)
        return tvm_ffi.from_dlpack(self._view(start + arg.offset, type_))

    def _view(self, at: int, type_: TensorType) -> np.ndarray:
        return self._arena[at : at + type_.nbytes].view(type_.dtype).reshape(type_.shape)


def _data_section(path: Path) -> np.ndarray:
    """The data of a safetensors file, mapped."""
    with open(path, "rb") as file:
        (header,) = struct.unpack("<Q", file.read(8))
    return np.memmap(path, np.uint8, "r", offset=8 + header)


def _example(port: Port, rng: np.random.Generator) -> np.ndarray:
    """Random values, or zeros for integers, which may be indices."""
    if port.type.dtype.startswith("float"):
        return rng.standard_normal(port.type.shape).astype(port.type.dtype)
    return np.zeros(port.type.shape, "uint16" if port.type.dtype == "bfloat16" else port.type.dtype)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _rows(table: np.ndarray, rows: RowsArg, ids: np.ndarray) -> np.ndarray:
    """uint8[ids, bytes of a row]: rows of a table of bytes."""
    if rows.interleaved is None:
        return table.reshape(rows.rows, rows.row_nbytes)[ids]
    lanes, blocks = rows.interleaved.rows, table.reshape(-1, rows.interleaved.block_nbytes)
    block = ids // lanes
    lane = ids - np.minimum(block * lanes, rows.rows - lanes)

    def part(of: Strided) -> np.ndarray:
        elements = blocks[:, of.at : of.at + of.count * lanes * of.nbytes].reshape(-1, of.count, lanes, of.nbytes)
        return elements[block, :, lane].reshape(len(ids), -1)

    return np.concatenate([part(of) for of in rows.interleaved.parts], axis=1)
