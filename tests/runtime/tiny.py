"""A small network, planned by hand, that exercises everything a program can say.

    x ──(mv 0)──(mv 1)── … ──(mv L-1)──(mul)── t;  out = 0.5 · t + x

Each `mv` is a matrix–vector product with ReLU over blocks of output channels, computed in two slices; `mul` has
weights that neither start nor end at a page; the last layer has scratch and no weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi
from tvm.s_tir import Schedule
from tvm.script import tirx as T

from flexcomp import runtime_ext
from flexcomp.compiler.machine_code import signature_of
from flexcomp.passes.attributes import with_scratch
from flexcomp.program import Load
from flexcomp.program.digest import WeightsDigest
from flexcomp.program.program import (
    PAGE,
    CountArg,
    FirstArg,
    Layer,
    Port,
    Program,
    ScratchArg,
    TensorType,
    Value,
    ValueArg,
    WeightArg,
    Weights,
)
from flexcomp.program.program_bytes import PROGRAM_KIND
from flexcomp.program.signature import symbol
from flexcomp.program.weights_file import write_weights
from flexcomp.runtime import MINIMUM, note_minimum
from tests.by_hand import Plan, Step, encode_program

N, NR = 256, 32
BLOCKS = N // NR
BLOCK_NBYTES = N * NR * 4
SLICES = 2
SLICE_NBYTES = BLOCKS // SLICES * BLOCK_NBYTES
VECTOR = TensorType((N,))
X, A, B, OUT, SCRATCH = (i * 1024 for i in range(5))  # arena addresses of the vectors
RING = 2 * PAGE  # where weights start


@T.prim_func(s_tir=True)
def _mv(x: T.handle, w: T.handle, first: T.int32, count: T.int32, y: T.handle) -> None:
    T.func_attr({"global_symbol": "mv", "tirx.noalias": True})
    X = T.match_buffer(x, (256,))
    W = T.match_buffer(w, (8, 256, 32))
    Y = T.match_buffer(y, (8, 32))
    for o, i, k in T.grid(count, 32, 256):
        with T.sblock("mv"):
            vo = T.axis.S(8, first + o)
            vi = T.axis.S(32, i)
            vk = T.axis.R(256, k)
            with T.init():
                Y[vo, vi] = T.float32(0)
            Y[vo, vi] = Y[vo, vi] + T.max(X[vk], T.float32(0)) * W[vo - first, vk, vi]


@T.prim_func(s_tir=True)
def _mul(x: T.handle, w: T.handle, y: T.handle) -> None:
    T.func_attr({"global_symbol": "mul", "tirx.noalias": True})
    X = T.match_buffer(x, (256,))
    W = T.match_buffer(w, (256,))
    Y = T.match_buffer(y, (256,))
    for i in T.serial(256):
        with T.sblock("mul"):
            vi = T.axis.S(256, i)
            Y[vi] = X[vi] * W[vi]


@T.prim_func(s_tir=True)
def _halve_add(a: T.handle, b: T.handle, y: T.handle, s: T.handle) -> None:
    T.func_attr({"global_symbol": "halve_add", "tirx.noalias": True})
    A = T.match_buffer(a, (256,))
    B = T.match_buffer(b, (256,))
    S = T.match_buffer(s, (256,))
    Y = T.match_buffer(y, (256,))
    for i in T.serial(256):
        with T.sblock("halve"):
            vi = T.axis.S(256, i)
            S[vi] = A[vi] * T.float32(0.5)
    for i in T.serial(256):
        with T.sblock("add"):
            vi = T.axis.S(256, i)
            Y[vi] = S[vi] + B[vi]


def functions() -> dict[str, tvm.tirx.PrimFunc]:
    """The three kernels by name; `mv` runs in parallel over blocks with a register tile."""
    schedule = Schedule(tvm.IRModule({"mv": _mv}))
    block = schedule.get_sblock("mv", func_name="mv")
    outer, _, _ = schedule.get_loops(block)
    tile = schedule.cache_write(block, 0, "local")  # asks the backend for workspace
    schedule.reverse_compute_at(tile, outer)
    schedule.parallel(outer)
    return {"mv": schedule.mod["mv"], "mul": _mul, "halve_add": with_scratch(_halve_add, [(N,)])}


def kernels(prefix: str, code: dict[str, tvm.tirx.PrimFunc] | None = None) -> tvm.runtime.Module:
    """Kernels compiled for this machine, by default the three of the tiny network."""
    named = {prefix + name: func for name, func in (code or functions()).items()}
    symbols = {symbol(name, signature_of(func)): func for name, func in named.items()}
    module = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in symbols.items()})
    return tvm.tirx.build(module, target=tvm.target.Target({"kind": "llvm"}))


@dataclass
class Tiny:
    """An exported tiny network and what it should compute."""

    library: Path
    program: Program
    digest: WeightsDigest
    matrices: np.ndarray
    scale: np.ndarray

    @property
    def weights(self) -> Path:
        return self.library.with_suffix(".weights")

    def reference(self, x: np.ndarray) -> np.ndarray:
        y = x.astype("f8")
        for matrix in self.matrices:
            y = matrix.astype("f8").T @ np.maximum(y, 0)
        return (0.5 * y * self.scale + x).astype("f4")


def weight_entries(matrices: np.ndarray, scale: np.ndarray) -> list[tuple]:
    """Matrices packed in blocks of output channels; the scale starts at an odd multiple of 64."""
    packed = [(f"mv{i}.weight", matrix.reshape(N, BLOCKS, NR).transpose(1, 0, 2)) for i, matrix in enumerate(matrices)]
    return [*packed, ("mul.scale", scale, matrices.nbytes + 192)]


def make_program(layers: int, prefix: str, metadata: dict[str, str] | None = None) -> Program:
    """Three rungs: a ring of three slices, read ahead; the same with the first layer pinned; everything pinned.

    Nothing is read ahead on the second rung.
    """
    scale_at = layers * N * N * 4 + 192
    values = (Value("x", 1024), Value("a", 1024), Value("b", 1024), Value("out", 1024))
    steps_of = []
    program_layers = []
    for i in range(layers):
        source, target = 0 if i == 0 else 1 + (i - 1) % 2, 1 + i % 2
        args = (
            ValueArg(source, VECTOR),
            WeightArg(0, TensorType((BLOCKS, N, NR))),
            FirstArg(),
            CountArg(),
            ValueArg(target, TensorType((BLOCKS, NR)), written=True),
        )
        weights = Weights(i * N * N * 4, BLOCKS, BLOCK_NBYTES)
        program_layers.append(Layer(f"mv{i}", "matmul", f"{prefix}mv", "blocks", "x·W", args, weights, 0, 2 * N * N))
        count = BLOCKS // SLICES
        steps_of += [(i, s * count, count) for s in range(SLICES)]
    last, spare = 1 + (layers - 1) % 2, 1 + layers % 2
    program_layers.append(
        Layer(
            "mul", "multiply", f"{prefix}mul", "plain", "x·s",
            (ValueArg(last, VECTOR), WeightArg(0, VECTOR), ValueArg(spare, VECTOR, True)), Weights(scale_at, 1, 1024), 0, N,
        )
    )  # fmt: skip
    program_layers.append(
        Layer(
            "add", "add", f"{prefix}halve_add", "scratch", "x/2 + y",
            (ValueArg(spare, VECTOR), ValueArg(0, VECTOR), ValueArg(3, VECTOR, True), ScratchArg(0, VECTOR)), None, 1024, 2 * N,
        )
    )  # fmt: skip
    steps_of += [(layers, 0, 1), (layers + 1, 0, 1)]

    rungs = []
    for pinned_layers in (0, 1, layers):
        streamed = (layers - pinned_layers) * SLICES
        slots = min(3, streamed)
        tail = RING + slots * SLICE_NBYTES  # the page of the last layer's weights
        working = tail + PAGE if streamed else RING
        end = working + pinned_layers * SLICES * SLICE_NBYTES
        tail = tail if streamed else end
        loads, steps = [], []
        for index, (layer, first, count) in enumerate(steps_of):
            if layer < layers:
                pinned = layer < pinned_layers
                slot = index - pinned_layers * SLICES
                at = working + index * SLICE_NBYTES if pinned else RING + slot % slots * SLICE_NBYTES
                after = 0 if pinned or slot < slots else index - slots + 1
                ahead = pinned_layers == 0 and slot < slots
                if ahead:  # once the last slice in this place of the ring is computed with
                    after = max(other for other in range(streamed) if other % slots == slot) + 1
                loads.append(Load(index * SLICE_NBYTES, SLICE_NBYTES, at, after, pinned, ahead))
                steps.append(Step(layer, first, count, len(loads), at, -1))
            elif layer == layers:
                source = scale_at // PAGE * PAGE
                loads.append(Load(source, PAGE, tail, 0, pinned_layers == layers))
                steps.append(Step(layer, first, count, len(loads), tail + scale_at - source, -1))
            else:
                steps.append(Step(layer, first, count, 0, -1, SCRATCH))
        arena = max(end, tail + PAGE)
        rungs.append(Plan(arena + 100, arena, working, (X, A, B, OUT), tuple(steps), tuple(loads), 1e-3))
    return Program(
        "tiny", "llvm", (), 2, values, (Port("x", 0, VECTOR),), (Port("out", 3, VECTOR),),
        tuple(program_layers), tuple(rungs), scale_at + 1024, metadata or {},
    )  # fmt: skip


def with_page(rung: Plan) -> Plan:
    """The rung with a page more, the last of its working range; what stays is moved behind it."""

    def up(at: int) -> int:
        return at + PAGE if at >= rung.working else at

    return replace(
        rung,
        budget=rung.budget + PAGE,
        arena=rung.arena + PAGE,
        working=rung.working + PAGE,
        steps=tuple(replace(step, weights_at=up(step.weights_at)) for step in rung.steps),
        loads=tuple(replace(load, target=up(load.target)) for load in rung.loads),
    )


def all_ahead(program: Program) -> Program:
    """The same network with one rung, whose loads are all pinned or read ahead: inferences may end without the loader.

    Streamed are the two slices of the first layer; the last step's scratch overwrites the first of them.
    """
    count = len(program.layers) - 2
    page = RING + count * SLICES * SLICE_NBYTES
    loads = [
        Load(0, SLICE_NBYTES, RING, len(program.rungs[0].steps), False, True),
        Load(SLICE_NBYTES, SLICE_NBYTES, RING + SLICE_NBYTES, 2, False, True),
    ]
    loads += [
        Load(at, SLICE_NBYTES, RING + at, 0, True)
        for at in range(SLICES * SLICE_NBYTES, count * SLICES * SLICE_NBYTES, SLICE_NBYTES)
    ]
    scale_at = program.layers[count].weights.offset
    loads.append(Load(scale_at // PAGE * PAGE, PAGE, page, 0, True))
    steps = [
        replace(step, need=i + 1, weights_at=load.target) if i < count * SLICES
        else replace(step, need=i + 1, weights_at=page + scale_at % PAGE) if i == count * SLICES
        else step
        for i, (step, load) in enumerate(zip(program.rungs[0].steps, [*loads, None], strict=True))
    ]  # fmt: skip
    steps[-1] = replace(steps[-1], scratch_at=RING)
    arena = page + PAGE
    rung = Plan(arena, arena, RING + SLICES * SLICE_NBYTES, (X, A, B, OUT), tuple(steps), tuple(loads), 1e-3)
    return replace(program, rungs=(rung,))


def export(library: Path, prefix: str, layers: int = 6, seed: int = 0, *, compiled=None, plan=lambda program: program) -> Tiny:
    """Write `library` and its weights file. `compiled` saves compiling the same kernels twice; `plan` changes the rungs."""
    rng = np.random.default_rng(seed)
    matrices = (rng.standard_normal((layers, N, N)) * np.sqrt(2 / N)).astype("f4")
    scale = rng.standard_normal(N).astype("f4")
    minimum = note_minimum("mv0", {"activations": 3072, "weights": SLICE_NBYTES, "scratch": 0})
    program = plan(make_program(layers, prefix, {MINIMUM: minimum}))
    digest = write_weights(library.with_suffix(".weights"), weight_entries(matrices, scale), model="tiny")
    runtime_ext.register()
    module = tvm_ffi.get_global_func(PROGRAM_KIND + ".create")(encode_program(program, digest))
    module.import_module(compiled or kernels(prefix))
    module.export_library(
        str(library), addons=[str(runtime_ext.runtime_object())], options=runtime_ext.link_options()
    )
    return Tiny(library, program, digest, matrices, scale)


def close_to(result: np.ndarray, expected: np.ndarray) -> None:
    """Fail unless a session's output is `Tiny.reference`, up to rounding."""
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
