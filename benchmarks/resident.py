"""Everything resident, one thread: flexcomp beside ONNX Runtime.

    python -m benchmarks.resident [NETWORK or GROUP …] [--threads 1] [--rounds 40] [--no-cache]

Groups are those of `benchmarks.models`; `strangers` are networks for which nothing was tuned. Each network is built, its
outputs are held against ONNX Runtime's, and then the two take turns within the second, a few inferences each after
one that warms up; who begins changes from turn to turn. Reported is the median over turns of the ratio with quartiles,
what the build took, the smallest budget, and the largest difference of outputs over the largest output. The exit status
is 1 if outputs differ by more than 1e-4 or flexcomp is the slower one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx

import flexcomp
from benchmarks import models
from benchmarks.peers import flexcomp as ours
from benchmarks.peers import onnxruntime as theirs
from benchmarks.peers.measure import largest_error
from benchmarks.turns import median_seconds
from flexcomp.errors import FlexcompError

DEFAULT = ("resnet50_v15", "resnet152")
TURN_S = 0.1  # of inferences in a row
ACCURATE = 1e-4  # of the largest output


@dataclass(frozen=True)
class Result:
    """One network; times in milliseconds."""

    network: str
    threads: int
    build_s: float
    smallest_nbytes: int  # budget
    flexcomp_ms: float
    onnxruntime_ms: float
    ratios: tuple[float, ...]  # of every turn
    error: float

    @property
    def ratio(self) -> float:
        """The median."""
        return statistics.median(self.ratios)

    def __str__(self) -> str:
        low, _, high = statistics.quantiles(self.ratios, n=4)
        return (
            f"| {self.network} | {self.build_s:.1f} | {self.smallest_nbytes / 2**20:.2f} | {self.flexcomp_ms:.2f} | "
            f"{self.onnxruntime_ms:.2f} | {self.ratio:.3f} | {low:.3f} to {high:.3f} | {self.error:.1e} |"
        )


HEADER = (
    "| network | build, s | smallest budget, MiB | flexcomp, ms | ONNX Runtime, ms | ratio | quartiles | outputs differ by |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def compare_network(name: str, folder: Path, threads: int, rounds: int, cache: bool) -> Result:
    """Build the network `name` in a folder and run it beside ONNX Runtime. Raises FlexcompError if it cannot be built."""
    network = models.load(name)
    example = network.example(0)
    onnx.save(network.model, folder / "model.onnx")
    start = time.perf_counter()
    built = flexcomp.build(
        str(folder / "model.onnx"), input_shapes=network.input_shapes, threads=threads, progress=False, cache=cache
    )
    built.export_library(str(folder / ours.LIBRARY))
    build_s = time.perf_counter() - start
    calls = [engine.load(folder, example, threads, None) for engine in (ours, theirs)]
    error = largest_error(*(call() for call in calls))
    inferences = max(1, round(TURN_S / max(median_seconds(call, 2) for call in calls)))
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        for i in (0, 1) if turn % 2 else (1, 0):
            taken[i].append(1e3 * median_seconds(calls[i], inferences))
    ratios = tuple(mine / other for mine, other in zip(*taken, strict=True))
    medians = (statistics.median(times) for times in taken)
    return Result(name, threads, build_s, built.program.rungs[0].budget, *medians, ratios, error)


def main() -> int:
    """Compare the chosen networks and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NETWORK", default=list(DEFAULT))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40, help="turns of each")
    parser.add_argument("--no-cache", action="store_true", help="compile all kernels, so that what builds take is known")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()
    results, refused = [], 0
    print(HEADER, flush=True)
    for name in [name for given in args.names for name in models.GROUPS.get(given, (given,))]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                results.append(compare_network(name, Path(folder), args.threads, args.rounds, not args.no_cache))
            except FlexcompError as error:
                refused += 1
                print(f"| {name} | {type(error).__name__}: {error} |", flush=True)
            else:
                print(results[-1], flush=True)
    if args.json:
        args.json.write_text(json.dumps([asdict(result) | {"ratio": result.ratio} for result in results], indent=1))
    if results:
        ratios = [result.ratio for result in results]
        print(f"in the median {statistics.median(ratios):.3f}, at most {max(ratios):.3f}")
    wrong = [result.network for result in results if not result.error <= ACCURATE or result.ratio > 1.0]
    if wrong:
        print(f"wrong or slower: {', '.join(wrong)}")
    return int(bool(refused or wrong))


if __name__ == "__main__":
    sys.exit(main())
