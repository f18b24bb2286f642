"""Kernels for ARM cores, judged without one: the built inner loops, through llvm-mca.

    python -m benchmarks.lab.arm.mca [--preset NAME …] [--weights TYPE | --arithmetic float16 | --arithmetic int8]
    python -m benchmarks.lab.arm.mca --network resnet50_v15 --network mobilenet_v2     # float16, all layers with weights

Every kernel family is compiled for presets whose cores LLVM has a model of. Of a kernel's innermost loops the one
that the full register tile runs in is taken: the one with the most multiply-adds that writes no memory. Its
multiply-adds are counted against what the core can start; llvm-mca says how many cycles an iteration takes, every
load being a hit of the first-level cache. The exit status is 1 if a kernel falls short of `SHARE`, or if a product's
loop touches the stack. With narrow weights an iteration also takes its part of the loop that widens them, and the exit
status is 1 if a tile of seven rows and more falls below NARROW_SHARE of its float32 rate. With float16 it is 1 if a product
falls below HALF_RATE of the products that the layer's float32 kernel does, or, with --network, all kernels of a network together
do; with int8, of quantised networks, if it falls below
the float16 kernel's. Nothing here says how long a layer takes on a device.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import tvm

from benchmarks import models
from benchmarks.lab.arm.assembly import Loop, cycles, find_llvm_mca, loops
from benchmarks.results import Results, Table, json_option
from flexcomp.compiler.lowering import fuse_layers
from flexcomp.compiler.machine_code import compile_module
from flexcomp.compiler.weight_types import WeightTypes
from flexcomp.compiler.weights import evaluate
from flexcomp.device.target import CompileTarget, resolve_target, with_arithmetic
from flexcomp.frontend import load_model
from flexcomp.passes.choose_kernels import layers_with_weights
from flexcomp.schedules import widened
from flexcomp.schedules.depthwise import ChannelEmitter
from flexcomp.schedules.registry import Candidate, candidates
from flexcomp.schedules.tiles.panel import WEIGHT_DTYPES
from flexcomp.schedules.tiles.spec import ConvSpec, MatmulSpec
from flexcomp.schedules.tiles.tile import VectorUnit
from flexcomp.schedules.tiles.widening import widens_on_stack


@dataclass(frozen=True)
class Core:
    """How llvm-mca sees a core. LLVM has no models of A76 and X1; Neoverse N1 and V1 are their siblings for servers."""

    name: str
    model: str
    fmas: int  # four floats each, started per cycle
    share: float  # of those that products must reach


CORES = {
    "raspberry-pi-4b": Core("A72", "cortex-a72", 1, 0.95), "raspberry-pi-5": Core("A76", "neoverse-n1", 2, 0.95),
    "pixel-6-pro": Core("X1", "neoverse-v1", 4, 0.85),
}
A55 = "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a55"
WITH_HALF = {A55: Core("A55", "cortex-a55", 2, 0.5), **{name: CORES[name] for name in ("raspberry-pi-5", "pixel-6-pro")}}
HALF_RATE = 1.8
DEPTHWISE_SHARE = 0.80
NARROW_SHARE = 0.90
_MANY_ROWS = 7
_FAMILIES_WITH_NARROW_WEIGHTS = ("direct", "depthwise", "im2col_gemm", "gemv")
_FAMILIES_WITH_HALF = ("direct", "depthwise", "grouped", "gemv")
_RELU = ("relu", ("acc",))


def conv(size: int, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> ConvSpec:
    """A convolution with ReLU over a square image, padded to keep its size."""
    return ConvSpec(
        1, size, size, inputs, outputs, (kernel, kernel), (stride, stride), (kernel // 2,) * 4, groups=groups, epilogue=_RELU,
    )  # fmt: skip


# Layers of ResNet, VGG, MobileNetV2, EfficientNet, ViT and GPT-2, and which kernel of theirs is looked at.
LAYERS: list[tuple[str, ConvSpec | MatmulSpec, str]] = [
    ("stem 7×7 /2", conv(224, 3, 64, 7, 2), "direct"), ("stem 3×3 /2", conv(224, 3, 32, 3, 2), "direct"),
    ("stem 3×3", conv(224, 3, 64, 3), "direct"), ("1×1, 56 pixels", conv(56, 64, 256), "direct"),
    ("1×1, 14 pixels", conv(14, 1024, 256), "direct"), ("1×1, 7 pixels", conv(7, 960, 320), "direct"),
    ("1×1 /2", conv(56, 256, 512, 1, 2), "direct"), ("1×1 Strassen, 28 pixels", conv(28, 512, 512), "strassen"),
    ("3×3, 56 pixels", conv(56, 64, 64, 3), "direct"), ("3×3, 28 pixels", conv(28, 128, 128, 3), "direct"),
    ("3×3, 7 pixels", conv(7, 512, 512, 3), "direct"), ("3×3 /2", conv(28, 256, 256, 3, 2), "direct"),
    ("3×3 im2col", conv(28, 128, 128, 3), "im2col_gemm"), ("F(2), 56 pixels", conv(56, 64, 64, 3), "winograd F(2)"),
    ("F(2), 7 pixels", conv(7, 512, 512, 3), "winograd F(2)"), ("F(4), 56 pixels", conv(56, 64, 64, 3), "winograd F(4)"),
    ("F(4), 14 pixels", conv(14, 256, 256, 3), "winograd F(4)"),
    ("fully connected, 197 rows", ConvSpec(1, 1, 197, 768, 3072), "direct"),
    ("Q·K, 197 rows", MatmulSpec(12, 197, 197, 64), "matmul"), ("P·V, 197 rows", MatmulSpec(12, 197, 64, 197), "matmul"),
    ("depthwise 3×3", conv(28, 144, 144, 3, groups=144), "depthwise"),
    ("depthwise 3×3 /2", conv(28, 144, 144, 3, 2, groups=144), "depthwise"),
    ("depthwise 5×5", conv(28, 144, 144, 5, groups=144), "depthwise"),
    ("depthwise 5×5 /2", conv(28, 144, 144, 5, 2, groups=144), "depthwise"), ("gemv", ConvSpec(1, 1, 1, 4096, 1000), "gemv"),
]


# A layer whose weights are widened in a loop.
DEEP = ConvSpec(1, 1, 197, 768, 3072)


@dataclass(frozen=True)
class Result:
    """A kernel's inner loop on a core."""

    layer: str
    candidate: Candidate
    core: Core
    loop: Loop
    cycles: float  # of an iteration, with widening its weights
    float32: Result | None = None  # the same with wider numbers: of bytes in float16, else weights that are not widened

    @property
    def share(self) -> float:
        """Multiply-adds of those that the core could start in the time."""
        return self.loop.fmas / (self.core.fmas * self.cycles)

    @property
    def is_half(self) -> bool:
        """Whether numbers have 16 bits."""
        return self.loop.products == 8 * self.loop.fmas

    @property
    def is_bytes(self) -> bool:
        """Whether numbers have 8 bits."""
        return self.loop.products == 16 * self.loop.fmas

    @property
    def rate(self) -> float:
        """Products in a cycle."""
        return self.loop.products / self.cycles

    @property
    def wanted(self) -> float | None:
        """The share to reach; None for products of a vector, which wait for weights from memory."""
        family = self.candidate.family
        if self.is_bytes:
            return self.float32.rate / (16 * self.core.fmas)
        if self.is_half:
            return HALF_RATE / 2 * self.float32.share if family == "direct" else None
        if self.float32:
            many = self.candidate.tile.rows >= _MANY_ROWS and family in ("direct", "depthwise", "im2col_gemm")
            return NARROW_SHARE * self.float32.share if many else None
        return {"depthwise": DEPTHWISE_SHARE, "gemv": None}.get(family, self.core.share)

    @property
    def weight_bytes_per_cycle(self) -> float:
        """Of a product of a vector, which uses every weight once."""
        return 16 * self.loop.fmas / self.cycles

    @property
    def fault(self) -> str | None:
        """The reasons for which the kernel falls short."""
        if self.wanted is not None and self.share < self.wanted:
            return f"{self.share:.1%} of the multiply-adds, less than {self.wanted:.0%}"
        if self.loop.spills and self.candidate.family != "depthwise" and not self.is_bytes:
            return f"{self.loop.spills} accesses to the stack in the inner loop"
        return None


def measure(layer: str, spec: ConvSpec | MatmulSpec, wanted: str | tuple[str, ...], preset: str, mca: str) -> Result:
    """Compile the layer's kernel that is called `wanted`, or one of these, the one with the least work if there are several."""
    arithmetic = getattr(spec, "dtype", "float32")
    target, core = with_arithmetic(resolve_target(preset), arithmetic), {**CORES, **WITH_HALF}[preset]
    offered = [c for c in candidates(spec, target.vector_unit) if str(c).startswith(wanted)]
    candidate = min(offered, key=lambda c: c.work)
    with target.tvm_target:
        module = compile_module({"kernel": candidate.build()}, target)
    loop = main_loop(module)
    taken = cycles(loop, core.model, mca)
    tiles = _tiles_widened_for(candidate, spec, target.vector_unit)
    if tiles:
        weights = loop.fmas / candidate.tile.rows
        taken += weights * cycles_of_widening(spec.weights, preset, mca) / tiles
    return Result(layer, candidate, core, loop, taken)


def _tiles_widened_for(candidate: Candidate, spec: ConvSpec | MatmulSpec, unit: VectorUnit) -> int:
    """Tiles that weights are widened for once; 0 for weights widened in registers or not at all."""
    tile = candidate.tile
    if not candidate.panel or not candidate.panel.narrow or candidate.panel.packs:
        return 0
    if candidate.family == "depthwise" and widens_on_stack(spec, unit.width):
        parts = ChannelEmitter(spec, spec, tile, unit.width, unit.threads).parts
        return spec.out_height // parts * math.ceil(spec.out_width / tile.rows)
    tiles = math.ceil(spec.out_height * spec.out_width / tile.rows)
    return min(widened.TILES_OF_A_GROUP, tiles) if candidate.scratch else 0


@functools.cache
def cycles_of_widening(weights: str, preset: str, mca: str) -> float:
    """Cycles for four weights that are widened into scratch, by the loop of a layer that LLVM does not unroll."""
    target, core = resolve_target(preset), CORES[preset]
    candidate = next(c for c in candidates(replace(DEEP, weights=weights), target.vector_unit) if c.variant == "widened")
    with target.tvm_target:
        module = compile_module({"kernel": candidate.build()}, target)
    found = [loop for loop in loops(module.inspect_source("s")) if not loop.fmas and loop.converts]
    if not found:
        raise RuntimeError("the kernel has no loop that widens weights")
    loop = max(found, key=lambda loop: loop.stored_vectors)
    return cycles(loop, core.model, mca) / loop.stored_vectors


def main_loop(module: tvm.runtime.Module) -> Loop:
    """The loop of the full register tile; one around it, if LLVM unrolled that."""
    every = [loop for loop in loops(module.inspect_source("s")) if loop.fmas]
    found = [loop for loop in every if not loop.stores] or every
    if not found:
        raise RuntimeError("the kernel has no loop that multiplies and adds without writing memory")
    return max(found, key=lambda loop: loop.fmas)


def measure_all(presets: list[str], weights: str, arithmetic: str, mca: str) -> Iterator[Result]:
    """All layers that can have such weights, or be computed so, on all presets."""
    for layer, spec, wanted in LAYERS:
        for preset in presets:
            if arithmetic == "float16":
                if wanted in _FAMILIES_WITH_HALF:
                    wide = measure(layer, spec, wanted, preset, mca)
                    half = replace(spec, dtype="float16", weights="float16")
                    yield replace(measure(layer, half, wanted, preset, mca), float32=wide)
            elif arithmetic == "int8":
                whole = replace(spec, weights="int8", integers=True) if wanted == "direct" else None
                if whole and any(c.family == "integer" for c in candidates(whole, resolve_target(preset).vector_unit)):
                    half = measure(layer, replace(spec, dtype="float16", weights="float16"), wanted, preset, mca)
                    yield replace(measure(layer, whole, "integer", preset, mca), float32=half)
            elif weights == "float32":
                yield measure(layer, spec, wanted, preset, mca)
            elif wanted in _FAMILIES_WITH_NARROW_WEIGHTS:
                wide = measure(layer, spec, wanted, preset, mca)
                yield replace(measure(layer, replace(spec, weights=weights), wanted, preset, mca), float32=wide)


def _layers_of(name: str, target: CompileTarget) -> Counter[ConvSpec]:
    """The layers with weights, and how many there are of each."""
    network = models.load(name)
    imported = load_model(network.model, network.input_shapes, None, None)
    types = WeightTypes("float32", functools.partial(evaluate, weights=imported.weights), offered=["float32"])
    fused = fuse_layers(imported, target, None, lambda phase, done, total: None, types)
    return Counter(spec for _, spec in layers_with_weights(fused) if isinstance(spec, ConvSpec))


def measure_network(name: str, preset: str, mca: str) -> tuple[str, float, int, int, list[str]]:
    """The core, products in a cycle over those of float32, accesses to the stack in how many kernels, and layers left out."""
    cycles, stack, left_out = {"float32": 0.0, "float16": 0.0}, [], []
    for spec, count in _layers_of(name, resolve_target(preset)).items():
        try:
            found = {
                kind: measure("", replace(spec, dtype=kind, weights=kind), _FAMILIES_WITH_HALF, preset, mca) for kind in cycles
            }
        except (RuntimeError, ValueError) as error:
            left_out.append(f"{count} × {spec}: {error}")
            continue
        for kind, result in found.items():
            cycles[kind] += count * spec.flops / result.rate
        stack.append(found["float16"].loop.spills)
    return {**CORES, **WITH_HALF}[preset].name, cycles["float32"] / cycles["float16"], sum(stack), len(stack), left_out


COLUMNS = {
    "core": "", "layer": "", "tile": "", "multiply-adds": "d", "instructions": "d", "on the stack": "d", "of the most": ".1%",
    "bytes per cycle": ".0f", "products per cycle": ".1f", "of float32's": ".2f",
}  # fmt: skip


def add_row(table: Table, result: Result) -> None:
    """The row of a kernel."""
    loop = result.loop
    table.add(
        result.core.name, result.layer, str(result.candidate.tile), loop.fmas, len(loop.instructions), loop.spills, result.share,
        result.weight_bytes_per_cycle if result.candidate.family == "gemv" else None,
        result.rate, result.rate / result.float32.rate if result.float32 else None,
    )  # fmt: skip


def main() -> int:
    """The command line; 1 if something falls short, 2 without llvm-mca."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", action="append", choices=list({**CORES, **WITH_HALF}), help="only these (default: all)")
    parser.add_argument("--arithmetic", choices=("float32", "float16", "int8"), default="float32", help="what is multiplied")
    parser.add_argument("--weights", choices=list(WEIGHT_DTYPES), default="float32", help="the type of the weights")
    parser.add_argument("--network", action="append", choices=models.NAMES, help="float16 over float32 of whole networks")
    json_option(parser, "mca")
    arguments = parser.parse_args()
    mca = find_llvm_mca()
    if mca is None:
        print("error: llvm-mca of LLVM 17 or later is missing; on Debian: apt-get install llvm-19", file=sys.stderr)
        return 2
    if arguments.network:
        short = 0
        for name, preset in itertools.product(arguments.network, arguments.preset or WITH_HALF):
            core, rate, spills, kernels, left_out = measure_network(name, preset, mca)
            print(f"{name}, {core}: {rate:.2f} × float32, {spills} accesses to the stack in {kernels} kernels", flush=True)
            print(*(f"  left out: {one}" for one in left_out), sep="\n", end="\n" * bool(left_out))
            short += rate < HALF_RATE or spills > 0
        return int(short > 0)
    columns = {("of float16's" if arguments.arithmetic == "int8" and name == "of float32's" else name): form
               for name, form in COLUMNS.items()}  # fmt: skip
    written, table, results = Results.begin("benchmarks.lab.arm.mca"), Table(columns), []
    presets = arguments.preset or list(WITH_HALF if arguments.arithmetic in ("float16", "int8") else CORES)
    for result in measure_all(presets, arguments.weights, arguments.arithmetic, mca):
        results.append(result)
        add_row(table, result)
    written.write(arguments.json, [table])
    faults = [f"{r.core.name}, {r.layer}, {r.candidate}: {r.fault}" for r in results if r.fault]
    for fault in faults:
        print(f"falls short: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
