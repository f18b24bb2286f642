"""Whole networks for a GPU, lowered as `flexcomp.build` lowers them, and their layers one after the other on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import tvm

from flexcomp.compiler import pipeline
from flexcomp.compiler.cuda_code import cuda_code
from flexcomp.compiler.weights import evaluate
from flexcomp.device import CompileTarget, resolve_target
from flexcomp.frontend import load_model
from flexcomp.network.lower import lower
from flexcomp.network.lowered import Lowered
from flexcomp.program import CountArg, FirstArg, Layer, ScratchArg, TensorType, ValueArg, WeightArg
from tests.cuda.on_cpu.emulator import Emulator

_POISON = 0xFF  # bytes of untouched memory: floats are NaN


def networks(
    models: Mapping[str, onnx.ModelProto], target: str | CompileTarget, folder: Path, shapes: dict | None = None
) -> dict[str, Network]:
    """The networks with their kernels compiled for the CPU, all together."""
    architecture = resolve_target(target).gpu
    lowered = {name: lowered_network(model, target, shapes) for name, model in models.items()}
    symbols, codes = {}, {}
    for name, network in lowered.items():
        symbols[name] = {kernel: f"k{len(codes) + i}" for i, kernel in enumerate(network.kernels)}
        codes |= {symbols[name][k]: cuda_code(func, architecture, symbols[name][k]) for k, func in network.kernels.items()}
    emulator = Emulator(codes, folder)
    return {name: Network(network, symbols[name], emulator) for name, network in lowered.items()}


class Network:
    """A network whose kernels, by their names, are known to the emulator by symbols."""

    def __init__(self, lowered: Lowered, symbols: Mapping[str, str], emulator: Emulator) -> None:
        self.lowered, self._symbols, self._emulator = lowered, symbols, emulator
        self._weights = np.full(lowered.weights_nbytes, _POISON, np.uint8)
        for _, array, offset in lowered.weights:
            _write(self._weights, offset, np.asarray(array))

    def run(self, inputs: dict[str, np.ndarray], seed: int = 0, steps: int = 1) -> dict[str, np.ndarray]:
        """The outputs; layers that can be are computed in up to so many steps."""
        values = [np.full(value.nbytes, _POISON, np.uint8) for value in self.lowered.values]
        for port in self.lowered.inputs:
            _write(values[port.value], 0, inputs[port.name])
        for layer in self.lowered.layers:
            blocks = layer.weights.blocks if layer.weights else 1
            cuts = np.linspace(0, blocks, min(steps, blocks) + 1).astype(int)
            for first, end in pairwise(cuts):
                self._step(layer, values, int(first), int(end - first), seed)
        return {port.name: _read(values[port.value], 0, port.type) for port in self.lowered.outputs}

    def _step(self, layer: Layer, values: list[np.ndarray], first: int, count: int, seed: int) -> None:
        arguments = []
        for argument in layer.args:
            match argument:
                case FirstArg():
                    arguments.append(first)
                case CountArg():
                    arguments.append(count)
                case ScratchArg():
                    arguments.append(_read(np.full(argument.type.nbytes, _POISON, np.uint8), 0, argument.type))
                case WeightArg():
                    arguments.append(self._panel(layer, argument, first, count))
                case ValueArg():
                    arguments.append(_read(values[argument.value], argument.offset, argument.type))
                case _:
                    raise AssertionError(f"{layer.name} takes {argument}, which is given to no kernel for a GPU yet")
        results = iter(self._emulator.run(self._symbols[layer.kernel], arguments, seed=seed))
        buffers = [argument for argument in layer.args if not isinstance(argument, FirstArg | CountArg)]
        for argument, result in zip(buffers, results, strict=True):
            if isinstance(argument, ValueArg) and argument.written:
                _write(values[argument.value], argument.offset, result)

    def _panel(self, layer: Layer, argument: WeightArg, first: int, count: int) -> np.ndarray:
        whole = _read(self._weights, layer.weights.offset + argument.offset, argument.type)
        return whole[first : first + count] if layer.weights.blocks > 1 else whole


def lowered_network(model: onnx.ModelProto, target: str | CompileTarget, shapes: dict | None) -> Lowered:
    """A network lowered as in `flexcomp.build`, by its smallest kernels."""
    imported, resolved = load_model(model, shapes, None), resolve_target(target)
    unit, on_weights = resolved.machine, partial(evaluate, weights=imported.weights)
    mod = imported.mod
    phases = pipeline.simplify(), pipeline.transformers(unit, on_weights), pipeline.layers(unit), pipeline.separate_weights()
    for phase in phases:
        mod = pipeline.run(mod, phase, "phase")
    transform = [gv for gv in mod.get_global_vars() if gv.name_hint == "main_transform_params"]
    weights = evaluate(mod[transform[0]], imported.weights) if transform else list(imported.weights)
    kept = tvm.IRModule({gv: func for gv, func in mod.functions_items() if gv not in transform})
    with resolved.tvm_target:
        mod = pipeline.run(kept, pipeline.operators(unit), "operators")
    return lower(mod, weights, resolved, imported.input_names, imported.output_names)


def _read(memory: np.ndarray, offset: int, type_: TensorType) -> np.ndarray:
    return memory[offset : offset + type_.nbytes].view(np.dtype(type_.dtype)).reshape(type_.shape)


def _write(memory: np.ndarray, offset: int, array: np.ndarray) -> None:
    memory[offset : offset + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
