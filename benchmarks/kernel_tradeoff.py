"""Three kernels of one 3×3 convolution: latency, weights and scratch (FlexNN's Figure 2), and im2col over its slices.

    python -m benchmarks.kernel_tradeoff [--only kernels|slices] [--kernels FOLDER] [--build-only] [--json FILE]

Both tables are made, or `--only` one. Compiling takes longer than measuring: with --kernels the compiled kernels are
kept in FOLDER, --build-only stops there.

Float32, batch 1, stride 1, padding 1, ReLU, one thread. The kernels of one shape run in turns; shown are minima, so
that other work on the machine disturbs little. "cold" is after 96 MiB were written, so that weights, input and scratch
come from memory.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tvm
import tvm_ffi

from flexcomp.compiler.machine_code import compile_module
from flexcomp.device.target import resolve_target
from flexcomp.profiling.rates import aligned, pool
from flexcomp.schedules.im2col import ways as im2col
from flexcomp.schedules.registry import Candidate, conv_candidates, im2col_candidate
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit

# Image and channels of VGG's and ResNet's layers.
SHAPES = ((224, 64), (112, 128), (56, 256), (28, 512), (14, 512), (56, 64), (28, 128), (14, 256), (7, 512))
SLICES = (1, 4, 16)
_FINEST_SHOWN = 16  # products of a slice, whose latency is shown over the number of slices
_FLUSHED_NBYTES = 96 << 20
_HEADS = {
    "kernels": "| image, channels | kernel | hot ms | cold ms | weights MiB | scratch KiB |"
    "\n| --- | --- | --- | --- | --- | --- |",
    "slices": "\n| image, channels | one slice: ms, scratch KiB | number of slices: latency relative to one slice (scratch) |"
    "\n| --- | --- | --- |",
}
_WINOGRAD_SCRATCH = 1200 << 10


@dataclass
class Measured:
    """A kernel and what it takes."""

    candidate: Candidate
    call: object
    args: list
    hot: float = float("inf")  # seconds
    cold: float = float("inf")


def spec_of(image: int, channels: int) -> ConvSpec:
    """A 3×3 convolution that keeps its image's size and channels."""
    return ConvSpec(1, image, image, channels, channels, (3, 3), padding=(1, 1, 1, 1), epilogue=("relu", ("acc",)))


def trade_off(spec: ConvSpec, unit: VectorUnit) -> list[Candidate]:
    """The direct kernel, im2col in a few numbers of slices, and the best Winograd kernel of each kind."""
    offered = conv_candidates(spec, unit)
    winograd = [c for c in offered if c.family == "winograd" and c.scratch_nbytes <= _WINOGRAD_SCRATCH]
    kinds = sorted({c.variant.split()[0] for c in winograd})
    sliced = [im2col_candidate(im2col.in_slices(spec, unit, count), unit) for count in SLICES]
    return [offered[0], *sliced, *(min((c for c in winograd if kind in c.variant), key=lambda c: c.work) for kind in kinds)]


def curve(spec: ConvSpec, unit: VectorUnit) -> list[Candidate]:
    """im2col in one slice, two, four, …, and in slices as long as a register tile is wide."""
    counts = [1, spec.taps // im2col.in_slices(spec, unit, 1).tile.channels]
    while 2 ** len(counts) * _FINEST_SHOWN <= 2 * spec.taps:
        counts.append(2 ** (len(counts) - 1))
    ways = sorted({im2col.in_slices(spec, unit, count) for count in counts}, key=lambda way: way.count)
    return list({str(way): im2col_candidate(way, unit) for way in ways}.values())


_TABLES = {"kernels": trade_off, "slices": curve}


def compiled(name: str, offered: list[Candidate], folder: Path, target) -> tvm.runtime.Module:
    """The kernels `k0`, `k1`, … of a table's row, compiled unless they are in the folder."""
    library = folder / f"{name}.so"
    if not library.exists():
        functions = {f"k{i}": candidate.build() for i, candidate in enumerate(offered)}
        compile_module(functions, target).export_library(str(library))
    return tvm.runtime.load_module(str(library))


def measure(offered: list[Candidate], module, spec: ConvSpec, repeat: int) -> list[Measured]:
    """Times of the kernels, which run in turns."""
    rng = np.random.default_rng(0)

    def tensor(shape: tuple[int, ...]):
        array = aligned(4 * int(np.prod(shape))).view(np.float32)[: int(np.prod(shape))].reshape(shape)
        array[...] = rng.standard_normal(shape, dtype=np.float32)
        return tvm_ffi.from_dlpack(array)

    x, y = tensor((1, spec.height, spec.width, spec.in_channels)), tensor((1, spec.out_height, spec.out_width, spec.out_channels))
    found = []
    for i, candidate in enumerate(offered):
        scratch = [tensor(shape) for shape in candidate.scratch]
        panel = tensor(candidate.panel.shape)
        found.append(Measured(candidate, module[f"k{i}"], [x, panel, 0, candidate.panel.blocks, y, *scratch]))
    flushed = np.empty(_FLUSHED_NBYTES, np.uint8)
    for _ in range(repeat):
        for one in found:
            one.call(*one.args)
            one.hot = min(one.hot, _seconds(one))
            flushed[...] = 1
            one.cold = min(one.cold, _seconds(one))
    return found


def _seconds(one: Measured) -> float:
    start = time.perf_counter()
    one.call(*one.args)
    return time.perf_counter() - start


def facts(one: Measured, spec: ConvSpec) -> dict:
    """A row of the table: times in milliseconds, sizes in bytes."""
    candidate = one.candidate
    return {
        "kernel": str(candidate),
        "family": candidate.family,
        "variant": candidate.variant,
        "hot_ms": one.hot * 1e3,
        "cold_ms": one.cold * 1e3,
        "weight_bytes": candidate.panel.blocks * candidate.panel.block_nbytes,
        "scratch_bytes": candidate.scratch_nbytes,
        "gflops": spec.flops / one.hot / 1e9,
    }


def curve_row(title: str, rows: list[dict]) -> str:
    """Slices, latency and scratch of one shape, relative to one slice, as a row of a Markdown table."""
    whole, *sliced = rows
    parts = [
        f"{row['variant'].split()[0]}: {row['hot_ms'] / whole['hot_ms']:.2f} ({row['scratch_bytes'] / 2**10:,.0f} KiB)"
        for row in sliced
    ]
    return f"| {title} | {whole['hot_ms']:.2f}, {whole['scratch_bytes'] / 2**10:,.0f} | {'; '.join(parts)} |"


def table(title: str, rows: list[dict]) -> str:
    """Rows as a Markdown table under the first column's title."""
    lines = []
    for i, row in enumerate(rows):
        first = title if i == 0 else ""
        lines.append(
            f"| {first} | {row['kernel']} | {row['hot_ms']:.2f} | {row['cold_ms']:.2f} "
            f"| {row['weight_bytes'] / 2**20:.2f} | {row['scratch_bytes'] / 2**10:,.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=_TABLES, help="one of the tables")
    parser.add_argument("--kernels", type=Path, help="where compiled kernels are kept")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--json", type=Path, help="write the results there as well")
    parser.add_argument("--repeat", type=int, default=12)
    arguments = parser.parse_args()
    target = resolve_target("native")
    unit = target.vector_unit
    results: dict[str, list] = {"kernels": [], "slices": []}
    with tempfile.TemporaryDirectory() as temporary, pool(1):
        folder = arguments.kernels or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for part in [arguments.only] if arguments.only else _TABLES:
            if not arguments.build_only:
                print(_HEADS[part])
            for image, channels in SHAPES:
                spec = spec_of(image, channels)
                offered = _TABLES[part](spec, unit)
                module = compiled(f"{part}_{image}_{channels}", offered, folder, target)
                if arguments.build_only:
                    continue
                rows = [facts(one, spec) for one in measure(offered, module, spec, arguments.repeat)]
                results[part].append({"image": image, "channels": channels, "rows": rows})
                print((table if part == "kernels" else curve_row)(f"{image}, {channels}", rows), flush=True)
    if arguments.json and not arguments.build_only:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
