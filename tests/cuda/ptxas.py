"""Machine code of whole networks' kernels, without a GPU: a table, and exit status 1 where a kernel falls short.

    python -m tests.cuda.ptxas [NETWORK …] [--arch sm_90 …] [--all] [--tf32]

For each kind of kernel of a network: how many there are, registers of a thread, spilled bytes, shared memory of a block, and
how many of the threads that a multiprocessor holds it would hold (CUDA C++ Programming Guide, "Multiprocessor Level"). Of direct
convolutions and products of matrices also the share of multiply-adds among the instructions of the longest loop, and by what
it reads shared memory. Each row has the worst of its kernels; with --all every device function has a row.

No kernel may spill, loops have to be FFMA for 83 % and more, and to read shared memory by 128 bits. Kernels that fall short are
listed with the other instructions of the loop. Of products by tensor cores (--tf32) only spills are checked. An architecture
takes some minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import tvm_ffi

from benchmarks.models import load
from flexcomp.compiler.cuda_code import CudaCode, cuda_code
from flexcomp.device import CompileTarget, resolve_target, with_tf32
from flexcomp.schedules.cuda import ARCHITECTURES, Architecture
from tests.cuda import nvcc
from tests.cuda.network import lowered_network

NETWORKS = ("resnet50", "vgg19_torch", "mobilenet_v2", "vit_b16")
WANTED = ("sm_80", "sm_86", "sm_87", "sm_90")
SHARE = 0.83  # of multiply-adds in the loop over products
_PRODUCTS = ("direct", "matmul")
_BATCH = 40  # kernels that nvcc gets at a time


@dataclass(frozen=True)
class Row:
    """A device function."""

    kind: str  # family and tile
    layer: str
    function: nvcc.Function
    occupancy: float  # threads that a multiprocessor holds, as a part of those that it can
    loop: tuple[str, ...]  # the instructions of the longest loop, where it is one of products

    @property
    def ffma(self) -> float | None:
        """Multiply-adds, as a part of the loop's instructions."""
        return nvcc.share(self.loop, "FFMA") if self.loop else None

    @property
    def reads(self) -> frozenset[str]:
        """Instructions that read shared memory in the loop."""
        return nvcc.shared_reads(self.loop)

    @property
    def shortcomings(self) -> list[str]:
        """The faults of a kernel; none: the kernel is good."""
        found = []
        if self.function.spilled_nbytes:
            found.append(f"{self.function.spilled_nbytes} bytes are spilled")
        if self.loop and self.ffma < SHARE:
            found.append(f"{self.ffma:.1%} FFMA, beside {nvcc.besides(self.loop, 'FFMA')}")
        if self.loop and self.reads != {"LDS.128"}:
            found.append(f"shared memory is read by {', '.join(sorted(self.reads))}")
        return found


def rows_of(networks: Iterable[str], target: CompileTarget, folder: Path) -> Iterator[tuple[str, Row]]:
    """The device functions of networks; those that several have are the first's."""
    architecture = target.gpu
    seen: set[int] = set()
    kernels = []
    for network in networks:
        graph = lowered_network(load(network).model, target, None)
        for layer in graph.layers:
            func = graph.kernels[layer.kernel]
            if (identity := tvm_ffi.structural_hash(func)) not in seen:
                seen.add(identity)
                kernels.append((network, layer, cuda_code(func, architecture, f"k{len(kernels)}")))
    for start in range(0, len(kernels), _BATCH):
        some = kernels[start : start + _BATCH]
        cubin, functions = nvcc.compiled([code for *_, code in some], architecture.name, folder)
        for network, layer, code in some:
            kind = layer.implementation if layer.implementation != "generic" else f"generic {layer.op}"
            for row in _rows(kind, layer.description, code, cubin, functions, architecture):
                yield network, row


def _rows(
    kind: str, layer: str, code: CudaCode, cubin: Path, functions: dict[str, nvcc.Function], architecture: Architecture
) -> Iterator[Row]:
    for launch in code.launches:
        function = functions[launch.function]
        threads = launch.threads[0] * launch.threads[1] * launch.threads[2]
        warps = -(-threads // 32) * 32
        held = architecture.blocks(warps, -(-function.registers // 8) * 8, function.shared_nbytes)
        is_product = kind.split()[0] in _PRODUCTS and not kind.endswith("tf32")
        loop = nvcc.longest_loop(cubin, launch.function) if is_product else ()
        yield Row(kind, layer, function, held * warps / architecture.threads, tuple(loop))


def _printed(name: str, rows: list[Row]) -> str:
    ffma = [row.ffma for row in rows if row.ffma is not None]
    reads = sorted(set().union(*(row.reads for row in rows)))
    worst = [
        f"{max(row.function.registers for row in rows):4}", f"{max(row.function.spilled_nbytes for row in rows):6}",
        f"{max(row.function.shared_nbytes for row in rows) / 1024:7.1f}", f"{min(row.occupancy for row in rows):6.0%}",
        f"{min(ffma):5.0%}" if ffma else "    –", " ".join(reads),
    ]  # fmt: skip
    return f"{name:<44.44} {len(rows):4} {' '.join(worst)}"


def main() -> None:
    """Print a table for each architecture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", default=NETWORKS, metavar="NETWORK", help="of those of benchmarks.models")
    parser.add_argument("--arch", nargs="+", choices=sorted(ARCHITECTURES), default=WANTED)
    parser.add_argument("--all", action="store_true", help="a row for each device function")
    parser.add_argument("--tf32", action="store_true", help="products by tensor cores")
    args = parser.parse_args()
    if nvcc.nvcc() is None or nvcc.nvdisasm() is None:
        raise SystemExit("nvcc and nvdisasm are needed")
    short = []
    for name in args.arch:
        print(f"\n{name:<44} many regs spills shared   occ.  FFMA shared memory is read by", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            target = resolve_target(f"cuda -arch={name}")
            found = list(rows_of(args.networks, with_tf32(target) if args.tf32 else target, Path(folder)))
        grouped: dict[str, list[Row]] = {}
        for network, row in found:
            grouped.setdefault(f"{network} {row.kind}" + f" {row.layer}" * args.all, []).append(row)
        for title, rows in sorted(grouped.items()):
            print(_printed(title, rows))
        wanting = ((network, row) for network, row in found if row.shortcomings)
        short += [f"{name}: {network} {row.kind} {row.layer}: {'; '.join(row.shortcomings)}" for network, row in wanting]
    print("\n".join(["", f"{len(short)} device functions fall short", *short]))
    sys.exit(bool(short))


if __name__ == "__main__":
    main()
