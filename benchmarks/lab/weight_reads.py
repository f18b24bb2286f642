"""How often every layer of networks reads its weights, where these exceed the second-level cache, and what reading again costs.

python -m benchmarks.lab.weight_reads resnet50_v15 vgg19_torch mobilenet_v2 squeezenet1_1 vit_b16 gpt2 --profile PROFILE.json

Without a profile, those of a build for the target that measures nothing. `Candidate.reads` is what kernels do:
tests/schedules/test_weight_reads.py walks their loops. "again" is the time of reading again what computing does not hide.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from benchmarks import models
from flexcomp.compiler.lowering import fuse_layers
from flexcomp.compiler.weight_types import WeightTypes
from flexcomp.compiler.weights import evaluate
from flexcomp.device import CompileTarget, DeviceProfile, guessed_profile, load_profile, machine_of, resolve_target
from flexcomp.frontend import load_model
from flexcomp.passes.choose_kernels import PREFERENCES, layers_with_weights
from flexcomp.schedules.family import Candidate
from flexcomp.schedules.registry import candidates
from flexcomp.schedules.tiles.spec import ConvSpec
from flexcomp.schedules.tiles.tile import VectorUnit


def layers_of(name: str, target: CompileTarget) -> Counter[ConvSpec]:
    """The layers with weights, and how many there are of each."""
    network = models.load(name)
    imported = load_model(network.model, network.input_shapes, None, None)
    types = WeightTypes("float32", partial(evaluate, weights=imported.weights), offered=["float32"])
    fused = fuse_layers(imported, target, None, lambda phase, done, total: None, types)
    return Counter(spec for _, spec in layers_with_weights(fused) if isinstance(spec, ConvSpec))


def large(spec: ConvSpec, unit: VectorUnit) -> Iterator[tuple[str, Candidate]]:
    """The kernels of the smallest and of the fastest choice that have more weights than the second-level cache holds."""
    for preference in ("smallest", "fastest"):
        kernel = PREFERENCES[preference](candidates(spec, unit))
        if kernel.panel is not None and kernel.weight_nbytes > unit.memory.second_nbytes:
            yield preference, kernel


def again_s(kernel: Candidate, spec: ConvSpec, unit: VectorUnit, profile: DeviceProfile) -> float:
    """Seconds that the kernel would save if it read its weights once: by the same model with nothing to read again."""
    cached = replace(unit, memory=replace(unit.memory, near=0.0, last_nbytes=kernel.weight_nbytes))
    once = min(one.work for one in candidates(spec, cached) if str(one) == str(kernel))
    return max(0.0, kernel.work - once) / (profile.flops_per_s * unit.threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+", choices=models.NAMES)
    parser.add_argument("--target", default="native")
    parser.add_argument("--profile", help="a file that a build has remembered, or of flexcomp profile")
    args = parser.parse_args()
    target = resolve_target(args.target)
    profile = load_profile(args.profile) if args.profile else guessed_profile(target)
    unit = machine_of(target, profile, 1)
    print("| network | layers | layer | choice | kernel | MB | reads | again, ms | of the layer |\n" + "| --- " * 9 + "|")
    once = every = 0
    for name in args.networks:
        for spec, count in layers_of(name, target).items():
            for preference, kernel in large(spec, unit):
                every, once = every + count, once + count * (kernel.reads == 1)
                if kernel.reads != 1:
                    seconds = again_s(kernel, spec, unit, profile)
                    part = seconds * profile.flops_per_s / kernel.work
                    row = name, count, spec, preference, kernel, f"{kernel.weight_nbytes / 1e6:.1f}", kernel.reads
                    print("|", " | ".join(map(str, row)), f"| {1e3 * seconds:.3f} | {part:.1%} |", flush=True)
    print(f"\n{once} of {every} choices read their weights once; all others are listed")


if __name__ == "__main__":
    main()
