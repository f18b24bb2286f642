"""Networks quantised by ONNX Runtime: outputs beside ONNX Runtime's, time beside the same networks in float32.

    python -m benchmarks.quantised [NETWORK …] [--rounds 20] [--kernels auto]

Each network is quantised in both formats, with a scale for each tensor and for each channel. Outputs on inputs that it was
not calibrated with are held against ONNX Runtime's, in steps of the output's scale, with everything resident and in the
smallest budget. Then the float32 network and the quantised one take turns within the second, one thread; who begins changes
from turn to turn. Reported are the medians over turns, the median of the ratios, and the ratio of the best times. Ends with
code 1 if an output is more than a step away or a median ratio is above 1.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime

import flexcomp
from benchmarks import models
from benchmarks.quantised.models import WAYS, Way, output_step, quantise
from benchmarks.turns import median_seconds

DEFAULT = ("mobilenet_v2", "resnet50_v15")
CALIBRATED_WITH = 4  # inputs
TRIED_WITH = 4  # others
_TURN_S = 0.1  # of inferences in a row
_MIB = 2**20


@dataclass(frozen=True)
class Row:
    """One network, quantised in one way; times in milliseconds."""

    network: str
    way: Way
    steps: float  # the largest difference from ONNX Runtime's outputs
    differing: float  # share of the outputs that differ at all
    resident_nbytes: int  # the budget in which nothing is loaded after the first inference
    float_nbytes: int
    ms: float
    float_ms: float
    ratio: float
    best_ratio: float

    def __str__(self) -> str:
        return (
            f"| {self.network} | {self.way} | {self.steps:.2f} | {self.differing:.2%} | {self.resident_nbytes / _MIB:.1f} | "
            f"{self.float_nbytes / _MIB:.1f} | {self.ms:.2f} | {self.float_ms:.2f} | {self.ratio:.3f} | {self.best_ratio:.3f} |"
        )


HEADER = (
    "| network | quantised as | differs by, steps | of outputs | resident, MiB | float32, MiB | ms | float32, ms | ratio | "
    "of the best |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def compare(name: str, way: Way, rounds: int, kernels: str) -> Row:
    """Quantise, build, check and time one network."""
    network = models.load(name)
    quantised = quantise(network.model, [network.example(i) for i in range(CALIBRATED_WITH)], way)
    built = [
        flexcomp.build(model, input_shapes=network.input_shapes, threads=1, kernels=kernels, progress=False)
        for model in (quantised, network.model)
    ]
    inputs = [network.example(CALIBRATED_WITH + i) for i in range(TRIED_WITH)]
    steps, differing = _differences(quantised, built[0], inputs)
    sessions = [artifact.session() for artifact in built]
    calls: list[Callable[[], object]] = [lambda s=session: s.run(inputs[0]) for session in sessions]
    taken = _in_turns(calls, rounds)
    ratios = [mine / other for mine, other in zip(*taken, strict=True)]
    return Row(
        name, way, steps, differing, *(artifact.program.rungs[-1].budget for artifact in built), *map(statistics.median, taken),
        statistics.median(ratios), min(taken[0]) / min(taken[1]),
    )  # fmt: skip


def _differences(
    model: onnx.ModelProto, built: flexcomp.Artifact, inputs: list[dict[str, np.ndarray]]
) -> tuple[float, float]:
    """The largest difference from ONNX Runtime, in steps of the output, or of 1/255 of its largest; how many differ."""
    theirs = onnxruntime.InferenceSession(model.SerializeToString())
    wanted = [theirs.run(None, given)[0] for given in inputs]
    step = output_step(model) or max(float(np.abs(array).max()) for array in wanted) / 255
    worst, differing = 0.0, []
    for budget in (None, "min"):
        with built.session(budget=budget) as session:
            for given, want in zip(inputs, wanted, strict=True):
                found = next(iter(session.run(given).values()))
                worst = max(worst, float(np.abs(found - want).max()) / step)
                differing.append(float(np.mean(np.abs(found - want) > step / 2)))
    return worst, float(np.mean(differing))


def _in_turns(calls: list[Callable[[], object]], rounds: int) -> list[list[float]]:
    """What an inference of each took in every turn, in milliseconds."""
    inferences = max(1, round(_TURN_S / max(median_seconds(call, 2) for call in calls)))
    taken: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds):
        for i in range(len(calls))[:: -1 if turn % 2 else 1]:
            taken[i].append(1e3 * median_seconds(calls[i], inferences))
    return taken


def main() -> int:
    """Print a line for each network and way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NETWORK", default=list(DEFAULT))
    parser.add_argument("--rounds", type=int, default=20, help="turns of each")
    parser.add_argument("--kernels", default="auto", help="as for `flexcomp build`")
    args = parser.parse_args()
    print(HEADER, flush=True)
    rows = []
    for name in args.names:
        for way in WAYS:
            rows.append(compare(name, way, args.rounds, args.kernels))
            print(rows[-1], flush=True)
    bad = [row for row in rows if row.steps > 1.01 or row.ratio > 1.0]
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
