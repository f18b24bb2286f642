"""FlexNN's six networks for AArch64, run by an emulator at three budgets each, against ONNX Runtime on this machine.

    python -m benchmarks.arm [NETWORK …] [--target raspberry-pi-4b]

Needs g++-aarch64-linux-gnu and qemu-user. An emulator says whether outputs and memory are right, nothing of speed:
images are smaller than usual where a network allows it. The exit status is 1 if an output is off by more than `LIMIT`
of the largest, or the arena is not what the budget allows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import flexcomp
from benchmarks.architectures import ARCHITECTURES, example_input, gpt2
from flexcomp import runner
from flexcomp.device_files import device_files

LIMIT = 1e-4  # of the largest output
BUDGETS = ("min", "0.5", "1.0")
SYSROOT = "/usr/aarch64-linux-gnu"
# Networks whose last layers average over the image take any; the others keep their size, GPT-2 with a short prompt.
IMAGE = 64
NETWORKS = {
    "mobilenet_v2": (ARCHITECTURES["mobilenet_v2"], IMAGE),
    "squeezenet1_1": (ARCHITECTURES["squeezenet1_1"], IMAGE),
    "resnet152": (ARCHITECTURES["resnet152"], IMAGE),
    "gpt2": (partial(gpt2, tokens=8), None),
    "vit_b16": (ARCHITECTURES["vit_b16"], None),
    "vgg19_torch": (ARCHITECTURES["vgg19_torch"], None),
}


@dataclass(frozen=True)
class Result:
    """One inference under the emulator."""

    network: str
    budget: str
    budget_nbytes: int
    arena_nbytes: int
    error: float  # of the largest output
    seconds: float

    @property
    def right(self) -> bool:
        """Whether outputs and memory are."""
        return self.error <= LIMIT and self.arena_nbytes <= self.budget_nbytes


def check(name: str, target: str, folder: Path) -> Iterator[Result]:
    """Build a network and run it with every budget."""
    make, image = NETWORKS[name]
    model = make()
    if image is not None:
        _resize(model, image)
    inputs = example_input(model)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)
    library = folder / f"{name}.so"
    flexcomp.build(model, target=target, budget="0.5").export_library(library)
    for key, value in inputs.items():
        np.save(folder / f"{key}.npy", value)
    for budget in BUDGETS:
        started = time.monotonic()
        report = runner.run(
            library,
            budget=budget,
            threads=2,
            inputs={key: folder / f"{key}.npy" for key in inputs},
            output_dir=folder / "out",
            emulator=emulator(),
        )
        outputs = [np.load(runner.output_file(folder / "out", port.name)) for port in model.graph.output]
        error = max(abs(o - e).max() / abs(e).max() for o, e in zip(outputs, expected, strict=True))
        seconds = time.monotonic() - started
        yield Result(name, budget, report["budget_bytes"], report["arena_bytes"], float(error), seconds)


def emulator() -> runner.Emulator:
    """qemu with the runner and libraries of an AArch64 device."""
    program, library = device_files("aarch64")
    command = ("qemu-aarch64", "-L", SYSROOT, "-E", f"LD_LIBRARY_PATH={library.parent}:{SYSROOT}/lib")
    return runner.Emulator(command, program)


def _resize(model: onnx.ModelProto, image: int) -> None:
    """Make the model's picture `image` pixels wide and high."""
    for dimension in model.graph.input[0].type.tensor_type.shape.dim[2:]:
        dimension.dim_value = image


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"of {', '.join(NETWORKS)} (default: all)")
    parser.add_argument("--target", default="raspberry-pi-4b")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.networks if name not in NETWORKS]
    if unknown:
        parser.error(f"no network {unknown[0]!r}; there are {', '.join(NETWORKS)}")
    wrong = 0
    print("| network | budget | bytes | arena | error of largest output | seconds emulated |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in arguments.networks or NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            for result in check(name, arguments.target, Path(folder)):
                wrong += not result.right
                print(
                    f"| {name} | {result.budget} | {result.budget_nbytes} | {result.arena_nbytes} | {result.error:.1e} | "
                    f"{result.seconds:.0f} |{'' if result.right else ' WRONG'}",
                    flush=True,
                )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
