"""Networks for AArch64, run by an emulator at three budgets each, against ONNX Runtime on this machine.

FlexNN's six; networks with memory: CRNN-lite, LSTMs and GRUs, a small decoder whose caches are state; and a quantised one.

    python -m benchmarks.arm [NETWORK …] [--target raspberry-pi-4b] [--image 224]

Needs g++-aarch64-linux-gnu and qemu-user. An emulator says whether outputs and memory are right, nothing of speed:
images are 64 pixels wide unless `--image` says otherwise, GPT-2 gets eight tokens, and series have twelve steps. The first fully
connected layer of VGG-19 and the embedding of positions of ViT-B/16 are made for the image; all other weights have their usual
shapes.
The exit status is 1 if an output is off by more than `LIMIT` of the largest, one of a quantised network by more than a step, or
the arena is not what the budget allows.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import flexcomp
from benchmarks.networks.architectures import ARCHITECTURES, example_input, gpt2, vgg19, vit_b16
from benchmarks.networks.decoding import Sizes, gpt2_decoder
from benchmarks.networks.recurrent import crnn_lite, gru_series, lstm_acoustic
from benchmarks.quantised.models import Way, output_step, quantise
from flexcomp.packaging.device_files import device_files
from flexcomp.runtime import runner

LIMIT = 1e-4  # of the largest output
BUDGETS = ("min", "0.5", "1.0")
SYSROOT = "/usr/aarch64-linux-gnu"
IMAGE = 64
TOKENS = 8
STEPS = 12
DECODER = Sizes(layers=2, width=128, heads=4, vocabulary=1000, positions=64)
CAPACITY = 16


@dataclass(frozen=True)
class Network:
    """A model and what it is run on."""

    model: onnx.ModelProto
    inputs: dict[str, np.ndarray]  # those that are no state
    state: dict[str, np.ndarray] = field(default_factory=dict)  # what it is clear
    becomes: dict[str, str] = field(default_factory=dict)  # inputs by output


@dataclass(frozen=True)
class Result:
    """One inference under the emulator."""

    network: str
    budget: str
    budget_nbytes: int
    arena_nbytes: int
    error: float  # of the largest output
    seconds: float
    limit: float

    @property
    def right(self) -> bool:
        """Whether outputs and memory are."""
        return self.error <= self.limit and self.arena_nbytes <= self.budget_nbytes


def check(name: str, target: str, image: int, folder: Path) -> Iterator[Result]:
    """Build a network and run it with every budget."""
    network = NETWORKS[name](image)
    model, inputs = network.model, network.inputs
    names = [port.name for port in model.graph.output if port.name not in network.becomes]
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(names, inputs | network.state)
    limit = max(LIMIT, 1.01 * output_step(model) / abs(expected[0]).max())
    library = folder / f"{name}.so"
    flexcomp.build(model, target=target, budget="0.5", state=network.becomes or None).export_library(library)
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
        outputs = [np.load(runner.output_file(folder / "out", one)) for one in names]
        error = max(abs(o - e).max() / abs(e).max() for o, e in zip(outputs, expected, strict=True))
        seconds = time.monotonic() - started
        yield Result(name, budget, report["budget_bytes"], report["arena_bytes"], float(error), seconds, limit)


def emulator() -> runner.Emulator:
    """qemu with the runner and libraries of an AArch64 device."""
    program, library = device_files("aarch64")
    command = ("qemu-aarch64", "-L", SYSROOT, "-E", f"LD_LIBRARY_PATH={library.parent}:{SYSROOT}/lib")
    return runner.Emulator(command, program)


def _of(model: onnx.ModelProto) -> Network:
    return Network(model, example_input(model))


def _resized(name: str, image: int) -> Network:
    """A network that averages over its picture, which may have any size."""
    model = ARCHITECTURES[name]()
    for dimension in model.graph.input[0].type.tensor_type.shape.dim[2:]:
        dimension.dim_value = image
    return _of(model)


def _decoder() -> Network:
    """Its first token: caches are state, into which rows are written in place."""
    model = gpt2_decoder(1, CAPACITY, DECODER)
    inputs = {"ids": np.int64([[7]]), "at": np.int64([0])}
    return Network(model, inputs, DECODER.caches(CAPACITY), DECODER.state)


def _quantised(name: str, image: int) -> Network:
    whole = _resized(name, image)
    examples = [example_input(whole.model, seed) for seed in range(3)]
    return Network(quantise(whole.model, examples, Way("QDQ", True)), whole.inputs)


NETWORKS: dict[str, Callable[[int], Network]] = {  # width of the picture → what is run
    "mobilenet_v2": partial(_resized, "mobilenet_v2"),
    "squeezenet1_1": partial(_resized, "squeezenet1_1"),
    "resnet152": partial(_resized, "resnet152"),
    "gpt2": lambda image: _of(gpt2(tokens=TOKENS)),
    "vit_b16": lambda image: _of(vit_b16(image=image)),
    "vgg19_torch": lambda image: _of(vgg19(image=image)),
    "crnn_lite": lambda image: _of(crnn_lite()),
    "lstm_acoustic": lambda image: _of(lstm_acoustic(steps=STEPS)),
    "gru_series": lambda image: _of(gru_series(steps=STEPS)),
    "gpt2_decoder": lambda image: _decoder(),
    "mobilenet_v2_int8": partial(_quantised, "mobilenet_v2"),
}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"of {', '.join(NETWORKS)} (default: all)")
    parser.add_argument("--target", default="raspberry-pi-4b")
    parser.add_argument("--image", type=int, default=IMAGE, help="width of pictures")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.networks if name not in NETWORKS]
    if unknown:
        parser.error(f"no network {unknown[0]!r}; there are {', '.join(NETWORKS)}")
    wrong = 0
    print("| network | budget | bytes | arena | error of largest output | seconds emulated |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in arguments.networks or NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            for result in check(name, arguments.target, arguments.image, Path(folder)):
                wrong += not result.right
                print(
                    f"| {name} | {result.budget} | {result.budget_nbytes} | {result.arena_nbytes} | {result.error:.1e} | "
                    f"{result.seconds:.0f} |{'' if result.right else ' WRONG'}",
                    flush=True,
                )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
