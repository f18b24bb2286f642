"""Takes every barrier and wait of kernels of networks out, one at a time: a table, and exit status 1 where one is not missed.

    python -m tests.cuda.barriers [NETWORK …] [--tf32]

Networks are those of `tests.cuda.reduced`, lowered for a GPU. A kernel computes one block of its channels on random numbers;
without a barrier some order of threads has to give another result, or to end in an error. Kernels that several networks have are
the first's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import tvm_ffi

from flexcomp.compiler.cuda_code import CudaCode, cuda_code
from flexcomp.device import CompileTarget, resolve_target, with_tf32
from flexcomp.program import CountArg, FirstArg, Layer, TensorType, ValueArg, WeightArg
from tests.cuda.network import lowered_network
from tests.cuda.on_cpu.emulator import Emulator, numbered
from tests.cuda.reduced import NETWORKS
from tests.schedules.cuda.barriers import needless

TARGET = "cuda -arch=sm_80"
_TOGETHER = 16  # kernels that are compiled at a time


def kernels_of(name: str, target: CompileTarget, seen: set[int]) -> Iterator[tuple[Layer, CudaCode]]:
    """The kernels of a network that have barriers, with a layer of each; `seen` are hashes of those that were looked at."""
    network, architecture = lowered_network(NETWORKS[name](), target, None), target.gpu
    for layer in network.layers:
        func = network.kernels[layer.kernel]
        if (identity := tvm_ffi.structural_hash(func)) in seen:
            continue
        seen.add(identity)
        code = cuda_code(func, architecture, f"k{len(seen)}")
        if numbered(code.source)[1]:
            yield layer, code


def arguments_of(layer: Layer, seed: int) -> list[np.ndarray | int]:
    """Random numbers for one block of a layer; of odd seeds one of the weights of each channel is not a number.

    Another weight in its place is noticed even if multiplied with padding only.
    """
    rng = np.random.default_rng(seed)
    found: list[np.ndarray | int] = []
    for arg in layer.args:
        if isinstance(arg, FirstArg | CountArg):
            found.append(int(isinstance(arg, CountArg)))
        elif isinstance(arg, ValueArg) and arg.bounds:
            found.append(rng.integers(*zip(*arg.bounds, strict=True), arg.type.shape).astype(arg.type.dtype))
        else:
            blocks = layer.weights.blocks if isinstance(arg, WeightArg) and layer.weights else 1
            shape = (1, *arg.type.shape[1:]) if blocks > 1 else arg.type.shape
            found.append(_random(rng, TensorType(shape, arg.type.dtype)))
            if isinstance(arg, WeightArg) and arg.type.dtype == "float32" and seed % 2:
                channels = found[-1].reshape(-1, shape[-1])
                channels[rng.integers(len(channels), size=shape[-1]), range(shape[-1])] = np.nan
    return found


def _random(rng: np.random.Generator, type_: TensorType) -> np.ndarray:
    if type_.dtype == "float32":
        return rng.standard_normal(type_.shape, "f4")
    return rng.integers(0, 2, type_.shape).astype(type_.dtype)


def main() -> None:
    """Print a line for each network."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), metavar="NETWORK", help=", ".join(NETWORKS))
    parser.add_argument("--tf32", action="store_true", help="products by tensor cores")
    args = parser.parse_args()
    target = with_tf32(resolve_target(TARGET)) if args.tf32 else resolve_target(TARGET)
    seen: set[int] = set()
    missed = 0
    print("network        kernels barriers not missed seconds")
    for name in args.networks:
        start, kernels, barriers, unnoticed = time.monotonic(), 0, 0, []
        found_here = kernels_of(name, target, seen)
        while some := list(islice(found_here, _TOGETHER)):
            with tempfile.TemporaryDirectory() as folder:
                emulator = Emulator({layer.name: code for layer, code in some}, Path(folder))
                for layer, _ in some:
                    found = needless(emulator, layer.name, lambda seed, layer=layer: arguments_of(layer, seed))
                    unnoticed += [f"{layer.implementation}, {layer.description}: barrier {number}" for number in found]
                    kernels, barriers = kernels + 1, barriers + emulator.barriers(layer.name)
        seconds = time.monotonic() - start
        print(f"{name:<14} {kernels:7} {barriers:8} {len(unnoticed):10} {seconds:7.0f}", *unnoticed, sep="\n  ", flush=True)
        missed += len(unnoticed)
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
