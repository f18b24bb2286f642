"""One trial: a library whose network is a single layer, computed by one candidate.

The library runs in flexcomp's own runtime, on this machine or on a device, so that threads, huge pages and alignment are those
of a real network. Activations, scratch and output stay in place, as warm as a layer before would leave them. The
weights are loaded several times, and every call reads another copy: weights of a network come from memory, for by the
time a layer computes again all the others have passed through the caches.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flexcomp import runtime_ext
from flexcomp.compiler import by_symbol, compile_module, linker_for
from flexcomp.device import resolve_target
from flexcomp.passes.attributes import with_scratch
from flexcomp.passes.pretransform_weights import data_shapes, out_shape
from flexcomp.program import (
    ALIGN,
    PAGE,
    PROGRAM_KIND,
    Arg,
    CountArg,
    FirstArg,
    Layer,
    Load,
    Port,
    Program,
    Rung,
    ScratchArg,
    Step,
    TensorType,
    Value,
    ValueArg,
    WeightArg,
    Weights,
    WeightsDigest,
    encode_program,
    tapes_of,
    write_weights,
)
from flexcomp.schedules.recurrent.spec import RecurrentSpec
from flexcomp.schedules.registry import Candidate, named
from flexcomp.schedules.tiles.spec import identity
from flexcomp.tuning.specs import TunedSpec

# Copies of the weights together: more than caches hold, as far as neither their number nor the time becomes too large.
_COPIES_NBYTES = 64 << 20
_MOST_COPIES = 32
_MOST_FLOPS = 4e9
_LEAST_DATA_NBYTES = 1 << 20
_ORDINARY_BITS = (0x3800, 0x4000)  # as float16 from 0.5, as bfloat16 from 3e-5, below 2


@dataclass(frozen=True)
class Trial:
    """A worker's arguments for building one."""

    spec: TunedSpec
    kernel: str  # the candidate's name
    target: str
    threads: int
    digest: WeightsDigest  # of the data that weights and activations are made of

    @property
    def name(self) -> str:
        """Different for different trials."""
        told_by = repr((identity(self.spec), self.kernel, self.target, self.threads, self.digest.data_nbytes))
        return f"trial_{hashlib.sha256(told_by.encode()).hexdigest()[:16]}"


def write_data(path: Path, candidates: list[Candidate]) -> WeightsDigest:
    """Random numbers for the weights of any of the candidates: all read the same ones, from the start.

    Every half of a float32 is a number of ordinary size as float16 and as bfloat16, too.
    """
    nbytes = max([_LEAST_DATA_NBYTES, *(one.weight_nbytes + ALIGN * len(one.panels) for one in candidates)])
    rng = np.random.default_rng(0)
    count = _LEAST_DATA_NBYTES // 2
    halves = rng.integers(*_ORDINARY_BITS, count, np.uint16) | rng.choice(np.array([0, 0x8000], np.uint16), count)
    data = np.resize(halves.view(np.float32), _pages(nbytes) // 4)
    return write_weights(path, [("data", data)], model="trial")


@dataclass(frozen=True)
class TrialLibrary:
    """A compiled trial."""

    path: str
    calls: int  # of the kernel in one inference


def build_library(trial: Trial, path: str, compiler: str | None = None) -> TrialLibrary:
    """Compile a trial into the library `path`; for worker processes."""
    target = resolve_target(trial.target)
    candidate = named(trial.spec, replace(target.vector_unit, threads=trial.threads), trial.kernel)
    assert candidate is not None, f"no kernel is called {trial.kernel}"
    linker = linker_for(target, compiler)
    program = one_layer_program(trial, candidate, target.features)
    code = {trial.name: with_scratch(candidate.build(), candidate.scratch)}
    kernels = compile_module(by_symbol(code, program.layers), target)
    module = runtime_ext.function(f"{PROGRAM_KIND}.create")(encode_program(program, trial.digest))
    module.import_module(kernels)
    module.export_library(path, fcompile=linker.compile, addons=[str(linker.runtime)], options=list(linker.options))
    return TrialLibrary(path, len(program.rungs[0].steps))


def one_layer_program(trial: Trial, candidate: Candidate, features: tuple[str, ...]) -> Program:
    """The layer, called once for every copy of its weights."""
    spec, panel = trial.spec, candidate.panel
    first, behind, written = _tensors(spec)
    types = [*first, *behind, *written]
    values = tuple(Value(f"v{i}", _pages(type_.nbytes)) for i, type_ in enumerate(types))
    *value_at, end = _ends(value.nbytes for value in values)
    read: list[Arg] = [ValueArg(i, type_) for i, type_ in enumerate([*first, *behind])]
    weights, weight_args = None, []
    if panel is not None:
        weight_args = [WeightArg(0, TensorType(panel.shape, panel.dtype)), FirstArg(), CountArg()]
        weights = Weights(0, panel.blocks, panel.block_nbytes)
    elif candidate.panels:
        taken = [TensorType(one.shape, one.dtype) for one in candidate.panels]
        *offsets, nbytes = _ends(-(-type_.nbytes // ALIGN) * ALIGN for type_ in taken)
        weight_args = [WeightArg(*given) for given in zip(offsets, taken, strict=True)]
        weights = Weights(0, 1, nbytes)
    args = [*read[: len(first)], *weight_args, *read[len(first) :]]
    args += [ValueArg(len(read) + i, type_, written=True) for i, type_ in enumerate(written)]
    scratch = [TensorType(shape) for shape in candidate.scratch]
    *scratch_offsets, scratch_nbytes = _ends(-(-type_.nbytes // ALIGN) * ALIGN for type_ in scratch)
    args += [ScratchArg(offset, type_) for offset, type_ in zip(scratch_offsets, scratch, strict=True)]
    layer = Layer("layer", "layer", trial.name, trial.kernel, str(spec), tuple(args), weights, scratch_nbytes, spec.flops)

    scratch_at, end = end, end + _pages(scratch_nbytes)
    ports = tuple(Port(values[i].name, i, type_) for i, type_ in enumerate(types[: len(read)]))
    working, loads = end, []
    copies_at = [-1] * _copies(None, spec.flops)
    if weights is not None:
        size = _pages(weights.nbytes)
        copies_at = [end + i * size for i in range(_copies(weights.nbytes, spec.flops))]
        loads = [Load(0, size, at, 0, True) for at in copies_at]
        end += len(copies_at) * size
    blocks = weights.blocks if weights is not None else 1
    steps = tuple(Step(0, 0, blocks, at, scratch_at if scratch else -1) for at in copies_at)
    tapes = tapes_of((layer,), steps, loads, [len(loads)] * len(steps))
    rung = Rung(end, end, working, tuple(value_at), steps, tapes, 1.0)
    data_nbytes = trial.digest.data_nbytes
    return Program("trial", trial.target, features, trial.threads, values, ports, (), (layer,), (rung,), data_nbytes)


def _tensors(spec: TunedSpec) -> tuple[list[TensorType], list[TensorType], list[TensorType]]:
    """The kernel's arguments before and after the weights, and its outputs."""
    if isinstance(spec, RecurrentSpec):
        first, *others = (TensorType(*one) for one in (spec.inputs, *spec.given.values(), *spec.results.values()))
        return [first], others[: len(spec.given)], others[len(spec.given) :]
    read = [*data_shapes(spec), *([out_shape(spec)] * spec.tensors)]
    return [TensorType(shape) for shape in read], [], [TensorType(out_shape(spec))]


def _copies(nbytes: int | None, flops: int) -> int:
    """How often to call a layer with `nbytes` of weights in one inference."""
    wanted = _MOST_COPIES if nbytes is None else math.ceil(_COPIES_NBYTES / nbytes)
    return max(min(wanted, _MOST_COPIES, int(_MOST_FLOPS // flops)), min(wanted, 2))


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def _ends(sizes) -> list[int]:
    """The start of each of consecutive ranges from 0, and the end of the last one."""
    result = [0]
    for size in sizes:
        result.append(result[-1] + size)
    return result
